"""FedTGP, client half. The algorithm box is in strategies/fedtgp.py."""

from dataclasses import dataclass, field

from fedpers.families.disclosures import PROTOTYPES
from fedpers.families.prototypes import Prototypes, Regularised
from fedpers.learning.classes import class_means
from fedpers.method import (
    Data,
    LocalConfig,
    Params,
    PersonalizedClient,
    Stream,
    Work,
    above,
    bounds,
    minimise,
    record,
)


@dataclass(frozen=True)
class FedTGPConfig:
    """Hyper-parameters of FedTGP, with the paper's letters."""

    lam: float = 1.0                      # λ: pull of the global prototypes
    tau: float = 100.0                    # τ: the largest margin
    server_lr: float = 0.01               # η_S: rate of the server's training
    server_epochs: int = 100              # S: passes over what clients sent
    server_batch: int = 10                # prototypes of a step
    local: LocalConfig = field(default_factory=LocalConfig)

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        found = bounds(self, lam=(0, None), tau=(0, None), server_epochs=(1, None), server_batch=(1, None))
        return [*found, *above(self, server_lr=0)]


@record
class ClientState:
    """The client's own model; it never leaves the client."""

    params: Params


class FedTGPClient(PersonalizedClient):
    """Trains its own model near the server's prototypes, and sends its own prototypes alone."""

    config: FedTGPConfig
    disclosure = PROTOTYPES
    private = ("params",)

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """All clients start from the initial model of their architecture."""
        return ClientState(params)

    def answer(
        self, order: Prototypes, state: ClientState, data: Data, rng: Stream
    ) -> tuple[Prototypes, ClientState]:
        """One local training of the own model, then the mean features of its classes."""
        h = self.config
        loss = Regularised(self.model, h.lam, order) if h.lam else self.model.loss       # [C1]
        w = minimise(loss, state.params, data, rng, h.local)                             # [C2]
        C, n = class_means(self.model, w, data, len(order.n))                            # [C3]
        return Prototypes(C, n), ClientState(w)                                          # [C4]

    def personal(self, shared: None, state: ClientState) -> Params:
        """The client's own model."""
        return state.params

    def work(self, order: Prototypes, n: int) -> Work:
        """As many sample gradients as the local training takes, and a pass forward for the prototypes."""
        return Work(self.config.local.work(n), forwards=n)
