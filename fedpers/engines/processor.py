"""The device of a stack, CPU or GPU: how its products are computed, and its free memory."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from fedpers.learning.convolution import Way, convolutions
from fedpers.learning.kernels.dispatch import autograd_only
from fedpers.learning.kernels.graphs import Recorder, recorded_by


def arithmetic(
    precision: str, convolution: str, device: str, recorder: Recorder | None = None
) -> AbstractContextManager[None]:
    """Set how products of a stack are computed while this is open; `RunnerConfig` lists the values.

    Args:
        recorder: of local steps on a GPU; None: they are not recorded.
    """
    cuda = device.startswith("cuda")
    way = convolutions(_way(precision, convolution, cuda))
    return _rounded(precision, way, cuda, recorder) if cuda or precision == "bf16" else way


@contextmanager
def _rounded(
    precision: str, way: AbstractContextManager[None], cuda: bool, recorder: Recorder | None
) -> Iterator[None]:
    products = _products("ieee" if precision == "float32" else "tf32") if cuda else nullcontext()
    with products, way, recorded_by(recorder) if cuda else nullcontext():
        if precision != "bf16":
            yield
            return
        kind = "cuda" if cuda else "cpu"
        with autograd_only(), torch.autocast(kind, torch.bfloat16, cache_enabled=not cuda):
            yield


@contextmanager
def _products(precision: str) -> Iterator[None]:
    """Products of float32 numbers on a GPU: "ieee" or "tf32"; afterwards as the process had them."""
    cudnn: Any = torch.backends.cudnn
    places = torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn
    before = [place.fp32_precision for place in places]
    try:
        for place in places:
            place.fp32_precision = precision
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.fp32_precision = value


def _way(precision: str, convolution: str, cuda: bool) -> Way:
    if convolution == "auto" and cuda:
        return "products" if precision == "float32" else "by shape"
    return "products" if convolution == "products" else "grouped"


def free_mb(device: str) -> int:
    """MiB that a stack may take: an eighth of what a GPU has free, torch's own reserve among it.

    Twice: torch's steps, and a recording of them. And activations, which `Runner` cannot know.
    """
    if device.startswith("cuda"):
        known = torch.cuda.memory_stats_as_nested_dict(device)
        reserved, used = (known[what]["all"]["current"] for what in ("reserved_bytes", "allocated_bytes"))
        return int((torch.cuda.mem_get_info(device)[0] + reserved - used) / 2**23)
    return 1024
