"""torchvision beside another build of torch."""

from types import ModuleType

import torch

_LIBRARY: torch.library.Library | None = None


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
        if "operator torchvision::" not in str(e):
            raise
        _LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
        for op in ("nms", "qnms"):
            _LIBRARY.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
    return torchvision
