"""pFedMe: personal models from Moreau envelopes of the clients' losses.

Dinh, Tran, Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020,
https://arxiv.org/abs/2006.08848, Algorithm 1.

    min_w 1/N Σ_i F_i(w),   F_i(w) = min_θ f_i(θ) + λ/2 ‖θ - w‖²

    Server                                             Client i
    [S1] draw a set of S clients
    [S2] send w to each of them                ---->   w_i = w; R times:
                                                       [C1] draw a minibatch D
                                                       [C2] θ_i ≈ argmin f_i(θ; D) + λ/2 ‖θ - w_i‖²:
                                                            K gradient steps from w_i
                                                       [C3] w_i -= η λ (w_i - θ_i)
                                                       [C4] keep θ_i
    [S3] w = (1 - β) w + β 1/S Σ_i w_i         <----   [C5] send w_i

The personal model is θ_i; [C3] is a gradient step on F_i, as ∇F_i(w) = λ (w - θ_i(w)).

Deviations from the paper: only the drawn clients work (there all do, most in vain); K fixed
steps instead of an accuracy δ; θ starts from w_i, which the paper leaves open.
Reductions: ηλ = 1 and β = 1 is FedProx, K steps a minibatch, with equal
weights for all clients.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpers.clients.pfedme import ClientState, PFedMeConfig, Weights
from fedpers.core.params import add, scale
from fedpers.families.global_model.strategy import GlobalModelStrategy
from fedpers.families.unified.mixture import MX2, MX2Settings
from fedpers.method import Params, Round


class PFedMe(GlobalModelStrategy):
    """Moves the global model towards the plain mean of the clients'."""

    config: PFedMeConfig
    not_robust = ""

    def round(self, s: Weights, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 1."""
        selected = self.sample(rng)                                                      # [S1]
        w = yield dict.fromkeys(selected, s)                                             # [S2]
        beta, average = self.config.beta, self.average([w[i].params for i in w], start=s.params)
        return Weights(add(scale(s.params, 1 - beta), average, beta))                    # [S3]

    @property
    def objective(self) -> MX2:
        """The objective in w and all θ_i jointly; it has the same minimum as that of the Moreau envelopes."""
        return MX2(MX2Settings(lam=self.config.lam), self.model, len(self.roster.ids))

    def point(self, client: Any, states: Sequence[ClientState]) -> tuple[Params, list[Params]]:
        """(the global model as w, the personal ones)."""
        return scale(self.state.params, 1 / self.objective.s), [m.theta for m in states]

    def evaluation_message(self, s: Weights, k: int) -> None:
        """Clients predict with their personal models."""
        return
