"""CFL, client half. The algorithm box is in strategies/cfl.py."""

from dataclasses import dataclass, field

from fedpers.core.bounds import bounds
from fedpers.core.params import add, sub
from fedpers.families.clustered.centers import nearest_center, pick
from fedpers.families.disclosures import COMPARED
from fedpers.method import Data, LocalConfig, Params, PersonalizedClient, Stream, minimise, record


@dataclass(frozen=True)
class CFLConfig:
    """Hyper-parameters of CFL, with the paper's letters."""

    eps1: float = 0.4                     # ε1: a cluster's mean update below it has stalled
    eps2: float = 1.6                     # ε2: while some member's update is above it
    gamma_max: float = 0.0                # γ_max: how far clients of one kind may differ
    local: LocalConfig = field(default_factory=LocalConfig)

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return bounds(self, eps1=(0, None), eps2=(0, None), gamma_max=(0, 1))


@record
class MemberModel:
    """Order: the model of the client's cluster."""

    params: Params


@record
class AllClusters:
    """Order to a client that is in no cluster: choose one of these models."""

    centers: tuple[Params, ...]


@record
class ModelChange:
    """Reply: how local training moved it."""

    params: Params


class CFLClient(PersonalizedClient):
    """Trains the received model and sends the difference; remembers nothing."""

    config: CFLConfig
    disclosure = COMPARED

    def answer(self, order: MemberModel, state: None, data: Data, rng: Stream) -> tuple[ModelChange, None]:
        """One local training from the received weights."""
        w = minimise(self.model.loss, order.params, data, rng, self.config.local)        # [C1]
        return ModelChange(sub(w, order.params)), None                                   # [C2]

    def choose(self, shared: MemberModel | AllClusters, state: None, data: Data) -> MemberModel:
        """A new client predicts with the model that fits its training data best."""
        if isinstance(shared, MemberModel):
            return shared
        return MemberModel(pick(shared.centers, nearest_center(self.model, shared.centers, data)))

    def personal(self, shared: MemberModel, state: None) -> Params:
        """The model of the client's cluster."""
        return shared.params

    def local_model(self, order: MemberModel, reply: ModelChange) -> MemberModel:
        """A participant predicts with the weights it has just trained."""
        return MemberModel(add(order.params, reply.params))

    def work(self, order: MemberModel, n: int) -> int:
        """As many sample gradients as the local training takes."""
        return self.config.local.work(n)
