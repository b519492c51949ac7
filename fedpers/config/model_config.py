"""The model of a run, or with model=groups its several models and which client has which."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from fedpers.config import schema
from fedpers.core.bounds import show
from fedpers.core.errors import ConfigError

GROUPS = "groups"  # model=groups: clients have unlike models
KEYS = ("groups", "shares", "clients")


@dataclass(frozen=True)
class ModelConfig:
    """A model's name and the options of its builder; of `groups` KEYS."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def several(self) -> bool:
        """Whether clients have unlike models."""
        return self.name == GROUPS

    @property
    def models(self) -> list["ModelConfig"]:
        """Each of the models; without groups this one."""
        return [_one(group) for group in self.options["groups"]] if self.several else [self]

    def places(self, num_clients: int) -> list[int]:
        """[N] where in `models` each client's model is.

        Raises:
            ConfigError: clients are too few, or are not those that the configuration names.
        """
        count = len(self.models)
        if listed := list(self.options.get("clients") or []):
            if len(listed) != num_clients:
                text = f"it names the model of {len(listed)} clients, and there are {num_clients}"
                raise ConfigError(f"model.clients: {text}; give one number a client")
            found = listed
        elif shares := self.options.get("shares"):
            ends = [round(num_clients * s / sum(shares)) for s in accumulate(shares)]
            found = [sum(k >= end for end in ends) for k in range(num_clients)]
        else:
            found = [k % count for k in range(num_clients)]
        if idle := sorted(set(range(count)) - set(found)):
            text = f"no client of {num_clients} would have the model at place {idle[0]}"
            raise ConfigError(f"model.groups: {text}; leave it out, or give it clients")
        return found


def model_of(values: Any, problems: list[str]) -> ModelConfig:
    """A model from plain values, as YAML gives them; what is wrong is added to `problems`."""
    if isinstance(values, ModelConfig):
        return values
    if not isinstance(values, Mapping) or not isinstance(values.get("name"), str):
        problems.append(f"model={show(values)}: expected the name of a model")
        return ModelConfig("")
    found = _one(values)
    problems += _of_groups(found.options) if found.several else _options(found, "model")
    return found


def _one(values: Mapping[str, Any]) -> ModelConfig:
    return ModelConfig(values["name"], {k: v for k, v in values.items() if k != "name"})


def _options(model: ModelConfig, path: str) -> list[str]:
    from fedpers.learning.networks import options_of  # it imports torch

    try:
        return schema.unknown_keys(model.options, options_of(model.name, model.options.get("library")), path)
    except ConfigError as error:
        return list(error.problems)


def _of_groups(options: Mapping[str, Any]) -> list[str]:
    """The problems of model=groups."""
    found = schema.unknown_keys(options, KEYS, "model")
    groups, shares, clients = (options.get(key) or [] for key in KEYS)
    if not isinstance(groups, Sequence) or isinstance(groups, str) or len(groups) < 2:
        text = "expected a list of two models or more, each as {name: mlp, hidden: [64]}"
        return [*found, f"model.groups={show(groups)}: {text}"]
    for i, group in enumerate(groups):
        if not isinstance(group, Mapping) or group.get("name") == GROUPS:
            found.append(f"model.groups[{i}]={show(group)}: expected a model, as {{name: mlp, hidden: [64]}}")
        elif not isinstance(group.get("name"), str):
            found.append(f"model.groups[{i}]={show(group)}: it has no name of a model")
        else:
            found += _options(_one(group), f"model.groups[{i}]")
    return found + _of_clients(len(groups), shares, clients)


def _of_clients(count: int, shares: Any, clients: Any) -> list[str]:
    found = []
    if shares and not (_numbers(shares, whole=False) and len(shares) == count and min(shares) > 0):
        text = f"expected a number above 0 for each of {count} models"
        found.append(f"model.shares={show(shares)}: {text}")
    if clients and not (_numbers(clients, whole=True) and set(clients) <= set(range(count))):
        text = f"expected places in model.groups, 0 to {count - 1}"
        found.append(f"model.clients={show(clients)}: {text}")
    if shares and clients:
        found.append("model.shares, model.clients: both say which client has which model; give one of them")
    return found


def _numbers(values: Any, whole: bool) -> bool:
    """Whether this is a list of finite numbers, or of whole ones."""
    return isinstance(values, Sequence) and all(
        isinstance(v, int if whole else (int, float)) and not isinstance(v, bool) and math.isfinite(v)
        for v in values
    )
