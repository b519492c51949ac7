"""L2SGD+, client half. The algorithm box is in strategies/l2sgd.py."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedpers.core.params import add, combinations, sq_dist, zeros_like
from fedpers.families.disclosures import OWN_MODELS
from fedpers.families.unified.client import rows_at
from fedpers.families.unified.messages import Measure, Value
from fedpers.families.unified.saga import Average, Models, Run, saga_steps
from fedpers.learning.kernels.library import library
from fedpers.learning.sample_gradients import Factors, sample_gradients
from fedpers.method import Data, Params, PersonalizedClient, Stream, record


@dataclass(frozen=True)
class L2SGDConfig:
    """Hyper-parameters of L2SGD+."""

    lam: float = 0.5                      # λ: strength of the pull towards the mean
    eta: float = 0.1                      # η (α in its paper): step size
    p: float = 0.1                        # p: probability of averaging
    max_local: int = 1000                 # iterations after which a round ends without averaging
    report: bool = True                   # ask for the objective where it is evaluated

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        found = [] if 0 < self.p < 1 else [f"p={self.p}: must be between 0 and 1"]
        if self.lam < 0 or not self.eta > 0:
            found.append(f"lam={self.lam}, eta={self.eta}: must be at least 0, and positive")
        if self.max_local < 1:
            found.append(f"max_local={self.max_local}: must be at least 1")
        return found


@record
class ClientState:
    """The client's model, the pull it felt last, and each sample's last gradient by `sample_gradients`."""

    x: Params
    psi: Params
    J: Params
    J_mean: Params


class L2SGDClient(PersonalizedClient):
    """Steps on its own model with control variates; steps towards the mean when it is averaged."""

    config: L2SGDConfig
    disclosure = OWN_MODELS
    private = ("psi", "J", "J_mean")
    table = cached_property(lambda self: sample_gradients(self.model))

    @property
    def elementwise(self) -> bool:  # type: ignore[override]
        """Without a kernel, but for a gradient of one sample, which a step hardly notices."""
        return library() is None or not isinstance(self.table, Factors)

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """All control variates are 0."""
        zero = zeros_like(params)
        return ClientState(params, zero, self.table.zeros(params, len(data)), zero)

    def answer(self, order: Any, state: ClientState, data: Data, rng: Stream) -> tuple[Any, ClientState]:
        """Local steps, the averaging step, or the objective."""
        if isinstance(order, Average):
            return Models({}), self._average(order, state)
        if isinstance(order, Measure):
            away, loss = sq_dist(order.w, state.x), self.model.loss(state.x, data)
            return Value(loss + self.config.lam / 2 * away), state
        s = state if order.T == 0 else self._steps(order, state, data, rng)
        return Models(s.x if order.average else {}), s                                   # [C4]

    def _steps(self, order: Run, s: ClientState, data: Data, rng: Stream) -> ClientState:
        """All local steps, in one call where there is a kernel."""
        rates, models = (self.config.eta / order.M, self.config.p), (s.x, s.J_mean, s.psi)

        def draw() -> tuple[Tensor, Tensor]:
            return rows_at(data, rng.uniform(order.T)[:, None])

        if found := saga_steps(self.table, rates, models, s.J, data.block, draw):
            return ClientState(found[0], s.psi, found[2], found[1])
        index, weight = draw()
        s = replace(s, J={k: v.clone() for k, v in s.J.items()})
        for j, batch in zip(index.unbind(0), data.take(index, weight), strict=True):         # [C1]
            s = self._local(s, j, batch, data.num, order.M)
        return s

    def _local(self, s: ClientState, j: Tensor, batch: Data, n: Tensor, M: int) -> ClientState:
        """A step on sample j [1]; J is changed in place, on a copy of the round's own."""
        h, g = self.config, self.table.take(s.x, batch)
        change = self.table.difference(g, {k: v[j] for k, v in s.J.items()}, batch)
        x = add(s.x, add(add(s.J_mean, s.psi), change, 1 / (1 - h.p)), -h.eta / M)       # [C2]
        for k, v in s.J.items():
            v.index_put_((j,), g[k])                                                     # [C3]
        return ClientState(x, s.psi, s.J, add(s.J_mean, change, 1 / n))

    def _average(self, order: Average, s: ClientState) -> ClientState:
        h, rate, J = self.config, self.config.eta / order.M, s.J_mean
        pull = rate * h.lam / h.p
        shares = torch.tensor(((1 - pull, pull, rate * (1 / h.p - 1), -rate),            # [C5]
                               (h.lam, -h.lam, 0, 0)), dtype=torch.float64)              # [C6]
        x, psi = combinations((s.x, order.mean, s.psi, J), shares)
        return ClientState(x, psi, s.J, J)

    def personal(self, shared: None, state: ClientState) -> Params:
        """The client's own model."""
        return state.x

    def work(self, order: Any, n: int) -> int:
        """One sample gradient a local step."""
        return order.T if isinstance(order, Run) else 0
