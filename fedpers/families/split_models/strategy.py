"""Server half of methods that cut the model in two and average the shared part."""

from abc import ABC
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpers.core.errors import ConfigError
from fedpers.core.params import Params
from fedpers.core.pytree import record
from fedpers.families.split_models.client import SharedPart
from fedpers.families.split_models.heads import check_heads
from fedpers.families.split_models.parts import check_part, cut
from fedpers.flower.roster import Roster
from fedpers.flower.strategy import PersonalizedStrategy, Round
from fedpers.learning.model import Model
from fedpers.learning.optimizers import LocalConfig, OptimizerState, init_optimizer, sgd_step


def shared_part(model: Model, params: Params, config: Any, key: str) -> Params:
    """What of the initial model is shared.

    Args:
        config: `personal`, the clients' own `Part`; maybe `own_classes`.
        key: what the configuration calls `personal`.

    Raises:
        ConfigError: there is no such part, or it holds no head of which classes could be left out.
    """
    check_part(model, params, f"method.{key}", config.personal)
    shared, own = cut(model, params, config.personal)
    own_classes = getattr(config, "own_classes", False)
    check_heads(model, own_classes)
    if own_classes and not all(k in own for k in params if model.is_head(k)):
        raise ConfigError("method.own_classes=true: needs a head that is each client's own; set it to false")
    return shared


class SplitStrategy(PersonalizedStrategy, ABC):
    """Averages the shared part; personal parts stay where they are."""

    config: Any  # `personal`: the clients' own `Part`
    part_key = "personal"  # what the configuration calls it
    not_robust = ""

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> SharedPart:
        """The shared part of the initial model."""
        return SharedPart(shared_part(self.model, params, self.config, self.part_key))

    def weight(self, k: int) -> float:
        """Client k's weight in the mean: its number of samples."""
        return self.num_examples(k)

    def round(self, s: SharedPart, t: int, rng: np.random.Generator) -> Round:
        """One round: these are the server's lines in the boxes of the methods that derive from this."""
        selected = self.sample(rng)  # [S1]
        replies = yield dict.fromkeys(selected, s)  # [S2]
        parts, weights = [r.part for r in replies.values()], [self.weight(k) for k in replies]
        return SharedPart(self.average(parts, weights, s.part))  # [S3]

    def evaluation_message(self, s: SharedPart, k: int) -> SharedPart:
        """The shared part, for the client's own one."""
        return s


@record("split_models.DescendingBody")
class DescendingBody:
    """The shared body, the state of the server's optimiser, and who was here when."""

    part: Params
    opt: OptimizerState
    last: Tensor  # [N] int64, the round of each client's last visit, by its place in the roster; 0: none


class BodyDescentStrategy(PersonalizedStrategy, ABC):
    """Moves the shared body along gradients that clients send; heads stay where they are."""

    config: Any  # `personal`, `rho`, `server_optimizer`, `own_classes`

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> DescendingBody:
        """The shared part of the initial model."""
        body = shared_part(self.model, params, self.config, "personal")
        never = torch.zeros(len(roster.ids), dtype=torch.int64, device=self.plan.device)
        return DescendingBody(body, init_optimizer(body, self._optimizer), never)

    def descend(self, s: DescendingBody, gradient: Params, t: int, came: Iterable[int]) -> DescendingBody:
        """One step of the server's optimiser at rate ρ, after the visits of `came` in round t."""
        rows = torch.tensor([self.row[k] for k in came], dtype=torch.int64, device=s.last.device)
        stepped = sgd_step(s.part, gradient, s.opt, self._optimizer, self.config.rho)
        return DescendingBody(*stepped, s.last.index_fill(0, rows, t))

    def explain(self, s: DescendingBody) -> dict[str, np.ndarray]:
        """The round of each client's last visit; 0: it had none."""
        return {"last_visit": s.last.cpu().numpy()}

    @property
    def _optimizer(self) -> LocalConfig:
        return LocalConfig(lr=self.config.rho, optimizer=self.config.server_optimizer)
