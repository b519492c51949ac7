"""All that a method's two files need, in one place."""

from fedpers.core.bounds import above, bounds
from fedpers.core.data import ClientData, Data, Federation
from fedpers.core.params import (
    Params,
    add,
    blend,
    combine,
    mean,
    merge,
    scale,
    split,
    sq_dist,
    sub,
    weighted_mean,
    weighted_sum,
)
from fedpers.core.plan import Plan
from fedpers.core.pytree import record
from fedpers.core.rng import Stream
from fedpers.core.tasks import TASKS, Task
from fedpers.core.work import Work
from fedpers.flower.client import PersonalizedClient
from fedpers.flower.observer import Observer, RoundLog
from fedpers.flower.roster import Roster
from fedpers.flower.strategy import PersonalizedStrategy, Round
from fedpers.flower.transport import Orders, Replies
from fedpers.learning.gradients import grad
from fedpers.learning.local_training import minimise, minimise_each, minimise_from
from fedpers.learning.losses import Frozen, proximal, soft_proximal
from fedpers.learning.minibatches import minibatches
from fedpers.learning.model import Model
from fedpers.learning.optimizers import LocalConfig, OptimizerState, init_optimizer, sgd_step

__all__ = [
    "TASKS",
    "ClientData",
    "Data",
    "Federation",
    "Frozen",
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
    "Task",
    "Work",
    "above",
    "add",
    "blend",
    "bounds",
    "combine",
    "grad",
    "init_optimizer",
    "mean",
    "merge",
    "minibatches",
    "minimise",
    "minimise_each",
    "minimise_from",
    "proximal",
    "record",
    "scale",
    "sgd_step",
    "soft_proximal",
    "split",
    "sq_dist",
    "sub",
    "weighted_mean",
    "weighted_sum",
]
