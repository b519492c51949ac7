"""Template of a method, client half: a fixed mixture of a local and a global model.

Copy to clients/NAME.py, and the other file to strategies/NAME.py; or have `fedpers new-method NAME` make a
package of your own, whose entry point in the group fedpers.methods names it. This pair is a method of its own
(APFL of Deng, Kamani, Mahdavi 2020 with a fixed mixing weight), so that a test can run it.
"""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedpers.method import (
    Data, LocalConfig, Params, PersonalizedClient, Stream, add, bounds, minimise, record, scale,
)


@dataclass(frozen=True)
class TemplateConfig:
    """Hyper-parameters, with the paper's letters."""

    alpha: float = 0.5                    # α: weight of the local model in the mixture
    local: LocalConfig = field(default_factory=LocalConfig)

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return bounds(self, alpha=(0, 1))


@record
class Global:
    """The global model: the server's state, its order and the reply."""

    w: Params


@record
class Local:
    """Client state: the local model v_k; it never leaves the client."""

    v: Params


class TemplateClient(PersonalizedClient):
    """Trains the global model for the server and its own part of the mixture for itself."""

    config: TemplateConfig
    private = ("v",)

    def initial_state(self, params: Params, data: Data, rng: Stream) -> Local:
        """The local model starts where the global one does."""
        return Local(params)

    def answer(self, order: Global, state: Local, data: Data, rng: Stream) -> tuple[Global, Local]:
        """Both local trainings of Algorithm 1."""
        w = minimise(self.model.loss, order.w, data, rng, self.config.local)             # [C1]

        def mixed_loss(v: Params, batch: Data) -> Tensor:
            return self.model.loss(self._mix(v, order.w), batch)

        v = minimise(mixed_loss, state.v, data, rng, self.config.local)                  # [C2]
        return Global(w), Local(v)                                                       # [C3]

    def personal(self, shared: Global, state: Local) -> Params:
        """The mixture α v + (1-α) w."""
        return self._mix(state.v, shared.w)

    def work(self, order: Any, n: int) -> int:
        """Two local trainings."""
        return 2 * self.config.local.work(n)

    def _mix(self, v: Params, w: Params) -> Params:
        return add(scale(v, self.config.alpha), w, 1 - self.config.alpha)
