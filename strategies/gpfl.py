"""GPFL: class embeddings and a conditional valve for all, which turn features to a client's own classes.

Zhang, Hua, Wang, Song, Xue, Ma, Cao, Guan, "GPFL: Simultaneously Learning Global and Personalized Feature
Information for Personalized Federated Learning", ICCV 2023, https://arxiv.org/abs/2308.10279.

    body f, z = f(x); embeddings E [K, M] of K classes (GCE); valve V (CoV), V(z, u) =
    ReLU((γ(u) + 1) z + β(u)), γ and β each LayerNorm(ReLU(linear)); personal head h_i; E°: E as received

    Server                                             Client i
    [S1] draw a set of r clients
    [S2] send f, E, V                          ---->   [C1] g = Σ_c E°_c / K, p_i = Σ_c n_c E°_c / n
                                                       [C2] z_P = V(z, p_i), z_G = V(z, g)
                                                       [C3] F = ℓ(h_i(z_P), y)
                                                       [C4]     - log softmax_y(cos(z_G, E))
                                                                + λ ‖z_G - E°_y‖, mean over samples
                                                       [C5] local SGD on F + μ/2 (‖E‖² + ‖V‖²),
                                                            in f, E, V and h_i
    [S3] mean of f_i, E_i, V_i by n_i          <----   [C6] send f_i, E_i, V_i; keep h_i

Client i predicts with h_i(V(f(x), p_i)).

Deviations from the paper: its text was not at hand beyond the abstract; this is the method as the
authors' library has it, but that g and p_i are of the received E (there: of the client's own E before it
is overwritten, and 0 in the first round), that distances are averaged over samples (there: one norm over
a batch), and that all parts, heads too, start alike for all clients.
"""

import numpy as np
import torch

from fedpers.clients.gpfl import EMBEDDINGS, VALVE, GPFLConfig, SharedPart
from fedpers.families.split_models.strategy import SplitStrategy
from fedpers.learning.classes import check_classes
from fedpers.learning.layers import linear_start
from fedpers.method import Params, Roster, split


class GPFL(SplitStrategy):
    """Averages bodies, embeddings and valves, weighted by numbers of samples; heads stay where they are."""

    config: GPFLConfig

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> SharedPart:
        """The model's body, embeddings from a normal distribution, and a valve as torch's layers start.

        Raises:
            ConfigError: the data have no classes.
        """
        check_classes(self.model, "gpfl has an embedding of each class")
        body, like = split(params, self.model.is_head)[1], next(iter(params.values()))
        K, M = max(self.model.num_outputs, 2), self.model.num_features
        added = {EMBEDDINGS: torch.from_numpy(rng.standard_normal((K, M)))}
        for name in VALVE:
            linear = linear_start(M, M, True, [int(rng.integers(2**31))])
            added |= {name + part: value[0] for part, value in linear.items()}
            added |= {name + "scale": torch.ones(M), name + "shift": torch.zeros(M)}
        return SharedPart(body | {k: v.to(like) for k, v in added.items()})

    def explain(self, s: SharedPart) -> dict[str, np.ndarray]:
        """The embeddings of the classes."""
        return {"embeddings": s.part[EMBEDDINGS].cpu().numpy()}
