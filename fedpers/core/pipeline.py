"""How stored rows become a model's input tensors, as one record."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpers.core.pixels import white

KINDS = ("numbers", "bytes", "tokens")  # what x holds


@dataclass(frozen=True, eq=False)
class Pipeline:
    """How a federation's samples became tensors: the same for all its clients.

    x [n, ...] as stored: pixels become x/255 (of 16 bits x/65535); then (x - mean)·factor; then norm 1.
    """

    kind: str = "numbers"  # of KINDS
    columns: tuple[str, ...] = ()  # names of x's columns in their order; (): x is an array without names
    target: str | None = None  # the column of y in a table
    classes: tuple[str, ...] = ()  # what class 0, 1, ... is called in the data; (): regression, or unknown
    mean: np.ndarray | None = None  # float64, broadcast against a sample; None: nothing is subtracted
    factor: np.ndarray | None = None  # 1 / standard deviation, as `mean`
    unit_norm: bool = False
    words: tuple[str, ...] = ()  # what token 0, 1, ... of the one column is called; (): tokens are numbers

    def inputs(self, x: np.ndarray, dtype: torch.dtype) -> Tensor:
        """What a model takes for stored samples x [n, ...] whose columns are in order; never x's memory."""
        out = torch.from_numpy(np.array(x, dtype=x.dtype.newbyteorder("=")))
        exact = self.mean is not None and out.element_size() == 8  # a float32 has no room for 1.7e9 + 0.1
        out = out.to(torch.float64 if exact else dtype)
        if self.kind != "tokens":
            out.div_(white(x))
        if self.mean is not None and self.factor is not None:
            mean, factor = (torch.as_tensor(a, dtype=out.dtype) for a in (self.mean, self.factor))
            out.sub_(mean).mul_(factor)
        out = out.to(dtype)
        if self.unit_norm:
            norm = out.flatten(1).norm(dim=1).clamp_min(torch.finfo(dtype).tiny)
            out.div_(norm.reshape(-1, *[1] * (out.ndim - 1)))
        return out

    def plain(self) -> dict[str, Any]:
        """As values that JSON holds without loss; `of` reads them back."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in values.items()}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "Pipeline":
        """From what `plain` gave.

        Raises:
            TypeError: a key is not one of a pipeline.
        """
        made: dict[str, Any] = dict(plain)
        for key in ("columns", "classes", "words"):
            made[key] = tuple(made.get(key, ()))
        for key in ("mean", "factor"):
            made[key] = None if made.get(key) is None else np.array(made[key], dtype=np.float64)
        return cls(**made)
