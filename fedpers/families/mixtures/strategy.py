"""What a strategy of mixtures has beside its round: the two blocks, their coupling, what is handed out."""

from abc import ABC
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fedpers.core.errors import ConfigError
from fedpers.core.params import Params, weighted_mean
from fedpers.core.pytree import record
from fedpers.families.mixtures.messages import FullGradients, Newcomer, Personal
from fedpers.families.mixtures.mixture import Mixture
from fedpers.families.mixtures.simplex import Affinity, affinity, laplacian, with_rows
from fedpers.families.mixtures.stationarity import Kept, stationarity
from fedpers.flower.roster import Roster
from fedpers.flower.strategy import PersonalizedStrategy, Round


@record("ppfl.State")
class State:
    """Both blocks of variables, and the output drawn so far."""

    theta: Params
    C: torch.Tensor  # [N, K] float64, rows by position in the roster
    kept: Kept | None = None  # with output=random: a State
    output = property(lambda self: self.kept.value if self.kept else self)


class MixtureStrategy(PersonalizedStrategy, ABC):
    """Canonical models θ and memberships C; a method gives `round`."""

    config: Any
    mixture = property(lambda self: Mixture.of(self.config, self.model))

    @property
    def needs(self) -> tuple[str, ...]:
        """Label counts, if clients are coupled by them."""
        return ("label_counts",) if self.config.affinity == "label_cosine" and self.config.lam else ()

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """Canonical models apart from each other, memberships uniform."""
        K, N = self.config.num_canonical, len(roster.ids)
        if self.config.algorithm == "rbcd" and self.num_sampled < N:
            raise ConfigError("method.algorithm=rbcd needs all clients: clients_per_round=null")
        C = torch.full((N, K), 1 / K, dtype=torch.float64, device=self.plan.device)
        return State(self.mixture.start(params, K, rng, self.config.start), C)

    def measure(self, s: State, eta_2: float) -> Round:
        """Note how far from stationary the state is (column stationarity); nothing if a client failed.

        Every client takes the full gradient in its membership, the mirror step by it, and the full gradient
        in θ; nothing moves. So it holds for any local training, and for clients that are not drawn.
        """
        a = self.pull(s)
        g = yield {k: FullGradients(s.theta, s.C[i], a[i], self.p(k), eta_2) for k, i in self.row.items()}
        if len(g) == len(self.row):
            C = with_rows(s.C, {self.row[k]: g[k].c for k in g})
            self.note(stationarity=stationarity(self.mean(g), s.C, C, eta_2))

    def p(self, k: int) -> float:
        """The weight of f_k in its membership's gradient."""
        weighted = self.config.membership_weighting == "p"
        return self.num_examples(k) / self.roster.num_total if weighted else 1.0

    def pull(self, s: State) -> torch.Tensor:
        """λ L C, [N, K]."""
        return self.config.lam * laplacian(self._affinity, s.C, self._degrees)

    def mean(self, w: dict[int, Any]) -> Params:
        """Σ_i p_i θ_i over those who sent, by their samples."""
        return weighted_mean([w[k].theta for k in w], [self.num_examples(k) for k in w])

    @cached_property
    def _affinity(self) -> Affinity:
        h, told = self.config, self.roster.properties
        return affinity(h.affinity if h.lam else "none", len(self.row), told, h.affinity_file)

    @cached_property
    def _degrees(self) -> torch.Tensor:
        return self._affinity(torch.ones(len(self.row), 1, dtype=torch.float64, device=self.plan.device))

    def evaluation_message(self, s: State, k: int) -> Personal | Newcomer:
        """All canonical models and the client's membership; new clients go on from 1/K."""
        theta, C = s.output.theta, s.output.C
        if k in self.unseen:
            return Newcomer(theta, torch.full_like(C[0], 1 / C.shape[1]))
        return Personal(theta, C[self.row[k]])

    def explain(self, s: State) -> dict[str, np.ndarray]:
        """Memberships [N, K]."""
        return {"membership": s.output.C.cpu().numpy()}

    def models(self, s: State) -> dict[str, Params]:
        """Every canonical model by itself."""
        return {f"canonical_{k}": m for k, m in enumerate(self.mixture.unstack(s.output.theta))}
