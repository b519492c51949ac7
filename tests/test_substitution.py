"""A module computes with other tensors in place of its own, and has its own again afterwards."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedpers.learning.substitution import Substitution


class Shared(nn.Module):
    """Two layers with one weight, a normalised weight, batch statistics, and a buffer that is replaced."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.third = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return self.norm(self.third(torch.relu(self.second(self.first(x)))))


def others(module: nn.Module) -> dict[str, Tensor]:
    """A tensor for each parameter and buffer."""
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {k: v.detach().clone() + (0.5 if v.is_floating_point() else 0) for k, v in named.items()}


def test_it_is_functional_call() -> None:
    torch.manual_seed(0)
    module, x = Shared(), torch.randn(6, 4)
    own = {k: v.clone() for k, v in module.state_dict().items()}
    mine, theirs = others(module), others(module)
    for values in (mine, theirs):
        for value in values.values():
            value.requires_grad_(value.is_floating_point() and value.ndim > 0)
    del mine["norm.bias"], theirs["norm.bias"]  # what is not given is the module's own
    names = ["first.weight", "third.parametrizations.weight.original0", "norm.weight"]
    for values in (mine, theirs):  # statistics are written in place, into what was given
        for name in ("norm.running_mean", "norm.running_var"):
            values[name] = values[name].detach()
    a = Substitution(module)(mine, x)
    b = functional_call(module, theirs, (x,))
    assert torch.equal(a, b)
    for p, q in zip(
        *(torch.autograd.grad(y.square().sum(), [v[n] for n in names]) for y, v in ((a, mine), (b, theirs))),
        strict=True,
    ):
        assert torch.equal(p, q)
    assert torch.equal(mine["norm.running_mean"], theirs["norm.running_mean"])
    assert all(torch.equal(v, own[k]) for k, v in module.state_dict().items())


def test_a_stack_of_clients() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    call, x = Substitution(module), torch.randn(5, 4, 3)
    stack = {k: torch.randn(5, *v.shape) for k, v in module.named_parameters()}
    found = vmap(call)(stack, x)
    for i in range(5):
        alone = functional_call(module, {k: v[i] for k, v in stack.items()}, (x[i],))
        torch.testing.assert_close(found[i], alone)


def test_after_an_error_the_module_has_its_own_tensors() -> None:
    module = nn.Linear(3, 2)
    own = module.weight
    with pytest.raises(RuntimeError):
        Substitution(module)({"weight": torch.zeros(2, 5)}, torch.zeros(1, 3))
    assert module.weight is own


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(KeyError):
        Substitution(nn.Linear(3, 2))({"wieght": torch.zeros(2, 3)}, torch.zeros(1, 3))
