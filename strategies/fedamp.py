"""FedAMP: each client gets a mixture of all clients' models in which those like its own count most.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang, "Personalized Cross-Silo Federated Learning on Non-IID Data",
AAAI 2021, https://arxiv.org/abs/2007.03797, Algorithm 1, with A(x) = 1 - e^{-x/σ}.

    Server                                             Client i
    [S1] draw a set of r clients
    [S2] for each: ξ_ij = α A'(‖w_i - w_j‖²), j ≠ i,
         ξ_ii = 1 - Σ_{j≠i} ξ_ij
    [S3] send u_i = Σ_j ξ_ij w_j               ---->   [C1] w_i = argmin F_i(w) + λ/(2α) ‖w - u_i‖²,
                                                            by local SGD from its w_i
    [S4] keep w_i                              <----   [C2] send w_i

Deviations from the paper: clients are sampled, and the mixture is over those that have sent a model;
where α is so large that Σ_{j≠i} ξ_ij exceeds 1, the ξ_ij are scaled to sum to 1 (the paper asks for
an α so small that they do not); α stays the same in all rounds.
Reductions: λ = 0 is local training bit for bit; so is σ → 0 up to a pull towards one's own last model.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedpers.clients.fedamp import CloudModel, FedAMPConfig
from fedpers.core.items import ModelBatch, sq_dists, weighted_sums
from fedpers.method import Params, PersonalizedStrategy, Roster, Round, record


@record
class State:
    """What the server knows of the clients, by their place in the roster."""

    start: Params                        # the model of whoever has not sent one
    models: dict[int, Params]            # w_i as last sent
    xi: Tensor                           # [N, N] ξ as last used; row i: of u_i


class FedAMP(PersonalizedStrategy):
    """Mixes the clients' models, with larger weights for models that are near each other."""

    config: FedAMPConfig
    not_robust = "its server takes no mean; it mixes a model for each client"

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """The state before any client has sent a model."""
        return State(params, {}, torch.eye(len(roster.ids), dtype=torch.float64))

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 1."""
        rows = [self.row[k] for k in self.sample(rng)]                                   # [S1]
        place = {j: i for i, j in enumerate(sorted({*s.models, *rows}))}
        every, xi = ModelBatch([s.models.get(j, s.start) for j in place]), s.xi.clone()
        xi[rows] = self._weights(s, rows, every, place)                                  # [S2]
        mixed = zip(rows, weighted_sums(every, xi[rows][:, list(place)]), strict=True)
        self.round_log.pairs = 2 * len(rows) * len(s.models)
        replies = yield {self.roster.ids[i]: CloudModel(u) for i, u in mixed}            # [S3]
        models = s.models | {self.row[k]: reply.w for k, reply in replies.items()}       # [S4]
        return replace(s, models=models, xi=xi)

    def _weights(self, s: State, rows: list[int], every: ModelBatch, place: dict[int, int]) -> Tensor:
        """[R, N] ξ_ij for the R clients `rows`; client j's model has this place among all."""
        h, xi, own = self.config, np.zeros((len(rows), len(s.xi))), (np.arange(len(rows)), rows)
        if s.models:
            far = sq_dists(every, [place[i] for i in rows], [place[j] for j in s.models]).numpy()
            xi[:, list(s.models)] = h.alpha / h.sigma * np.exp(-far / h.sigma)
        xi[own] = 0
        xi /= np.maximum(xi.sum(1, keepdims=True), 1)
        xi[own] = np.maximum(1 - xi.sum(1), 0)
        return torch.from_numpy(xi)

    def evaluation_message(self, s: State, k: int) -> None:
        """Clients predict with their own models."""
        return

    def explain(self, s: State) -> dict[str, np.ndarray]:
        """ξ as last used (row i: the shares in client i's mixture)."""
        return {"collaboration": s.xi.cpu().numpy()}
