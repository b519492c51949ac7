"""Training on softened or weighted classes: the model's own loss with other targets."""

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.errors import ConfigError
from fedpers.core.params import Params
from fedpers.learning.kernels.dispatch import ON_DATA, of_model_alone
from fedpers.learning.losses import Frozen, Loss, Proximal
from fedpers.learning.model import Model
from fedpers.learning.optimizers import LocalConfig


@dataclass(frozen=True)
class SoftModel(Model):
    """A model of classes whose loss is torch.nn.CrossEntropyLoss(weight, label_smoothing)."""

    label_smoothing: float = 0.0
    class_weights: tuple[float, ...] = ()

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of each sample, [n].

        Raises:
            ConfigError: classes have weights, and whoever asks would divide by a number of samples.
        """
        if self.class_weights:
            raise ConfigError(
                "local.class_weights: the method's loss weighs samples by itself; leave them out"
            )
        return self._losses(outputs, y, torch.ones_like(outputs[0]))

    def _losses(self, z: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """(1 - ε) w_y (-log p_y) + ε/K Σ_k w_k (-log p_k), of logits z [n, K]."""
        lost = -torch.log_softmax(z, 1) * weights
        own, e = lost.gather(1, y.unsqueeze(1)).squeeze(1), self.label_smoothing
        return (1 - e) * own + e * lost.mean(1)

    def head_loss(self, params: Params, features: Tensor, data: Data) -> Tensor:
        """The mean over samples, each counted as its class weighs."""
        z = self.head(params, features)
        weights = z.new_tensor(self.class_weights) if self.class_weights else torch.ones_like(z[0])
        counted = weights[data.y] * data.mask
        return (self._losses(z, data.y, weights) * data.mask).sum() / counted.sum()


def softened(loss: Loss, cfg: LocalConfig) -> Loss:
    """The loss with the targets of the settings; itself if they change none.

    Raises:
        ConfigError: it is not made of the loss of a model of classes, or that has another number of them.
    """
    return _softened(loss, cfg) if cfg.label_smoothing or cfg.class_weights else loss


def _softened(loss: Any, cfg: LocalConfig) -> Any:
    model = getattr(loss, "__self__", None)
    if getattr(loss, "__func__", None) in ON_DATA:
        return getattr(_soft_model(model, cfg), loss.__func__.__name__)
    if type(loss) in (Proximal, Frozen):
        return replace(loss, loss=_softened(loss.loss, cfg))
    found = _within(loss, cfg)
    if found is loss:
        name = getattr(loss, "__qualname__", type(loss).__name__)
        raise ConfigError(
            f"local.label_smoothing and local.class_weights: the loss {name} is not known to be made of the "
            "model's; leave them out, or write it as a dataclass with a field `model`"
        )
    return found


def _within(part: Any, cfg: LocalConfig) -> Any:
    """A dataclass with other models in its fields; itself if it has none."""
    if isinstance(part, Model):
        return _soft_model(part, cfg)
    if not is_dataclass(part) or isinstance(part, type):
        return part
    new = {f.name: _within(getattr(part, f.name), cfg) for f in fields(part) if f.init}
    changed = {k: v for k, v in new.items() if v is not getattr(part, k)}
    return replace(part, **changed) if changed else part


def _soft_model(model: Any, cfg: LocalConfig) -> Any:
    """The model with softened targets."""
    if type(model) is SoftModel:  # softened by who trains with this loss
        return model
    problems = []
    if model.task != "classification" or model.network.softmax_head or not of_model_alone(model):
        problems.append(
            "they are for models of classes with the cross entropy of their outputs as their loss"
        )
    if cfg.class_weights and len(cfg.class_weights) != model.num_outputs:
        problems.append(
            f"class_weights are {len(cfg.class_weights)}, and there are {model.num_outputs} classes"
        )
    if problems:
        raise ConfigError(*[f"local.label_smoothing, local.class_weights: {problem}" for problem in problems])
    return SoftModel(
        **vars(model), label_smoothing=cfg.label_smoothing, class_weights=tuple(cfg.class_weights)
    )
