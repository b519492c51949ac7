"""FedRecon: heads are reconstructed on the client, the body follows under the reconstructed head.

Singhal, Sidahmed, Garrett, Wu, Rush, Prakash, "Federated Reconstruction: Partially Local Federated
Learning", NeurIPS 2021, https://arxiv.org/abs/2102.03448, Algorithm 1.

    Server                                             Client i
    [S1] draw a set of r clients
    [S2] send the global part g                ---->   [C1] l_i = the initial head, or the kept one
                                                       [C2] k_r gradient steps on l_i, g fixed
                                                       [C3] g_i = k_u steps from g, l_i fixed
    [S3] Δ = Σ_i n_i Δ_i / Σ_i n_i             <----   [C4] send Δ_i = g - g_i
    [S4] g -= η_s Δ, or a step of Adam on Δ            to be evaluated with the initial head:
                                                       [C5] k_r steps on l_i, as above

The gradient of g is taken at the head after its steps (block coordinates), never jointly: that is
what PFLEGO changes.

Deviations from the paper: reconstruction and update use the same samples (the paper allows it, and
prefers two halves); `start: kept` makes clients stateful, as papers that compare with it do.
Reductions: start=kept with η_s = 1 and SGD is FedAlt with a personal head.
"""

import numpy as np

from fedpers.clients.fedrecon import FedReconConfig
from fedpers.families.split_models.client import SharedPart
from fedpers.families.split_models.strategy import BodyDescentStrategy, DescendingBody
from fedpers.method import Round


class FedRecon(BodyDescentStrategy):
    """Takes the mean update of the body as a gradient."""

    weighs_by_samples = True
    config: FedReconConfig
    not_robust = ""

    def round(self, s: DescendingBody, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 1."""
        selected = self.sample(rng)                                                      # [S1]
        told = yield dict.fromkeys(selected, SharedPart(s.part))                         # [S2]
        n = [self.num_examples(i) for i in told]
        delta = self.average([reply.part for reply in told.values()], n)                 # [S3]
        return self.descend(s, delta, t, told)                                           # [S4]

    def evaluation_message(self, s: DescendingBody, k: int) -> SharedPart:
        """The body, for a head that the client reconstructs or has."""
        return SharedPart(s.part)
