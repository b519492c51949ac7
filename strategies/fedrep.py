"""FedRep: many head steps, then a few on the shared representation.

Collins, Hassani, Mokhtari, Shakkottai, "Exploiting Shared Representations for Personalized
Federated Learning", ICML 2021, https://arxiv.org/abs/2102.07078, Algorithm 1.

    Server                                             Client i
    [S1] draw a set of rn clients
    [S2] send the representation φ             ---->   [C1] h_i = τ_h steps on f_i(., φ) from h_i
                                                       [C2] φ_i = τ_φ steps on f_i(h_i, .) from φ
                                                       [C3] keep the head h_i
    [S3] φ = 1/(rn) Σ_i φ_i                    <----   [C4] send φ_i

Deviations from the paper: none; Algorithm 1 has τ_φ = 1, its experiments more. The mean is plain,
as printed; the authors' code weighs by samples.
Reductions: with clients of equal size it is FedAlt with a personal head; without head steps all
heads stay as they were, which is FedBABU.
"""

from fedpers.clients.fedrep import FedRepConfig
from fedpers.families.split_models.strategy import SplitStrategy


class FedRep(SplitStrategy):
    """Averages representations; heads stay where they are."""

    config: FedRepConfig

    def weight(self, k: int) -> float:
        """The same for every client: the mean is unweighted."""
        return 1.0
