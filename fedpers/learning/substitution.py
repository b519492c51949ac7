"""Calls a module with other tensors in place of its parameters and buffers.

As torch.func.functional_call does, which looks for every name in every call: a third of what a small
client's steps take.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

Store = dict[str, Tensor | None]  # a layer's own parameters, or its buffers


class Substitution:
    """Where a module keeps its tensors, looked up once."""

    def __init__(self, module: nn.Module) -> None:
        """`module` keeps its layers; names are those of its named_parameters and named_buffers."""
        self.module = module
        stores: list[tuple[Store, str]] = [
            (store, name) for layer in module.modules() for store in _stores(layer) for name in store
        ]
        named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        self._places = {
            name: [(s, key) for s, key in stores if s[key] is tensor] for name, tensor in named.items()
        }  # a tensor that two layers share has two

    def __call__(self, values: Mapping[str, Tensor], x: Any) -> Tensor:
        """The module's outputs of x, with `values` by name; afterwards it has its own tensors again."""
        places = [(s, key, value) for name, value in values.items() for s, key in self._places[name]]
        own = [(s, key, s[key]) for s, key, _ in places]
        try:
            for store, key, value in places:
                store[key] = value
            return self.module(x)  # type: ignore[no-any-return]
        finally:
            for store, key, before in own:
                store[key] = before


def _stores(layer: nn.Module) -> tuple[Store, Store]:
    return layer._parameters, layer._buffers  # type: ignore[return-value]
