"""SCAFFOLD, client half. The algorithm box is in strategies/scaffold.py."""

from dataclasses import dataclass, field
from typing import Any

from fedpers.core.params import combinations, zeros_like
from fedpers.families.disclosures import CORRECTED
from fedpers.method import (
    Data,
    LocalConfig,
    Params,
    PersonalizedClient,
    Stream,
    above,
    add,
    minimise,
    record,
    soft_proximal,
    sub,
)


@dataclass(frozen=True)
class ScaffoldConfig:
    """Hyper-parameters of SCAFFOLD."""

    eta_g: float = 1.0                    # η_g: server learning rate
    local: LocalConfig = field(default_factory=LocalConfig)      # η_l, K

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        found = [*above(self, eta_g=0), *above(self.local, lr=0)]
        if self.local.optimizer != "sgd" or self.local.momentum:
            found.append("local: SCAFFOLD reads gradients off plain SGD; set optimizer=sgd, momentum=0")
        if self.local.clip_norm or self.local.warmup_steps or self.local.step_schedule != "constant":
            found.append("local: SCAFFOLD wants equal steps; no clip_norm, warmup_steps, step_schedule")
        if self.local.schedule == "cosine":
            found.append("local.schedule=cosine: SCAFFOLD divides by the rate, which ends at 0; use step")
        return found


@record
class ModelAndControl:
    """Order: the global model and the server's control variate."""

    x: Params
    c: Params


@record
class Changes:
    """Reply: by how much the model, and the client's control variate, moved."""

    x: Params
    c: Params


@record
class ClientState:
    """The client's control variate."""

    c: Params


class ScaffoldClient(PersonalizedClient):
    """Trains the received model with its drift taken out of the gradients."""

    config: ScaffoldConfig
    disclosure = CORRECTED

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """Control variates start at 0."""
        return ClientState(zeros_like(params))

    def answer(
        self, order: ModelAndControl, state: ClientState, data: Data, rng: Stream
    ) -> tuple[Changes, ClientState]:
        """K corrected steps, and the mean gradient that they took (option II)."""
        cfg, drift = self.config.local, sub(state.c, order.c)
        corrected = soft_proximal(self.model.loss, 1.0, 0.0, drift)      # f_i(y) - ⟨c_i - c, y⟩
        y = minimise(corrected, order.x, data, rng, cfg)                                 # [C1]

        def shares(n: int) -> Any:  # of x, y, c_i and c in Δy_i, c_i⁺ and Δc_i
            r = 1 / (cfg.num_steps(n) * cfg.lr)                                          # 1 / (K η_l)
            return (-1, 1, 0, 0), (r, -r, 1, -1), (r, -r, 0, -1)

        dx, c, dc = combinations((order.x, y, state.c, order.c), data.by_size(shares))   # [C2]
        return Changes(dx, dc), ClientState(c)                                           # [C3]

    def personal(self, shared: ModelAndControl, state: ClientState) -> Params:
        """The received model."""
        return shared.x

    def local_model(self, order: ModelAndControl, reply: Changes) -> ModelAndControl:
        """A participant predicts with the model that it has just trained."""
        return ModelAndControl(add(order.x, reply.x), order.c)

    def work(self, order: Any, n: int) -> int:
        """As many sample gradients as the local training takes."""
        return self.config.local.work(n)
