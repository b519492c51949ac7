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
from fedpers.learning.optimizers import LocalConfig, OptimizerState, init_optimizer

__all__ = [
    "ClientData",
    "Data",
    "Federation",
    "LocalConfig",
    "Model",
    "Observer",
    "OptimizerState",
    "Orders",
    "Params",
    "PersonalizedClient",
    "PersonalizedStrategy",
    "Plan",
    "Replies",
    "Roster",
    "Round",
    "RoundLog",
    "Stream",
    "bounds",
    "grad",
    "init_optimizer",
    "minibatches",
    "minimise",
    "minimise_from",
    "record",
]
