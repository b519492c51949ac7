"""Recurrent layers in a stack are torch's: outputs, last states and gradients, in double precision."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

import fedpers
from fedpers.core import derivatives
from fedpers.learning.cells import runs_alone, write_out
from fedpers.learning.model import build_model

CLIENTS = 3
LAYERS = {
    "lstm": partial(nn.LSTM, 5, 4, 2, batch_first=True),
    "gru": partial(nn.GRU, 5, 4, 2, bidirectional=True),
    "rnn": partial(nn.RNN, 5, 4, nonlinearity="relu", bias=False),
    "tanh": partial(nn.RNN, 5, 4),
}


def sum_of(found: tuple[Tensor, Tensor | tuple[Tensor, ...]]) -> Tensor:
    y, last = found
    return y.square().sum() + sum(t.sin().sum() for t in ([last] if isinstance(last, Tensor) else last))


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("shape", [(6, 7, 5), (7, 5)])  # a batch, and one sequence
@pytest.mark.parametrize("kind", LAYERS)
def test_a_stack_is_its_clients(kind, shape, given):
    layer = LAYERS[kind]().double()
    draw = partial(torch.randn, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights = {k: draw(CLIENTS, *v.shape) for k, v in layer.named_parameters()}
    x = draw(CLIENTS, *shape)
    row = lambda k: {name: w[k] for name, w in weights.items()}  # noqa: E731
    starts = [tree(layer(x[k])[1], draw) for k in range(CLIENTS)] if given else [None] * CLIENTS
    whole = None if starts[0] is None else tuple(torch.stack(s) for s in zip(*starts, strict=True))

    def value(w, x, start):
        hx = start if start is None or len(start) > 1 else start[0]
        return sum_of(functional_call(layer, w, (x, hx)))

    wanted, values = [], []
    for k in range(CLIENTS):
        own = {name: w.clone().requires_grad_() for name, w in row(k).items()}
        values.append(value(own, x[k], starts[k]))
        wanted.append(dict(zip(own, torch.autograd.grad(values[-1], list(own.values())), strict=True)))
    write_out(layer)
    places = (0, 0, None if whole is None else 0)
    torch.testing.assert_close(vmap(value, places)(weights, x, whole), torch.stack(values))
    found = vmap(derivatives.grad(value), places)(weights, x, whole)
    torch.testing.assert_close(found, {k: torch.stack([w[k] for w in wanted]) for k in found})


def tree(last, draw):
    return tuple(draw(*t.shape) for t in ([last] if isinstance(last, Tensor) else last))


class Scaled(nn.LSTM):
    """Somebody's own."""

    def forward(self, input, hx=None):
        return super().forward(2 * input, hx)


@pytest.mark.parametrize(
    "layer", [nn.LSTM(3, 4, 2, dropout=0.5), nn.LSTM(3, 4, proj_size=2), Scaled(3, 4)], ids=type
)
def test_others_run_alone(layer):
    write_out(layer)
    assert runs_alone(layer)


def test_alone_the_operator_of_torch_runs():
    layer, x = nn.LSTM(3, 4), torch.randn(5, 2, 3)
    before = layer(x)[0]
    write_out(layer)
    assert torch.equal(layer(x)[0], before) and not runs_alone(layer)
    packed = nn.utils.rnn.pack_sequence([x[:, 0]])
    assert torch.equal(layer(packed)[0].data, layer(x[:, :1])[0][:, 0])
    with pytest.raises(TypeError, match="packed"):
        vmap(lambda w: functional_call(layer, w, (packed,))[0].data)(
            {k: v.expand(2, *v.shape) for k, v in layer.named_parameters()}
        )


def test_a_run_is_the_same_in_a_stack_and_in_a_loop(tmp_path):
    draw = torch.Generator().manual_seed(1)
    rows = [(torch.randn(8, 1, 4, 4, generator=draw), torch.arange(8) % 3) for _ in range(4)]
    data, models = fedpers.Federation.from_arrays(rows), {}
    for runner in ("loop", "stack"):
        words = [f"engine.runner={runner}", "method.local.lr=0.1"]
        net = {"name": "module", "path": "tests.own_nets:Rows"}
        run = fedpers.run("ditto", *words, data=data, model=net, rounds=3, out=tmp_path / runner)
        models[runner] = run.model(client=2).params
    torch.testing.assert_close(models["stack"], models["loop"])
    alone = build_model(
        "module", input_shape=(1, 4, 4), num_outputs=3, task="classification", path="tests.own_nets:Rows"
    )
    assert not alone.network.alone


def test_the_model_called_lstm_is_stacked():
    net = build_model("lstm", input_shape=(6,), num_outputs=5, task="tokens", vocabulary=5, hidden=8)
    assert not net.network.alone
