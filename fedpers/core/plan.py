"""The plan of a run, which is the same for every method."""

from dataclasses import dataclass
from typing import Literal

from fedpers.core.aggregation import AggregationConfig
from fedpers.core.privacy import PrivacyConfig


@dataclass(frozen=True)
class Plan:
    """What is the same for every method: who takes part, when to evaluate, what a failure means."""

    seed: int = 0
    clients_per_round: int | None = None  # r; None is everybody
    participation: Literal["fixed", "bernoulli", "range"] = "fixed"
    least_per_round: int = 1  # participation=range: so many up to r, each size as likely
    eval_every: int = 1
    eval_clients: int | None = None  # a fixed sample of this size; None: all
    eval_protocol: Literal["all_after", "participants_local"] = "all_after"
    extra: int = 0  # clients asked beyond clients_per_round
    failures: Literal["raise", "skip"] = "raise"
    num_clients: int | None = None  # wait for so many; None: those there are
    new_clients: int = 0  # the last ones never train: split "new"
    new_epochs: int = 0  # of SGD on a new client's own data before it predicts
    new_lr: float = 0.05  # rate of these
    device: str = "cpu"
    dtype: Literal["float32", "float64"] = "float32"
    privacy: PrivacyConfig = PrivacyConfig()  # noqa: RUF009  (it is frozen)
    aggregation: AggregationConfig = AggregationConfig()  # noqa: RUF009
