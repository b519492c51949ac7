"""FedSim: partial personalisation with simultaneous updates.

Pillutla, Malik, Mohamed, Rabbat, Sanjabi, Xiao, "Federated Learning with Partial Model
Personalization", ICML 2022, https://arxiv.org/abs/2204.03809, Algorithm 3 (LocalSim in FedSim).

    min_{u, v_1..v_n} Σ_i α_i F_i(u, v_i)

    Server                                             Client i
    [S1] draw a set of m clients
    [S2] send the shared part u                ---->   [C1] τ joint steps on F_i from (u, v_i):
                                                            u -= γ_u ∇_u F_i, v_i -= γ_v ∇_v F_i
                                                       [C2] keep v_i
    [S3] u = Σ_i α_i u_i / Σ_i α_i             <----   [C3] send u_i

Deviations from the paper: α_i = n_i (the paper's weights are free); the personal part is
named by `personal`: the last layer, adapters, norms, everything else or patterns of names.
Reductions, for γ_v = γ_u: personal=head is FedPer, personal=body is LG-FedAvg.
"""

from fedpers.clients.fedsim import FedSimConfig
from fedpers.families.split_models.strategy import SplitStrategy


class FedSim(SplitStrategy):
    """Averages the shared part u, weighted by numbers of samples."""

    config: FedSimConfig
