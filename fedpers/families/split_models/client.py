"""Client half of methods that cut the model in two."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.core.pytree import record
from fedpers.core.rng import Stream
from fedpers.families.disclosures import PART
from fedpers.families.split_models.own import first_parts
from fedpers.flower.client import PersonalizedClient


@record("split_models.SharedPart")
class SharedPart:
    """The shared part: the server's state, what it sends, and what a client sends back."""

    part: Params


@record("split_models.OwnPart")
class OwnPart:
    """Client state: the part that never leaves the client."""

    own: Params


class SplitClient(PersonalizedClient, ABC):
    """Trains both parts, sends the shared one and keeps its own."""

    config: Any  # `personal`: the client's own `Part`; maybe `head_init`, `own_classes`
    private = ("own",)
    reply_is_shared = True
    disclosure = PART

    @abstractmethod
    def train(self, shared: Params, own: Params, data: Data, rng: Stream) -> tuple[Params, Params]:
        """(shared part, own part) after a round's local training."""

    def initial_state(self, params: Params, data: Data, rng: Stream) -> OwnPart:
        """Personal bodies start alike, and so do heads unless the method has a `head_init`."""
        return self.initial_states(params, [data], [rng])[0]

    def initial_states(self, params: Params, data: Sequence[Data], rngs: Sequence[Stream]) -> list[OwnPart]:
        """Heads are drawn together."""
        return list(map(OwnPart, first_parts(self.model, params, data, rngs, self.config)))

    def answer(
        self, order: SharedPart, state: OwnPart, data: Data, rng: Stream
    ) -> tuple[SharedPart, OwnPart]:
        """One round's local training."""
        shared, own = self.train(order.part, state.own, data, rng)
        return SharedPart(shared), OwnPart(own)

    def personal(self, shared: SharedPart, state: OwnPart) -> Params:
        """The shared part with the client's own one."""
        return shared.part | state.own
