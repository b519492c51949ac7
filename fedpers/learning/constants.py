"""The constants of a model: frozen parameters, and buffers that no pass changes."""

import hashlib

import torch
from torch import Tensor

from fedpers.core.params import Params


def moved(value: Tensor, like: Tensor) -> Tensor:
    """The value on the device of `like`; float32 takes the dtype of `like`, other types keep theirs."""
    return value.to(like) if value.dtype == torch.float32 else value.to(like.device)


def digest_of(constants: Params) -> str:
    """sha256 over names, types, shapes and bytes; "" of nothing."""
    if not constants:
        return ""
    found = hashlib.sha256()
    for name, value in sorted(constants.items()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)};".encode())
        found.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def other_base(what: str, here: str, there: str) -> str:
    """The message where frozen parameters of two processes differ."""
    return (
        f"{what}: its frozen parameters are not those of the process that leads the run (sha256 "
        f"{here[:12] or 'none'} here, {there[:12] or 'none'} there); the module must make the same ones "
        "everywhere: the same code, the same versions, the same model.weights=FILE"
    )
