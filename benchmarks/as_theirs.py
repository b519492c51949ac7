"""Our methods where another library defines them otherwise: each function changes one definition for a while.

Used by `benchmarks.reproductions`, to show that a difference in accuracy is one of definitions.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
from torch import Tensor

from fedpers.clients.fedala import FedALAClient, mix
from fedpers.clients.pfedme import PFedMeClient
from fedpers.families.global_model.client import Weights
from fedpers.families.prototypes import PrototypeClient, Prototypes
from fedpers.method import Round
from fedpers.strategies import fedpac
from fedpers.strategies.fedala import FedALA
from fedpers.strategies.fedproto import FedProto
from fedpers.strategies.fedtgp import FedTGP
from fedpers.strategies.pfedme import PFedMe


@contextmanager
def replaced(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Attributes of classes or modules, as (owner, name, value)."""
    with ExitStack() as stack:
        for owner, name, value in changes:
            stack.enter_context(patch.object(owner, name, value))
        yield


def mixed_model() -> Any:
    """FedALA predicts with what a client mixed, before it trains on."""

    def mixture(self: FedALAClient, shared: Any, state: Any) -> Any:
        return mix(state.own, shared.params, state.W)

    return replaced((FedALA, "evaluation_message", lambda self, s, k: s), (FedALAClient, "personal", mixture))


def nearest_prototype() -> Any:
    """FedProto and FedTGP predict the class whose global prototype is nearest to the features."""

    def predict(self: PrototypeClient, shared: Any, state: Any, x: Tensor) -> Tensor:
        away = (self.model.body(state.params, x)[:, None] - shared.C).square().mean(2)
        return -away.where(shared.n > 0, float("inf"))

    return replaced(
        (PrototypeClient, "personal", lambda self, shared, state: None),
        (PrototypeClient, "predict", predict),
        (FedProto, "evaluation_message", lambda self, s, k: s),
        (FedTGP, "evaluation_message", lambda self, s, k: self._sent(s)),
    )


def global_model() -> Any:
    """pFedMe predicts with the model that the server sends, a mean that counts clients by their samples."""
    return replaced(
        (PFedMe, "round", by_samples),
        (PFedMe, "evaluation_message", lambda self, s, k: s),
        (PFedMeClient, "personal", lambda self, shared, state: shared.params),
    )


def by_samples(self: PFedMe, s: Weights, t: int, rng: np.random.Generator) -> Round:
    """A round whose mean counts clients by their samples."""
    w = yield dict.fromkeys(self.sample(rng), s)
    n = [self.num_examples(k) for k in w]
    return Weights(self.average([w[k].params for k in w], n, s.params))


def weights_of_others(seed: int = 0) -> Any:
    """FedPAC's weights of heads are of one random order of the clients, and used in another.

    Client i gets Σ_j α_π(i)π(j) g_j for a permutation π of each round. Weights below 0.001 are 0, the rest is
    not scaled, and a global prototype counts clients alike.
    """
    rng, solve, renewed = np.random.default_rng(seed), fedpac.combination, Prototypes.renewed
    order = np.arange(0)

    def mixed_up(i: int, H: np.ndarray, V: np.ndarray) -> np.ndarray:
        nonlocal order
        order = order if i else rng.permutation(len(V))
        alpha = solve(order[i], H, V)[order]
        return np.where(alpha > 1e-3, alpha, 0)

    def alike(self: Prototypes, sent: Sequence[Prototypes]) -> Prototypes:
        return renewed(self, [Prototypes(p.C, (p.n > 0).to(p.n)) for p in sent])

    return replaced((fedpac, "combination", mixed_up), (Prototypes, "renewed", alike))
