"""Whether clients with a module can be one stack under vmap, and how much memory a step of one takes."""

import logging

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedpers.core.derivatives import grad
from fedpers.core.rng import Stream
from fedpers.learning.cells import runs_alone
from fedpers.learning.draws import drawing
from fedpers.learning.module import tracking

log = logging.getLogger("fedpers")
TRIED = 2**24  # entries up to which a stack of two is tried; of larger ones few have room together


def why_alone(module: nn.Module, x: Tensor) -> str:
    """Why clients with such a module cannot be one stack; "" if they may.

    Args:
        x: two inputs.
    """
    reasons = [
        (bool(tracking(module)), "BatchNorm, whose statistics are each client's own"),
        (
            any(map(runs_alone, module.modules())),
            "a recurrent layer with Dropout, a projection or code of its own, which vmap cannot take",
        ),
    ]
    known = " and ".join(text for there, text in reasons if there)
    return known or _draws_elsewhere(module, x) or _fails(module, x)


def _draws_elsewhere(module: nn.Module, x: Tensor) -> str:
    """Whether training draws from torch beside nn.Dropout: such numbers would be all clients' alike."""
    module.train()
    with drawing([Stream(0, 0, 0)]), torch.no_grad(), torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        module(x)
        drew = not torch.equal(before, torch.get_rng_state())
    module.eval()
    return "random draws beside nn.Dropout (in functions, such as attention's own)" if drew else ""


def _fails(module: nn.Module, x: Tensor) -> str:
    """Whether a stack of two raises."""
    trained = {n: p.detach() for n, p in module.named_parameters() if p.requires_grad}
    if sum(p.numel() for p in trained.values()) > TRIED:
        return ""
    two = {n: p.expand(2, *p.shape) for n, p in trained.items()}
    xs, streams = torch.stack([x, x]), [Stream(0, 0, 0)] * 2

    def run(i: Tensor, w: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
        with drawing(streams, i):
            return grad(lambda w: functional_call(module, w, (x,)).square().sum())(w)

    try:
        with sdpa_kernel(SDPBackend.MATH):
            for trains in (True, False):
                module.train(trains)
                vmap(run)(torch.arange(2), two, xs)
    except Exception as error:  # whatever vmap or somebody's code raises
        log.debug("why a stack of two fails", exc_info=error)
        return "code that only one client at a time can run (it looks at values, or vmap lacks an operation)"
    finally:
        module.eval()
    return ""


def saved_bytes(module: nn.Module, x: Tensor) -> int:
    """Bytes a sample that a pass in training mode keeps for its gradient, but for parameters.

    Attention is written out, as in a stack: it keeps a number for each two tokens.
    """
    own = {t.untyped_storage().data_ptr() for t in (*module.parameters(), *module.buffers())}
    seen: dict[int, int] = {}

    def keep(t: Tensor) -> Tensor:
        seen[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    kept = {n: b.clone() for n, b in module.named_buffers()}
    module.train()
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t)
    draws = drawing([Stream(0, 0, 0)])
    with draws, torch.random.fork_rng(devices=[]), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), hooks:
        outputs = module(x)  # noqa: F841  (its graph holds what was saved: no address is used twice)
    module.eval()
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(kept[name])
    return sum(size for place, size in seen.items() if place not in own) // len(x)
