"""FedAvgM, FedAdam, FedYogi: FedAvg whose server takes a step of an optimiser on the mean update.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive Federated Optimization",
ICLR 2021, https://arxiv.org/abs/2003.00295, Algorithm 2; FedAvgM is of Hsu, Qi, Brown, "Measuring the
Effects of Non-Identical Data Distribution for Federated Visual Classification", arXiv 1909.06335.

    Server                                             Client i
    [S1] draw a set S of clients
    [S2] send x to each of them                ---->   [C1] x_i = local SGD on F_i from x
    [S3] Δ = Σ_i n_i (x_i - x) / Σ_i n_i       <----   [C2] send x_i
    [S4] FedAvgM:  m = β m + Δ,  x += η m
    [S5] FedAdam:  v = β2 v + (1 - β2) Δ²
         FedYogi:  v = v - (1 - β2) Δ² sign(v - Δ²)
    [S6] both:     m = β1 m + (1 - β1) Δ,  x += η m / (√v + τ)

At the start m = 0 and v = τ². There is no correction of the moments' start, as in the paper.

Deviations from the paper: Δ is weighted by samples, as in the paper's experiments; Algorithm 2 prints
a plain mean. Clients send x_i, and the server forms the update.
Reductions: FedAvgM with β = 0 and η = 1 is FedAvg bit for bit; FedAdam with β1 = 0, β2 = 1 and
η = 2τ is FedAvg, for then √v stays τ.
"""

from typing import TypeGuard

import numpy as np
from torch import Tensor

from fedpers.clients.fedopt import FedAdamConfig, FedAvgMConfig
from fedpers.core.params import Params, add, blend, sub, zeros_like
from fedpers.families.global_model.client import Weights
from fedpers.families.global_model.strategy import GlobalModelStrategy
from fedpers.method import Roster, Round, record


@record
class State:
    """The global model x, and what the server's optimiser remembers."""

    params: Params
    m: Params                            # moving mean of updates
    v: Params                            # of their squares; {} for FedAvgM


class FedOpt(GlobalModelStrategy):
    """Moves the global model by the server's own optimiser."""

    config: FedAvgMConfig | FedAdamConfig
    not_robust = ""

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:  # type: ignore[override]
        """The model's initial parameters, and the optimiser before its first step."""
        h = self.config
        v = {k: p.new_full(p.shape, h.tau**2) for k, p in params.items()} if _adapts(h) else {}
        return State(params, zeros_like(params), v)

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 2."""
        selected = self.sample(rng)                                                      # [S1]
        x = yield dict.fromkeys(selected, Weights(s.params))                             # [S2]
        n = [self.num_examples(i) for i in x]
        mean = self.average([x[i].params for i in x], n, s.params)
        delta, h = sub(mean, s.params), self.config                                      # [S3]
        if not _adapts(h):
            reached = blend(s.params, mean, h.eta)    # x + ηΔ, and the mean itself for η = 1
            return State(add(reached, s.m, h.eta * h.beta), add(delta, s.m, h.beta), {})     # [S4]
        v = {k: _second_moment(h, s.v[k], d * d) for k, d in delta.items()}              # [S5]
        m = blend(delta, s.m, h.beta1)
        step = {k: m[k] / (v[k].sqrt() + h.tau) for k in m}
        return State(add(s.params, step, h.eta), m, v)                                   # [S6]

    def evaluation_message(self, s: State, k: int) -> Weights:  # type: ignore[override]
        """The global model."""
        return Weights(s.params)


def _adapts(config: FedAvgMConfig | FedAdamConfig) -> TypeGuard[FedAdamConfig]:
    """Whether the server's steps are scaled by a second moment."""
    return config.rule != "momentum"


def _second_moment(h: FedAdamConfig, v: Tensor, square: Tensor) -> Tensor:
    """v after a round whose squared update is `square`."""
    excess = v - square
    return v - (1 - h.beta2) * (excess if h.rule == "adam" else square * excess.sign())
