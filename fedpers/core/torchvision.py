"""torchvision beside another build of torch."""

from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

import torch

T = TypeVar("T")
_LIBRARY: torch.library.Library | None = None
MISFIT = "operator torchvision::"  # what torch says of operators that its build lacks


def import_torchvision() -> ModuleType:
    """torchvision, also beside a torch build that its C++ ops were not compiled for.

    A CPU build of torch next to the registry's torchvision fails on `import torchvision` because
    its compiled library looks for CUDA. Declaring the two operators that the import asks for is
    enough: data sets, transforms and models work; only nms and its like do not.
    """
    global _LIBRARY
    try:
        import torchvision
    except RuntimeError as e:
        if MISFIT not in str(e):
            raise
        _LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
        for op in ("nms", "qnms"):
            _LIBRARY.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
    return torchvision


def with_torchvision(function: Callable[[], T]) -> T:
    """What a function gives that may import torchvision in its own way, as transformers does."""
    try:
        return function()
    except Exception as error:
        if not _of_misfit(error):
            raise
    import_torchvision()
    return function()


def _of_misfit(error: BaseException | None) -> bool:
    """Whether it was raised because torchvision was compiled for another build of torch."""
    return error is not None and (MISFIT in str(error) or _of_misfit(error.__cause__ or error.__context__))
