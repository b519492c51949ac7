"""FedDBE, client half. The algorithm box is in strategies/feddbe.py."""

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from fedpers.core.bounds import above, bounds
from fedpers.core.params import Params, merge
from fedpers.families.disclosures import MODEL_AND_MEAN
from fedpers.families.global_model.client import Weights
from fedpers.families.global_model.features import FeatureMean, MeanWanted, mean_of
from fedpers.learning.local_training import minimise
from fedpers.learning.minibatches import minibatches, where_any
from fedpers.learning.model import HEAD
from fedpers.learning.optimizers import LocalConfig, init_optimizer, sgd_step
from fedpers.learning.training_round import cannot_keep, loops_itself
from fedpers.method import Data, Model, PersonalizedClient, Stream, Work, grad, record

MEMORY = "memory"                         # the name of z̄_i^p among the parameters that are trained


@dataclass(frozen=True)
class FedDBEConfig:
    """Hyper-parameters of FedDBE, with the paper's letters."""

    kappa: float = 0.1                    # κ: weight of the mean regularisation
    mu: float = 1.0                       # μ: share of the newest batch in the running mean
    local: LocalConfig = field(default_factory=LocalConfig)

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        found = [*bounds(self, kappa=(0, None), mu=(None, 1)), *above(self, mu=0)]
        why = "with mu below 1 a step depends on the batches before"
        return found + (cannot_keep(self.local, why) + loops_itself(self.local, why) if self.mu < 1 else [])


@record
class ModelAndMean:
    """The server's state and its order: the global model, and the target mean of the features."""

    params: Params
    z: Tensor                             # [M] z̄^g


@record
class ClientState:
    """The personalised representation bias memory; it never leaves the client."""

    bias: Tensor                          # [M] z̄_i^p


@dataclass(frozen=True)
class Debiased:
    """The loss at z + z̄_i^p, plus κ times the regularisation of the mean of z."""

    model: Model
    h: FedDBEConfig
    common: Tensor                        # [M] z̄^g
    before: Tensor                        # [M] z̄_i^g as the batches before left it

    def __call__(self, w: Params, batch: Data) -> Tensor:
        z = self.model.body(w, batch.x)
        away = (self.running(z, batch) - self.common).square().mean()
        return self.model.head_loss(w, z + w[MEMORY], batch) + self.h.kappa / 2 * away   # [C4]

    def running(self, z: Tensor, batch: Data) -> Tensor:
        """z̄_i^g after a batch with features z [n, M]."""
        return (1 - self.h.mu) * self.before + self.h.mu * mean_of(z, batch)             # [C3]


class FedDBEClient(PersonalizedClient):
    """Trains the received model on features to which its own memory, a vector, is added."""

    config: FedDBEConfig
    disclosure = MODEL_AND_MEAN
    private = ("bias",)
    reply_is_shared = True
    read_only_orders = (MeanWanted,)

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """A memory of zeros."""
        return ClientState(data.like.new_zeros(self.model.num_features))

    def answer(self, order: Any, state: ClientState, data: Data, rng: Stream) -> tuple[Any, ClientState]:
        """Before round 1 the mean of the features, without a new state; else one local training."""
        if isinstance(order, MeanWanted):
            local = replace(self.config.local, keep_momentum=False)
            w = minimise(self.model.loss, order.params, data, rng, local)                # [C1]
            return FeatureMean(mean_of(self.model.body(w, data.x), data)), state         # [C2]
        w = self._train(merge(order.params, {MEMORY: state.bias}), order.z, data, rng)   # [C5]
        return Weights({k: w[k] for k in order.params}), ClientState(w[MEMORY])          # [C6]

    def _train(self, w: Params, common: Tensor, data: Data, rng: Stream) -> Params:
        cfg, loss = self.config.local, Debiased(self.model, self.config, common, 0 * common)
        if self.config.mu == 1:
            return minimise(loss, w, data, rng, cfg)
        opt = init_optimizer(w, cfg)
        for batch in minibatches(data, rng, cfg):
            running = loss.running(self.model.body(w, batch.x), batch)
            new = *sgd_step(w, grad(loss)(w, batch), opt, cfg, cfg.lr), running
            w, opt, running = where_any(rng, batch.mask, new, (w, opt, loss.before))
            loss = replace(loss, before=running)
        return w

    def personal(self, shared: Any, state: ClientState) -> Params:
        """The received model with the head's bias b + W z̄_i^p, whose outputs at z are those at z + z̄_i^p."""
        W, b = (shared.params[HEAD + name] for name in ("weight", "bias"))
        return shared.params | {HEAD + "bias": b + W @ state.bias}

    def work(self, order: Any, n: int) -> Work:
        """The local training; each mean of features is a pass forward more, unless it is the loss's."""
        gradients = self.config.local.work(n)
        if isinstance(order, MeanWanted):
            return Work(gradients, forwards=n)
        return Work(gradients, forwards=0 if self.config.mu == 1 else gradients)

    def trains_without_momentum(self, order: Any) -> bool:
        """True for the training before the mean: it keeps neither momentum nor parameters."""
        return isinstance(order, MeanWanted)
