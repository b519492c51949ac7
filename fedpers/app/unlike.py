"""model=groups: the models of a federation whose clients have unlike ones, and who may be given them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedpers.config.model_config import ModelConfig
from fedpers.config.registry import METHODS, Method
from fedpers.config.run_config import RunConfig
from fedpers.core.errors import ConfigError
from fedpers.flower.client import PersonalizedClient
from fedpers.learning.model import Model


@dataclass(frozen=True)
class Unlike:
    """One entry a model, and the place of each client's among them."""

    configs: Sequence[ModelConfig]
    models: Sequence[Model]
    clients: Sequence[PersonalizedClient]  # the method's client half with each of them
    places: Sequence[int]  # [N]

    def facts(self) -> list[dict[str, Any]]:
        """What summary.json has of each model: its name, how many entries are trained, how many clients."""
        return [
            {"model": c.name, "entries": m.trains[0], "clients": list(self.places).count(i)}
            for i, (c, m) in enumerate(zip(self.configs, self.models, strict=True))
        ]


def check_unlike(cfg: RunConfig, row: Method, models: Sequence[Model]) -> None:
    """Refuse methods that need one architecture, and models without what the method shares.

    Raises:
        ConfigError: names the method, or the models and what differs.
    """
    if row.common == "all":
        known = ", ".join(sorted(n for n, m in METHODS.items() if m.common != "all"))
        text = "needs one architecture for all clients; choose one model, or a method that shares less"
        raise ConfigError(f"model=groups method={cfg.method_name}: the method {text}: {known}")
    if row.common == "head" and getattr(cfg.method, "personal", "body") != "body":
        text = "unlike models share a head at most; set method.personal=body"
        raise ConfigError(f"model=groups method.personal={cfg.method.personal}: {text}")
    wanted = {"task": (), "features": ("num_features",), "head": ("num_features", "num_outputs", "bias")}
    for name in wanted[row.common]:
        found = [getattr(m, name) for m in models]
        if len(set(found)) > 1:
            said = ", ".join(f"{m.name}: {value}" for m, value in zip(models, found, strict=True))
            what = {"num_features": "width of the features, the inputs of the last layer"}.get(name, name)
            text = f"method={cfg.method_name} needs models of one {what}, and these have {said}"
            raise ConfigError(f"model=groups: {text}; change the last hidden layers so that they agree")
