"""All that a method's two files need, in one place."""

from fedpers.core.bounds import bounds
from fedpers.core.data import ClientData, Data, Federation
from fedpers.core.params import Params
from fedpers.core.plan import Plan
from fedpers.core.pytree import record
from fedpers.core.rng import Stream
from fedpers.flower.client import PersonalizedClient
from fedpers.flower.observer import Observer, RoundLog
from fedpers.flower.roster import Roster
from fedpers.flower.strategy import PersonalizedStrategy, Round
from fedpers.flower.transport import Orders, Replies
from fedpers.learning.gradients import grad
from fedpers.learning.local_training import minibatches, minimise, minimise_from
from fedpers.learning.model import Model
from fedpers.learning.optimizers import LocalConfig, Slots, new_slots

__all__ = [
    "ClientData",
    "Data",
    "Federation",
    "LocalConfig",
    "Model",
    "Observer",
    "Orders",
    "Params",
    "PersonalizedClient",
    "PersonalizedStrategy",
    "Plan",
    "Replies",
    "Roster",
    "Round",
    "RoundLog",
    "Slots",
    "Stream",
    "bounds",
    "grad",
    "minibatches",
    "minimise",
    "minimise_from",
    "new_slots",
    "record",
]
