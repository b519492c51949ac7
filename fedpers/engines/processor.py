"""What a stack runs on, a CPU or a GPU: how its products are computed, its clock, its free memory."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedpers.learning.convolution import as_products
from fedpers.learning.kernels.dispatch import autograd_only


@contextmanager
def arithmetic(precision: str, convolution: str, device: str) -> Iterator[None]:
    """How the products of a stack are computed while this is open; `RunnerConfig` has the words."""
    cuda = device.startswith("cuda")
    products = convolution == "products" or (convolution == "auto" and cuda)
    if cuda:
        torch.backends.cuda.matmul.allow_tf32 = precision != "float32"
        torch.backends.cudnn.allow_tf32 = precision != "float32"
    with as_products(products):
        if precision != "bf16":
            yield
            return
        kind = "cuda" if cuda else "cpu"
        with autograd_only(), torch.autocast(kind, torch.bfloat16):
            yield


def clock(device: str) -> float:
    """Seconds: of this process's work on a CPU, which other processes do not disturb."""
    if not device.startswith("cuda"):
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def free_mb(device: str) -> int:
    """MiB that a stack may take: half of what a GPU has free."""
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(device)[0] / 2**21)
    return 1024
