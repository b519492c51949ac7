"""Training a received model on a client's own data before it predicts."""

from dataclasses import replace

from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.core.rng import Stream
from fedpers.families.split_models.parts import Part, cut
from fedpers.learning.local_training import minimise
from fedpers.learning.losses import Frozen
from fedpers.learning.model import Model
from fedpers.learning.optimizers import LocalConfig

PHASES = {"head_full": ("head", "full")}  # forms that train one part after the other


def tuning(local: LocalConfig, epochs: int, lr: float) -> LocalConfig:
    """How clients fine-tune: as they train, but for `epochs`, and at the rate `lr` if that is not 0."""
    return replace(local, epochs=epochs, steps=0, lr=lr or local.lr)


def fine_tune(
    model: Model, whole: Params, form: str, data: Data, rng: Stream, cfg: LocalConfig, part: Part = "head"
) -> Params:
    """The whole model after local training of a part of it, what `cfg` says for each phase.

    Args:
        form: "full" (all layers), "head" (the last layer), "body" (all others), or "head_full": the last
            layer, then all, which keeps the features from being bent to an unfit head
            (Kumar et al., ICLR 2022, https://arxiv.org/abs/2202.10054).
        part: what "head" stands for; "body" is all else.
    """
    for phase in PHASES.get(form, (form,)):
        body, head = cut(model, whole, part)
        trained = {"full": whole, "head": head, "body": body}[phase]
        loss = model.loss if phase == "full" else Frozen(model.loss, whole)
        whole = whole | minimise(loss, trained, data, rng, cfg)
    return whole
