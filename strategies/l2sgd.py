"""L2SGD+: local gradient descent with random averaging and control variates.

Hanzely and Richtárik, "Federated Learning of a Mixture of Global and Local Models",
https://arxiv.org/abs/2002.05516. Objective MX, which is MX2 with the best w put in:

    min 1/M Σ_m f'_m(x_m) + (λ/2M) Σ_m ‖x_m - x̄‖²

    Server                                             Client m, all of them
    [S1] flip the coin of each iteration until it
         says averaging (p), after T others
    [S2] send T                                ---->   T times:
                                                       [C1] draw a sample j, g = ∇f'_{m,j}(x_m)
                                                       [C2] x_m -= η/M [(g - J_{m,j})/(1-p)
                                                            + 1/n Σ_i J_{m,i} + Ψ_m]
                                                       [C3] J_{m,j} = g
    [S3] x̄ = 1/M Σ_m x_m                       <----   [C4] send x_m
    [S4] send x̄                                ---->   [C5] x_m -= η/M [λ(x_m - x̄)/p - (1/p - 1) Ψ_m
                                                            + 1/n Σ_i J_{m,i}]
                                                       [C6] Ψ_m = λ(x_m - x̄), x_m before [C5]

Deviations from the paper: none known; a client's whole model is sent, so x_m is not private here.
The mean of a round (what is evaluated as the shared model) is the one before the averaging step; the
objective is taken after it, with the models' mean as it is then, for which they are sent once more.
Reductions: λ = 0 is SAGA on every client alone, at rate η/M.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedpers.clients.l2sgd import ClientState, L2SGDConfig
from fedpers.core.params import mean, scale
from fedpers.families.unified.messages import Measure
from fedpers.families.unified.mixture import MX2, MX2Settings
from fedpers.families.unified.saga import Average, Run
from fedpers.method import Params, PersonalizedStrategy, Roster, Round, record


@record
class State:
    """The mean of the last averaging, and the numbers of iterations and communications so far."""

    mean: Params
    iterations: int
    communications: int


class L2SGD(PersonalizedStrategy):
    """Averages whole models at random iterations; takes every client in every round."""

    config: L2SGDConfig
    not_robust = "clients move their own models towards the mean that its theory needs"
    takes_all = True

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """All models start alike."""
        return State(params, 0, 0)

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """Iterations up to an averaging."""
        T, M = self._local_steps(rng), len(self.roster.ids)                              # [S1]
        average = self.config.max_local > T
        like = s.mean if average else {}
        replies = yield dict.fromkeys(self.roster.ids, Run(T, average, M, like))         # [S2]
        if average:
            x = mean([r.x for r in replies.values()])                                    # [S3]
            yield dict.fromkeys(self.roster.ids, Average(x, M))                          # [S4]
            s = State(x, s.iterations, s.communications + 1)
        s = State(s.mean, s.iterations + T + average, s.communications)
        self.note(iterations=s.iterations, communications=s.communications,
                  beta_sample_grads=s.iterations - s.communications)
        if self.config.report and self.evaluates(t):
            zero = torch.zeros((), dtype=torch.float64)
            now = yield dict.fromkeys(self.roster.ids, Run(0, True, M, s.mean))
            center = mean([r.x for r in now.values()])
            found = yield dict.fromkeys(self.roster.ids, Measure(center, M, zero))
            self.note(objective=sum(float(v.value) for v in found.values()) / M)
        return s

    def _local_steps(self, rng: np.random.Generator) -> int:
        T = 0
        while self.config.max_local > T and rng.random() >= self.config.p:
            T += 1
        return T

    @property
    def objective(self) -> MX2:
        """MX as a problem in w and all x_m; the best w is their mean."""
        return MX2(MX2Settings(lam=self.config.lam), self.model, len(self.roster.ids))

    def point(self, client: Any, states: Sequence[ClientState]) -> tuple[Params, list[Params]]:
        """(the models' mean as w, the models)."""
        models = [m.x for m in states]
        return scale(mean(models), 1 / self.objective.s), models

    def evaluation_message(self, s: State, k: int) -> None:
        """Clients predict with their own models."""
        return

    def models(self, s: State) -> dict[str, Params]:
        """The mean of all models."""
        return {"mean": s.mean}
