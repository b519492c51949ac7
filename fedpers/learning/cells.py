"""Recurrent layers that a stack of clients can run: torch.nn.LSTM, GRU and RNN, written out step by step.

vmap has no rule for torch's own, which is one operator and faster for one client alone.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpers.core.vmap import unwrapped

States = tuple[Tensor, ...]  # of one layer and direction, [n, width] each: (h, c), or (h,)
Step = Callable[[Tensor, Tensor, States], States]  # of the inputs' share of the gates, the states', states


class _Written(nn.RNNBase):
    """Runs torch's operator for one client, and the recurrence itself in a stack."""

    def forward(self, input, hx=None):  # type: ignore[no-untyped-def]  # torch's own has overloads
        """As torch's layer. Raises TypeError for packed sequences in a stack."""
        if unwrapped():
            return super().forward(input, hx)
        if not isinstance(input, Tensor):
            raise TypeError("a stack of clients cannot run packed sequences")
        alone = input.dim() == 2  # one sequence
        x = input.unsqueeze(1) if alone else input.transpose(0, 1) if self.batch_first else input
        given = _given(hx, alone)
        ends = []
        for depth in range(self.num_layers):
            found = []
            for back in range(1 + self.bidirectional):
                y, end = self._one(depth, back, x, given)
                found.append(y)
                ends.append(end)
            x = torch.cat(found, -1)
        last = [torch.stack(parts) for parts in zip(*ends, strict=True)]
        last = [t.squeeze(1) for t in last] if alone else last
        y = x.squeeze(1) if alone else x.transpose(0, 1) if self.batch_first else x
        return y, tuple(last) if len(last) > 1 else last[0]

    def _one(self, depth: int, back: int, x: Tensor, given: States | None) -> tuple[Tensor, States]:
        """One layer in one direction over x [T, n, inputs]: its outputs [T, n, width] and last states."""
        names = [f"weight_ih_l{depth}", f"weight_hh_l{depth}", f"bias_ih_l{depth}", f"bias_hh_l{depth}"]
        w, u, b, c = [getattr(self, n + "_reverse" * back, None) for n in names]  # without biases None
        assert w is not None and u is not None
        count, place = 1 + (self.mode == "LSTM"), depth * (1 + self.bidirectional) + back
        start = x.new_zeros(x.shape[1], self.hidden_size)
        states = (start,) * count if given is None else tuple([t[place] for t in given])
        step, outputs = STEPS[self.mode], []
        for share in (F.linear(x, w, b).flip(0) if back else F.linear(x, w, b)).unbind(0):
            states = step(share, F.linear(states[0], u, c), states)
            outputs.append(states[0])
        return torch.stack(outputs[::-1] if back else outputs), states


def _given(hx: Tensor | States | None, alone: bool) -> States | None:
    states = (hx,) if isinstance(hx, Tensor) else hx
    return tuple([t.unsqueeze(1) for t in states]) if states is not None and alone else states


def _lstm(x: Tensor, u: Tensor, states: States) -> States:
    i, f, g, o = (x + u).chunk(4, -1)
    c = f.sigmoid() * states[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru(x: Tensor, u: Tensor, states: States) -> States:
    (r, z, n), (s, y, m) = x.chunk(3, -1), u.chunk(3, -1)
    new, kept = (n + (r + s).sigmoid() * m).tanh(), (z + y).sigmoid()
    return (new + kept * (states[0] - new),)


def _rnn(x: Tensor, u: Tensor, states: States) -> States:
    return ((x + u).tanh(),)


def _relu(x: Tensor, u: Tensor, states: States) -> States:
    return ((x + u).relu(),)


STEPS: dict[str, Step] = {"LSTM": _lstm, "GRU": _gru, "RNN_TANH": _rnn, "RNN_RELU": _relu}


class ClientLSTM(_Written, nn.LSTM):
    """torch.nn.LSTM."""


class ClientGRU(_Written, nn.GRU):
    """torch.nn.GRU."""


class ClientRNN(_Written, nn.RNN):
    """torch.nn.RNN."""


WRITTEN: dict[type[nn.Module], type[nn.Module]] = {nn.LSTM: ClientLSTM, nn.GRU: ClientGRU, nn.RNN: ClientRNN}


def write_out(module: nn.Module) -> None:
    """Let a stack run the module's recurrent layers, but for those with Dropout between or a projection."""
    for layer in module.modules():
        if type(layer) in WRITTEN and not runs_alone(layer):
            layer.__class__ = WRITTEN[type(layer)]


def runs_alone(layer: nn.Module) -> bool:
    """Whether it is a recurrent layer that is not written out."""
    if not isinstance(layer, nn.RNNBase):
        return False
    return type(layer) not in {*WRITTEN, *WRITTEN.values()} or layer.dropout > 0 or layer.proj_size > 0
