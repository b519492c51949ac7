"""Local training: every client alone, the baseline without communication.

    Server                                             Client k
    [S1] draw a set of r clients, tell them to train ->[C1] w_k = local SGD on f_k from its own w_k

Deviations: none. Reductions: FedAvg on one client.
"""

import numpy as np

from fedpers.clients.local import YourTurn
from fedpers.method import Params, PersonalizedStrategy, Roster, Round, record


@record
class State:
    """The server's state: empty."""


class Local(PersonalizedStrategy):
    """Only selects the clients that train in a round."""

    not_robust = "its server takes no mean"

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """An empty state."""
        return State()

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """One local training on every sampled client."""
        yield dict.fromkeys(self.sample(rng), YourTurn())                                   # [S1]
        return s

    def evaluation_message(self, s: State, k: int) -> None:
        """None: clients predict with their own models."""
        return
