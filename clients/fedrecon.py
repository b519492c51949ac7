"""FedRecon, client half. The algorithm box is in strategies/fedrecon.py."""

from dataclasses import dataclass, field
from typing import Any, Literal

from fedpers.core.params import sub
from fedpers.families.disclosures import BODY_CHANGE
from fedpers.families.split_models.client import SharedPart
from fedpers.families.split_models.heads import HeadInit
from fedpers.families.split_models.own import first_parts, fit_own
from fedpers.families.split_models.parts import Part
from fedpers.method import (
    Data,
    Frozen,
    LocalConfig,
    Params,
    PersonalizedClient,
    Stream,
    Work,
    bounds,
    minimise,
    record,
)


@dataclass(frozen=True)
class FedReconConfig:
    """Hyper-parameters of FedRecon."""

    head: LocalConfig = field(default_factory=LocalConfig)       # k_r, η_r: reconstruction
    body: LocalConfig = field(default_factory=LocalConfig)       # k_u, η_u
    start: Literal["initial", "kept"] = "initial"                # where reconstruction starts
    server_optimizer: Literal["sgd", "adam"] = "sgd"
    rho: float = 1.0                                             # η_s: server rate
    head_init: HeadInit = "default"                              # heads are drawn one a client
    own_classes: bool = False                                    # heads of the client's classes alone
    personal: Part = "head"                                      # what l_i is

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return bounds(self, rho=(0, None))


@record
class BodyChange:
    """Reply: minus the body's change, with the shape of a gradient."""

    part: Params


@record
class ClientState:
    """The head that reconstruction starts from, and what it last came to."""

    initial: Params
    head: Params


class FedReconClient(PersonalizedClient):
    """Finds the head for the received body, then the body for that head."""

    config: FedReconConfig
    disclosure = BODY_CHANGE
    private = ("head",)

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """Each client's first own part."""
        (own,) = first_parts(self.model, params, [data], [rng], self.config)
        return ClientState(own, own)

    def answer(
        self, order: SharedPart, state: ClientState, data: Data, rng: Stream
    ) -> tuple[BodyChange, ClientState]:
        """Reconstruction, then steps on the body."""
        head = self._reconstruct(order.part, state, data, rng)
        loss = Frozen(self.model.loss, head)
        g = minimise(loss, order.part, data, rng, self.config.body)                         # [C3]
        return BodyChange(sub(order.part, g)), ClientState(state.initial, head)                 # [C4]

    def _reconstruct(self, g: Params, state: ClientState, data: Data, rng: Stream) -> Params:
        start = state.initial if self.config.start == "initial" else state.head          # [C1]
        return fit_own(self.model, g, start, data, rng, self.config.head)               # [C2]

    def personal(self, shared: SharedPart, state: ClientState) -> Params:
        """The body under the client's head."""
        return shared.part | state.head

    @property
    def adapts(self) -> bool:
        """Whether clients reconstruct their heads before they predict."""
        return self.config.start == "initial"

    def adapt(
        self, shared: SharedPart, state: ClientState, data: Data, rng: Stream
    ) -> tuple[SharedPart, ClientState]:
        """Reconstruction on the client's training data."""
        head = self._reconstruct(shared.part, state, data, rng)                             # [C5]
        return shared, ClientState(state.initial, head)

    def work(self, order: Any, n: int) -> Work:
        """The body's gradients; the features of a head's training are computed once, of other parts not."""
        own, shared = self.config.head.work(n), self.config.body.work(n)
        if self.config.personal == "head":
            return Work(shared, forwards=n, head_steps=own)
        return Work(own + shared)
