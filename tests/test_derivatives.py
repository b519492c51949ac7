"""Gradients under vmap are torch.func's, bit for bit, and import no compiler."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from fedpers.core import derivatives

Tree = dict[str, Tensor]


def energy(w: Tree, x: Tensor, b: Tensor) -> Tensor:
    return (torch.tanh(x @ w["weight"] + b) ** 2).sum() + w["weight"].pow(3).sum()


def arguments() -> tuple[Tree, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    new = [torch.randn(*shape, generator=draw) for shape in [(4, 3, 2), (4, 5, 3), (4, 2)]]
    return {"weight": new[0]}, new[1], new[2]


def same(found, wanted) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("argnums", [0, 1, (0, 2), (2,)])
def test_gradients_of_a_stack_are_torchs(argnums):
    args = arguments()
    wanted = torch.vmap(torch.func.grad(energy, argnums=argnums))(*args)
    same(torch.vmap(derivatives.grad(energy, argnums))(*args), wanted)


@pytest.mark.parametrize("outer", [torch.func.grad, derivatives.grad])
def test_a_gradient_is_differentiable(outer):
    """MAML: the slope after a step along the slope."""

    def after(grad):
        def loss(w, x, b):
            slope = grad(energy)(w, x, b)
            return energy({k: v - 0.1 * slope[k] for k, v in w.items()}, x, b)

        return loss

    args = arguments()
    same(
        torch.vmap(outer(after(derivatives.grad)))(*args),
        torch.vmap(torch.func.grad(after(torch.func.grad)))(*args),
    )


def test_products_with_the_hessian_are_right():
    """f = w³ x has f'' v = 6 w x v."""
    w, x, v = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0]), torch.tensor([1.0, -1.0])
    slope = derivatives.grad(lambda w: (w**3 * x).sum())
    same(torch.func.jvp(slope, (w,), (v,))[1], 6 * w * x * v)


def test_what_the_value_does_not_depend_on_has_slope_zero():
    x, y = torch.ones(2, 3), torch.ones(2, 2)
    found = torch.vmap(derivatives.grad(lambda x, y: (2 * x).sum(), (0, 1)))(x, y)
    same(found, (torch.full((2, 3), 2.0), torch.zeros(2, 2)))
    same(torch.vmap(derivatives.grad(lambda x: torch.ones(())))(x), torch.zeros(2, 3))


def test_grad_mode_outside_does_not_matter_and_inside_does():
    def half(x: Tensor) -> Tensor:
        with torch.no_grad():
            still = x**2
        return (x * still).sum()

    x = torch.tensor([2.0, 3.0])
    with torch.no_grad():
        same(derivatives.grad(half)(x), x**2)  # not 3 x²


def test_a_module_is_differentiated_with_others_parameters():
    module = torch.nn.Linear(3, 2)
    w, x = {k: torch.randn(4, *v.shape) for k, v in module.named_parameters()}, torch.randn(4, 5, 3)

    def loss(w, x):
        return functional_call(module, w, (x,)).square().mean()

    same(torch.vmap(derivatives.grad(loss))(w, x), torch.vmap(torch.func.grad(loss))(w, x))


RUN = """
import sys, tempfile, torch, fedpers

rows = [(torch.randn(8, 16), torch.arange(8) % 3) for _ in range(4)]
data = fedpers.Federation.from_arrays(rows)
module = {"name": "module", "path": "tests.own_nets:Plain"}
for method, model in [("lsgd", "logistic"), ("gpfl", "mlp"), ("ditto", module)]:
    fedpers.run(method, data=data, model=model, rounds=2, out=tempfile.mkdtemp())
print("torch._dynamo" in sys.modules)
"""


def test_runs_do_not_import_torchs_compiler():
    """It took two of the four seconds of a small run."""
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "False"
