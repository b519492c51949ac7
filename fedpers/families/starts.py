"""How several models of one shape start apart: seeds of their own, or heads and adapters drawn anew."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import nn

from fedpers.core.errors import ConfigError
from fedpers.core.params import Params
from fedpers.families.split_models.parts import in_part
from fedpers.learning.model import Model
from fedpers.learning.starts import seeded

# each model whole from a seed; or all from the model's own start, with heads and adapters drawn anew
Start = Literal["seeds", "jitter"]


def started(model: Model, like: Params, seed: int, start: Start) -> Params:
    """One more model, from a seed of its own; dtype and device of `like`.

    Args:
        like: the model's initial parameters, from which `jitter` takes what it does not draw.
    """
    fresh = model.init_trained(seed) if start == "seeds" else _jittered(model, like, seed)
    return {k: fresh[k].to(v) for k, v in like.items()}


def _jittered(model: Model, like: Params, seed: int) -> Params:
    """`like` with a head of its own, and adapters that start as torch's linear layers do.

    Factors that are zero stay so, as LoRA's second one: a product with zero is how adapters begin.
    """
    head = replace(model, start="default").init_head(seed)
    with seeded(seed):
        drawn = {
            name: nn.init.kaiming_uniform_(torch.empty(value.shape), a=math.sqrt(5))
            for name, value in like.items()
            if in_part(model, "adapters", name) and value.dim() > 1 and bool(value.any())
        }
    return like | drawn | head


def refuse_equal(models: Sequence[Params], what: str) -> None:
    """Refuse several models that are all the same: clients could never tell them apart.

    Args:
        what: the methods call them so: "method.S=3 centers".

    Raises:
        ConfigError: names the remedy.
    """
    first, *others = models
    if others and all(torch.equal(v, m[k]) for m in others for k, v in first.items()):
        raise ConfigError(
            f"{what} start alike, so they would stay alike: the model starts from the same numbers whatever "
            "the seed (pretrained, or model.init=zeros); set method.start=jitter, which draws a head, and "
            "adapters if there are any, for each"
        )
