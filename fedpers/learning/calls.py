"""Adapts modules whose inputs are named and whose outputs are records, as those of transformers and peft."""

import inspect
from typing import Any

from torch import Tensor, nn

from fedpers.core.errors import ConfigError

INPUTS = ("input_ids", "pixel_values", "input_values", "inputs_embeds")  # names of what a sample is, in order


def plainly(module: nn.Module, padding: Any, what: str) -> None:
    """Let the module be called with one tensor of inputs, and give one tensor: its outputs' `logits`.

    Args:
        padding: the number of the token that fills texts up, which `attention_mask` leaves out; None: no mask
            is given, all tokens are read.

    Raises:
        ConfigError: padding is no number of a token, or the module takes no attention_mask.
    """
    takes = inspect.signature(module.forward).parameters
    if padding is not None:
        _check_padding(padding, takes, what)
    name = next((n for n in INPUTS if n in takes), None)
    if name is None and padding is None:
        return
    forward = module.forward

    def plain(x: Tensor) -> Any:
        masks = {} if padding is None else {"attention_mask": mask_of(x, padding)}
        found = forward(x, **masks) if name is None else forward(**{name: x}, **masks)
        return getattr(found, "logits", found)

    module.forward = plain  # type: ignore[method-assign]  # of this object alone


def mask_of(x: Tensor, padding: int) -> Tensor:
    """[n, length] int64, 1 for a token that is read; of rows that are all padding, every one.

    A softmax over nothing would be no number.
    """
    real = x != padding
    return (real | ~real.any(1, keepdim=True)).long()


def _check_padding(padding: Any, takes: Any, what: str) -> None:
    if not isinstance(padding, int) or isinstance(padding, bool) or padding < 0:
        raise ConfigError(f"{what}: model.padding is {padding!r}; it must be the number of a token, or null")
    if "attention_mask" not in takes:
        raise ConfigError(f"{what}: its forward takes no attention_mask, so model.padding={padding} would "
                          "be read as text; leave it out, or take one")  # fmt: skip
