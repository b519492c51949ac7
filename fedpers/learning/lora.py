"""Low-rank adapters (LoRA) on the linear layers of any module; what they adapt is frozen.

Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang, Chen, "LoRA: Low-Rank Adaptation of Large Language Models",
ICLR 2022, https://arxiv.org/abs/2106.09685: y = W x + b + α/r B A x, A [r, in] drawn, B [out, r] 0 first.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpers.core.errors import ConfigError, unknown
from fedpers.core.params import Params

KEYS = ("rank", "alpha", "targets", "dropout", "dual")

PAIRS = (("lora_A", "lora_B"), ("own_lora_A", "own_lora_B"))  # names of factors, A [r, in] and B [out, r]


@dataclass(frozen=True)
class Lora:
    """What model.lora says."""

    rank: int
    alpha: float  # of α/r; the rank if it is not given, a factor of 1
    targets: tuple[str, ...] | None = None  # patterns of names of linear layers, or how names end; None: all
    dropout: float = 0.0  # of what A sees, while a client trains
    dual: bool = False  # a second adapter beside each layer, called own_lora: one to share, one to keep

    @classmethod
    def of(cls, given: Any, what: str) -> "Lora":
        """The values of a mapping, checked.

        Raises:
            ConfigError: names the key and the remedy.
        """
        if not isinstance(given, Mapping) or "rank" not in given:
            raise ConfigError(f"{what}: model.lora is {given!r}; it must be {{rank: 4, alpha: 8}}, maybe "
                              "with targets: [patterns] and dropout")  # fmt: skip
        wrong = [key for key in given if key not in KEYS]
        if wrong:
            raise ConfigError(f"{what}: {unknown('key of model.lora', str(wrong[0]), KEYS)}")
        found = {"alpha": given["rank"], "targets": None, "dropout": 0.0, "dual": False, **given}
        for key, (fits, must) in RULES.items():
            if not fits(found[key]):
                raise ConfigError(f"{what}: model.lora.{key} is {found[key]!r}; it must be {must}")
        targets = found["targets"]
        alpha, dropout = float(found["alpha"]), float(found["dropout"])
        return cls(int(found["rank"]), alpha, targets and tuple(targets), dropout, found["dual"])


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _names(value: Any) -> bool:
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    return value is None or (listed and len(value) > 0 and all(isinstance(v, str) for v in value))


RULES = {
    "rank": (lambda v: _number(v) and v == int(v) and v >= 1, "a whole number, 1 or more"),
    "alpha": (lambda v: _number(v) and v > 0, "a number above 0"),
    "targets": (_names, "a list of patterns of layers' names, [query, value]"),
    "dropout": (lambda v: _number(v) and 0 <= v < 1, "at least 0 and below 1"),
    "dual": (lambda v: isinstance(v, bool), "true or false"),
}


class LoraLinear(nn.Linear):
    """A linear layer with an adapter beside it; weight and bias are those of the layer it replaces."""

    def __init__(self, layer: nn.Linear, lora: Lora) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self.adapters = PAIRS[: 1 + lora.dual]
        for A, B in self.adapters:
            setattr(self, A, nn.Parameter(torch.empty(lora.rank, layer.in_features)))
            setattr(self, B, nn.Parameter(torch.zeros(layer.out_features, lora.rank)))
            nn.init.kaiming_uniform_(getattr(self, A), a=math.sqrt(5))
        self.scale = lora.alpha / lora.rank
        self.lora_drop = nn.Dropout(lora.dropout)

    def forward(self, input: Tensor) -> Tensor:
        """W x + b + α/r B A x, of inputs [..., in]; in a stack all clients' share one product with W."""
        outputs, seen = F.linear(input, self.weight, self.bias), self.lora_drop(input)
        for A, B in self.adapters:
            outputs = outputs + self.scale * F.linear(F.linear(seen, getattr(self, A)), getattr(self, B))
        return outputs


def adapt(module: nn.Module, lora: Lora, head: str) -> None:
    """Freeze the module but for its head, and put adapters beside the linear layers `lora.targets`.

    Args:
        head: the name of its last linear layer, which is trained whole.
    """
    module.requires_grad_(False)
    module.get_submodule(head).requires_grad_(True)
    for name in lora.targets or ():
        layer = module.get_submodule(name)
        if not isinstance(layer, LoraLinear):  # one layer in two places has one adapter
            _replace(module, layer, LoraLinear(layer, lora))  # type: ignore[arg-type]
    for layer in module.modules():
        if isinstance(layer, nn.TransformerEncoderLayer):
            layer.activation_relu_or_gelu = 0  # else torch reads weights past the layers that hold them


def _replace(module: nn.Module, old: nn.Module, new: nn.Module) -> None:
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if child is old:
                setattr(parent, name, new)


def _called(module: nn.Module, x: Any) -> set[int]:
    """Which layers a pass in training mode calls, by identity."""
    found: set[int] = set()
    kept = {n: b.clone() for n, b in module.named_buffers()}  # BatchNorm counts batches
    hooks = [m.register_forward_pre_hook(lambda m, _: found.add(id(m))) for m in module.modules()]
    try:
        with torch.no_grad():
            module.train()
            module(x)
    finally:
        module.eval()
        for hook in hooks:
            hook.remove()
        for name, buffer in module.named_buffers():
            buffer.copy_(kept[name])
    return found


def with_targets(lora: Lora, module: nn.Module, head: str, x: Tensor, what: str) -> Lora:
    """The same with the names of the layers that its patterns fit; without patterns of all linear layers.

    Args:
        x: two inputs; layers that a pass does not call cannot be adapted.

    Raises:
        ConfigError: a pattern fits no linear layer that a pass calls.
    """
    called = _called(module, x)
    layers = {n: m for n, m in module.named_modules(remove_duplicate=False) if n and n != head}
    usable = [n for n, m in layers.items() if type(m) is nn.Linear and id(m) in called]
    if lora.targets is None:
        chosen, wanted = usable, ["(all linear layers)"]
    else:
        chosen = [n for n in usable if any(_fits(n, pattern) for pattern in lora.targets)]
        wanted = [p for p in lora.targets if not any(_fits(n, p) for n in usable)]
    if wanted and (lora.targets is not None or not chosen):
        others = [n for n in layers if _fits(n, wanted[0])]
        why = f"'{others[0]}' is a {type(layers[others[0]]).__name__}" if others else "there is none"
        raise ConfigError(
            f"{what}: model.lora.targets: '{wanted[0]}' fits no torch.nn.Linear that a pass calls, but for "
            f"the head '{head}': {why}; such are {', '.join(usable[:12]) or 'none'}"
        )
    return replace(lora, targets=tuple(chosen))


def _fits(name: str, pattern: str) -> bool:
    """Whether the pattern fits the whole name or how it ends: `query` fits `encoder.0.query`."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def merged(module: nn.Module, params: Params) -> Params:
    """What a module without adapters needs to give the same outputs.

    Args:
        module: with adapters; its own numbers are not read where `params` has others.
        params: {name in the module: tensor}.

    Returns:
        `params` without adapters, their products added to the weights beside them.
    """
    whole = dict(params)
    for place, layer in module.named_modules():
        if isinstance(layer, LoraLinear):
            for pair in layer.adapters:
                A, B = (whole.pop(f"{place}.{name}") for name in pair)
                whole[f"{place}.weight"] = whole[f"{place}.weight"] + layer.scale * B @ A
    return whole
