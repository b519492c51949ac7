"""Our methods where another library defines them otherwise: each function changes one definition for a while.

Used by `benchmarks.reproductions`, to show that a difference in accuracy is one of definitions.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
from torch import Tensor

from fedpers.clients.fedala import FedALAClient, mix
from fedpers.clients.pfedme import PFedMeClient
from fedpers.families.global_model.client import Weights
from fedpers.families.prototypes import PrototypeClient
from fedpers.method import Round
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
