"""Memory and disk: a thousand clients' adapters on one frozen base, and a large model that is all trained.

    python -m benchmarks.sizes     writes benchmarks/results/sizes.json     (needs torchvision)

Each run is a process of its own; its peak is the most memory that it had resident. The plain PyTorch loop
holds the global model, a client's, its gradients and the running mean, and writes nothing.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedpers
from benchmarks.plain_loop import plain_round
from fedpers.bench.main import keep
from fedpers.bench.work import Result
from fedpers.core.torchvision import import_torchvision

FILE = Path(__file__).parent / "results" / "sizes.json"
CLIENTS, INPUTS, CLASSES = 1000, 16, 2
OWN = ["*lora_*", "head.*"]  # what stays with a client; the norm below the head is shared
LORA = {"rank": 2, "targets": ["blocks.*"]}
IMAGE, FEW, BATCH = (3, 32, 32), 2, 2  # for the model that is all trained: clients, and samples of each


class Backbone(nn.Module):
    """Twelve residual layers of width 1440: 100 MB before the head."""

    def __init__(self, num_classes: int = CLASSES, width: int = 1440, layers: int = 12) -> None:
        super().__init__()
        self.embed = nn.Linear(INPUTS, width)
        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """[n, INPUTS] to [n, num_classes]."""
        x = self.embed(x)
        for block in self.blocks:
            x = x + F.relu(block(x)) / len(self.blocks)
        return self.head(self.norm(x))


def vit(num_classes: int = CLASSES) -> nn.Module:
    """ViT-B, 86M parameters, for four patches."""
    import_torchvision()
    from torchvision.models import vit_b_16

    net: nn.Module = vit_b_16(image_size=IMAGE[1], num_classes=num_classes)
    return net


def samples(count: int, *shape: int) -> tuple[Tensor, Tensor]:
    """Random inputs, and classes in turn."""
    return torch.randn(count, *shape), torch.arange(count) % CLASSES


def adapters(cohort: int | None, rounds: int) -> Result:
    """FedPer, whose clients keep an adapter beside each layer and a head, on a base that nobody trains."""
    data = fedpers.Federation.from_arrays([samples(5, INPUTS) for _ in range(CLIENTS)])
    model = {
        "name": "module",
        "path": "benchmarks.sizes:Backbone",
        "lora": LORA,
        "trainable": [*OWN, "norm.*"],
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        keys = {"clients_per_round": cohort, "rounds": rounds, "eval_every": 0, "checkpoint_every": 1}
        run = fedpers.run("fedper", data=data, model=model, out=out, **keys, **{"method.personal": OWN})
        peak = peak_mb()
        disk = sum(f.stat().st_blocks * 512 for f in out.rglob("*") if f.suffix in (".bin", ".safetensors"))
        params = run.model(client=0).params
    own = sum(p.nbytes for name, p in params.items() if any(fnmatchcase(name, part) for part in OWN))
    base = sum(p.nbytes for p in Backbone().parameters())
    return {"peak": peak, "disk": disk / 1e6, "base": base / 1e6, "own": own * CLIENTS / 1e6}


def all_trained() -> Result:
    """One round of FedAvg of a ViT-B."""
    data = fedpers.Federation.from_arrays(
        [{"train": samples(BATCH, *IMAGE), "test": samples(1, *IMAGE)}] * FEW
    )
    with tempfile.TemporaryDirectory() as folder:
        keys = {"rounds": 1, "eval_every": 0, "checkpoint_every": 0, "out": Path(folder) / "run"}
        model = {"name": "module", "path": "benchmarks.sizes:vit"}
        fedpers.run("fedavg", "method.local.batch_size=2", data=data, model=model, **keys)
    return {"peak": peak_mb()}


def loop() -> Result:
    """The same as one would write it."""
    plain_round(vit(), [samples(BATCH, *IMAGE) for _ in range(FEW)], BATCH)
    return {"peak": peak_mb()}


def peak_mb() -> float:
    """The most that this process had resident, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


NAMES = {
    "peak": "peak, MB",
    "disk": "states and checkpoint, MB",
    "base": "frozen base, MB",
    "own": "own parts of 1,000, MB",
}
RUNS = {
    "adapters, 100 of 1,000 clients a round": lambda: adapters(100, 10),
    "adapters, 1,000 clients a round": lambda: adapters(None, 2),
    "ViT-B, all trained": all_trained,
    "ViT-B, plain loop": loop,
}


def main() -> None:
    """Measure, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", choices=RUNS, help="this one, in this process")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if given.run:
        print(json.dumps(RUNS[given.run]()))
        return
    rows = []
    for name in RUNS:
        words = [sys.executable, "-m", "benchmarks.sizes", "--run", name]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        heads = {head: round(found[key]) if key in found else "" for key, head in NAMES.items()}
        rows.append({"run": name, **heads})
        print(rows[-1], flush=True)
    keep(rows, "python -m benchmarks.sizes", FILE)


if __name__ == "__main__":
    main()
