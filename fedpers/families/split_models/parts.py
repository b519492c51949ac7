"""Parts of a model by name: what of it is a client's own."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Literal

from fedpers.core.errors import ConfigError
from fedpers.core.params import Params, split
from fedpers.learning.model import Model

# the last layer; all else; low-rank and other adapters; normalisation; or patterns of parameters' names
Part = Literal["head", "body", "adapters", "norms"] | list[str]

ADAPTER = re.compile(r"(^|[._])(lora|ia3|adapters?)([._]|$)", re.IGNORECASE)  # as peft and others name them


def in_part(model: Model, part: str | Sequence[str], name: str) -> bool:
    """Whether the parameter `name` belongs to this part of the model."""
    if not isinstance(part, str):
        return any(fnmatchcase(name, pattern) for pattern in part)
    return {
        "head": model.is_head(name),
        "body": not model.is_head(name),
        "norms": model.is_norm(name),
        "adapters": ADAPTER.search(name) is not None,
    }[part]


def cut(model: Model, params: Params, personal: str | Sequence[str]) -> tuple[Params, Params]:
    """(shared part, personal part) of a whole model; `personal` is a `Part`."""
    own, shared = split(params, lambda name: in_part(model, personal, name))
    return shared, own


def check_part(model: Model, params: Params, key: str, part: str | Sequence[str]) -> None:
    """Refuse a part that the model does not have, or one whose patterns fit nothing.

    Args:
        params: the model's parameters, those that are trained.
        key: of the configuration, such as "method.personal".

    Raises:
        ConfigError: names the parameters that there are.
    """
    if part in ("head", "body"):  # a model may be all head
        return
    if isinstance(part, str):
        if not any(in_part(model, part, name) for name in params):
            raise ConfigError(f"{key}={part}: {_none(model, part)}; name what is to be a client's own: "
                              f"{key}=[patterns] of {_listed(params)}")  # fmt: skip
        return
    for pattern in part or ["(none)"]:
        if not any(fnmatchcase(name, pattern) for name in params):
            raise ConfigError(
                f"{key}: '{pattern}' fits no parameter that is trained; it has {_listed(params)}"
            )


def _none(model: Model, part: str) -> str:
    if part == "norms":
        return f"model '{model.name}' has no normalisation that is trained (model=resnet18_gn has)"
    return f"model '{model.name}' has no adapters (parameters called *lora_*, *adapter*, *ia3_*)"


def _listed(params: Params, most: int = 12) -> str:
    names = list(params)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
