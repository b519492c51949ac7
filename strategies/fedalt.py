"""FedAlt: partial personalisation with alternating updates.

Pillutla, Malik, Mohamed, Rabbat, Sanjabi, Xiao, "Federated Learning with Partial Model
Personalization", ICML 2022, https://arxiv.org/abs/2204.03809, Algorithm 2 (LocalAlt in FedAlt).

    min_{u, v_1..v_n} Σ_i α_i F_i(u, v_i)

    Server                                             Client i
    [S1] draw a set of m clients
    [S2] send the shared part u                ---->   [C1] v_i = τ_v steps on F_i(u, .) from v_i
                                                       [C2] u_i = τ_u steps on F_i(., v_i) from u
                                                       [C3] keep v_i
    [S3] u = Σ_i α_i u_i / Σ_i α_i             <----   [C4] send u_i

Deviations from the paper: α_i = n_i (the paper's weights are free); the personal part is
named by `personal`: the last layer, adapters, norms, everything else or patterns of names.
Reductions: personal=head with clients of equal size is FedRep. No v steps: only u is trained.
"""

from fedpers.clients.fedalt import FedAltConfig
from fedpers.families.split_models.strategy import SplitStrategy


class FedAlt(SplitStrategy):
    """Averages the shared part u, weighted by numbers of samples."""

    config: FedAltConfig
