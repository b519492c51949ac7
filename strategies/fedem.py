"""FedEM: every client is a mixture of shared components, fitted by federated EM.

Marfoq, Neglia, Bellet, Kameni, Vidal, "Federated Multi-Task Learning under a Mixture of
Distributions", NeurIPS 2021, https://arxiv.org/abs/2108.10252, Algorithm 1 (FedEM).

    p_t(y | x) = Σ_m π_tm p_m(y | x),   p_m(y | x) ∝ exp(-l(h_{θ_m}(x), y))

    Server                                             Client t
    [S1] draw a set of r clients
    [S2] send θ_1..θ_M                         ---->   [C1] q_i(m) ∝ π_tm exp(-l(h_{θ_m}(x_i), y_i))
                                                       [C2] π_tm = 1/n_t Σ_i q_i(m), kept
                                                       [C3] each m: θ_mt = local SGD from θ_m on
                                                            1/n_t Σ_i q_i(m) l(h_θ(x_i), y_i)
    [S3] each m: θ_m = Σ_t n_t θ_mt / Σ_t n_t  <----   [C4] send θ_1t..θ_Mt

The batch loss in [C3] is divided by the number of samples in the batch, not by their
responsibilities: a component that is responsible for little moves little.

Deviations from the paper: none in the algorithm. Clients that were never drawn have π = 1/M.
Reductions: M = 1 is FedAvg; responsibilities that are 0 or 1 give hard clustering.
"""

import numpy as np
import torch
from torch import Tensor

from fedpers.clients.fedem import Components, FedEMConfig, ForNewcomer, Weighted
from fedpers.families.mixtures.simplex import with_rows
from fedpers.families.starts import refuse_equal, started
from fedpers.method import Params, PersonalizedStrategy, Roster, Round, record


@record
class State:
    """The shared components θ_1..θ_M."""

    thetas: tuple[Params, ...]
    pi: Tensor               # [N, M] π_t as clients told them; 1/M where one told nothing


class FedEM(PersonalizedStrategy):
    """Averages each component over the clients, weighted by numbers of samples."""

    weighs_by_samples = True
    config: FedEMConfig
    not_robust = ""
    one_mean = False

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """The first component is the model's initial one, the others have seeds of their own."""
        M = self.config.num_components
        seeds = rng.integers(2**31 - 1, size=M - 1)
        thetas = params, *(started(self.model, params, int(s), self.config.start) for s in seeds)
        refuse_equal(thetas, f"method.num_components={M} components")
        return State(thetas, torch.full((len(roster.ids), M), 1 / M, dtype=torch.float64))

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 1."""
        selected = self.sample(rng)                                                      # [S1]
        w = yield dict.fromkeys(selected, Components(s.thetas))                          # [S2]
        n = [self.num_examples(k) for k in w]
        parts = zip(*(reply.thetas for reply in w.values()), strict=True)
        told = {self.row[k]: reply.told.to(s.pi) for k, reply in w.items() if isinstance(reply, Weighted)}
        pairs = zip(parts, s.thetas, strict=True)
        means = tuple(self.average(part, n, m) for part, m in pairs)                     # [S3]
        return State(means, with_rows(s.pi, told))

    def evaluation_message(self, s: State, k: int) -> Components | ForNewcomer:
        """All components; each client mixes them by its own weights, which a new one has to find."""
        return ForNewcomer(s.thetas) if k in self.unseen else Components(s.thetas)

    def explain(self, s: State) -> dict[str, np.ndarray]:
        """The clients' mixture weights, a row a client, if they tell them (`tell_weights`)."""
        return {"membership": s.pi.cpu().numpy()} if self.config.tell_weights else {}

    def models(self, s: State) -> dict[str, Params]:
        """The components."""
        return {f"component_{m}": theta for m, theta in enumerate(s.thetas)}
