"""pFedGraph: the server infers who collaborates with whom, and mixes a model for each client.

Ye, Ni, Wu, Chen, Wang, "Personalized Federated Learning with Inferred Collaboration Graphs", ICML 2023,
https://proceedings.mlr.press/v202/ye23b.html.

    w°: the initial model; q_i: client i's share of the samples of a round; Δ_i = w_i - w°;
    u_i = w° and c_i = 0 before client i was drawn

    Server                                             Client i
    [S1] draw a set of r clients
    [S2] send u_i, c_i                         ---->   [C1] R(w) = - ⟨c_i, w⟩ / ‖w‖
                                                       [C2] w_i = local SGD on ℓ + λ R from u_i
    [S3] d_ij = - cos(Δ_i, Δ_j), -1 where      <----   [C3] send w_i
         the cosine is above s
    [S4] a_i = argmin Σ_j a_j d_ij + α ‖a - q‖² over the simplex, j among those of the round
    [S5] u_i = Σ_j a_ij w_j, c_i = Σ_j a_ij w_j / ‖w_j‖

Client i predicts with its own w_i.

Deviations from the paper: its text was not at hand beyond the abstract; this follows the authors' code, but
that [S4] is solved exactly, as the projection of q - d_i/(2α) onto the simplex (there: by a general solver),
that R draws w towards the models that were mixed, as Equation 1 is said to (the code pushes it away: here
λ < 0), and that a client may be drawn again after a pause.
Reductions: λ = 0 and α → ∞, all clients in every round: FedAvg whose clients predict with their own w_i.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedpers.clients.pfedgraph import Mixture, PFedGraphConfig
from fedpers.core.items import ModelBatch, sq_dists, weighted_sums
from fedpers.core.params import sq_norm
from fedpers.method import Params, PersonalizedStrategy, Roster, Round, record

TINY = 1e-30                              # a model that is 0 has no direction


@record
class State:
    """What the server mixed for the clients, by their place in the roster."""

    start: Params                        # w°, for whoever was never drawn
    mixed: dict[int, Mixture]
    graph: Tensor                        # [N, N] a as last used; row i: of u_i


def projected(v: np.ndarray) -> np.ndarray:
    """The point of the simplex that is nearest to each row of v [R, S] (Held, Wolfe, Crowder, 1974)."""
    falling = -np.sort(-v, axis=1)
    excess = (falling.cumsum(1) - 1) / np.arange(1, v.shape[1] + 1)
    support = (falling > excess).sum(1) - 1            # its entries are the first ones
    return np.asarray((v - excess[np.arange(len(v)), support][:, None]).clip(min=0))


def cosines(models: ModelBatch, start: int) -> np.ndarray:
    """[r, r] between models as seen from the last one, at place `start`; 0 where one lies there."""
    every = range(start + 1)
    far = sq_dists(models, every, every).numpy()
    square = far[start, :start]
    lengths = np.sqrt(np.outer(square, square))
    inner = np.add.outer(square, square) - far[:start, :start]
    return np.divide(inner, 2 * lengths, out=np.zeros_like(inner), where=lengths > 0)


class PFedGraph(PersonalizedStrategy):
    """Mixes models by weights that are large for models that moved in the same direction."""

    config: PFedGraphConfig
    not_robust = "its server takes no mean; it mixes a model for each client"

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """The state before any client has sent a model."""
        return State(params, {}, torch.eye(len(roster.ids), dtype=torch.float64))

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """One round."""
        selected, new = self.sample(rng), Mixture(s.start, {})                           # [S1]
        told = yield {k: s.mixed.get(self.row[k], new) for k in selected}                # [S2]
        rows, models = [self.row[k] for k in told], [r.w for r in told.values()]
        a = self._weights([*models, s.start], np.array([self.num_examples(k) for k in told]))
        u, c = self._mixtures(models, a)                                                 # [S5]
        self.round_log.pairs = len(rows) ** 2
        self.note(own_weight=float(a.diagonal().mean()))
        graph = s.graph.clone()
        graph[rows] = 0
        graph[np.ix_(rows, rows)] = torch.from_numpy(a)
        return replace(s, mixed=s.mixed | dict(zip(rows, map(Mixture, u, c), strict=True)), graph=graph)

    def _weights(self, models: list[Params], n: np.ndarray) -> np.ndarray:
        """[r, r] a; the last model is w°."""
        h, cos = self.config, cosines(ModelBatch(models), len(n))
        d = -np.where(cos > h.alike, 1.0, cos)                                           # [S3]
        return projected(n / n.sum() - d / (2 * h.alpha))                                # [S4]

    def _mixtures(self, models: list[Params], a: np.ndarray) -> tuple[list[Params], list[Params]]:
        """(all u_i, all c_i); c_i are empty where no client asks for them."""
        items, weights = ModelBatch(models), torch.from_numpy(a)
        u = weighted_sums(items, weights)
        if not self.config.lam:
            return u, [{}] * len(u)
        lengths = torch.stack([sq_norm(w) for w in models]).double().cpu().sqrt()
        return u, weighted_sums(items, weights / lengths.clamp(min=TINY))

    def evaluation_message(self, s: State, k: int) -> None:
        """Clients predict with their own models."""
        return

    def explain(self, s: State) -> dict[str, np.ndarray]:
        """The weights as last used (row i: the shares in the model that was mixed for client i)."""
        return {"collaboration": s.graph.cpu().numpy()}
