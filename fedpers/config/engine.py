"""Where the clients of a run are: the keys of engine=, and which engine uses which."""

from dataclasses import dataclass
from typing import Literal

from fedpers.core.bounds import above, bounds

ENGINES_OF = {  # key of an engine: the engines that use it; any other key is used by all
    **dict.fromkeys(("runner", "workers", "precision", "convolution"), ("inprocess",)),
    **dict.fromkeys(("memory_mb", "extra"), ("inprocess", "ray")),
    **dict.fromkeys(("num_cpus", "num_gpus"), ("ray",)),
    "address": ("ray", "deployment"),
    **dict.fromkeys(
        ("ca", "deadline_s", "min_clients", "min_replies", "retries", "restarts"), ("deployment",)
    ),
}


@dataclass(frozen=True)
class EngineConfig:
    """Where the clients run; an override that the chosen engine ignores is refused."""

    name: Literal["inprocess", "ray", "deployment"] = "inprocess"
    runner: Literal["auto", "loop", "stack"] = "auto"  # inprocess: one by one, or stacked (vmap)
    chunk: int | None = None  # clients in a stack, null: measured; ray: in a message
    workers: int | None = None  # inprocess: processes that share the clients; null: 1, or 1 a GPU
    extra: int = 0  # inprocess, ray: clients asked beyond clients_per_round; the last replies are left out
    memory_mb: float = 512.0  # inprocess, ray: RAM for clients' states; the rest: files
    precision: Literal["float32", "tf32", "bf16"] = "float32"  # inprocess: of a stack's products
    convolution: Literal["auto", "grouped", "products"] = "auto"  # inprocess: in a stack
    num_cpus: float = 1.0  # ray: CPUs that one actor takes
    num_gpus: float = 0.0  # ray: share of a GPU that one actor takes
    address: str | None = None  # ray: a running cluster; deployment: the SuperLink, HOST:PORT
    ca: str | None = None  # deployment: the authority's certificate; null: loopback without TLS
    deadline_s: float = 600.0  # deployment: for a reply, and for clients to come
    min_clients: int = 1  # deployment: to begin with
    min_replies: int | None = None  # deployment: of an exchange; null: all, or 1 if failures=skip
    retries: int = 1  # deployment: orders sent again to clients without a good reply
    restarts: int = 2  # deployment: submissions after a crash of the server side

    def check(self) -> list[str]:
        """Problems of values."""
        return bounds(
            self,
            chunk=(1, None),
            workers=(1, None),
            extra=(0, None),
            memory_mb=(0, None),
            num_gpus=(0, None),
            min_clients=(1, None),
            min_replies=(1, None),
            retries=(0, None),
            restarts=(0, None),
        ) + above(self, num_cpus=0, deadline_s=0)
