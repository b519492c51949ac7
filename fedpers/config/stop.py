"""`stop:` when a run ends before its last round; by validation data, never by test data."""

from dataclasses import dataclass

from fedpers.core.bounds import bounds, show
from fedpers.core.errors import unknown
from fedpers.core.scores import SCORES, SPREADS

SMALLER_IS_BETTER = ("loss", "ece", "brier", "mae", "variance")
KNOWN = ("accuracy", "loss", "accuracy_mean", "worst_decile")


@dataclass(frozen=True)
class StopConfig:
    """End when `metric` reaches `target`, or has not become better in `patience` evaluations."""

    metric: str = "accuracy"  # a column of metrics.csv, its split valid
    target: float | None = None
    patience: int | None = None  # evaluations

    @property
    def on(self) -> bool:
        """Whether a run may end early."""
        return self.target is not None or self.patience is not None

    def better(self, value: float, other: float) -> bool:
        """Whether the first is strictly better; no number never is."""
        return value < other if self.metric in SMALLER_IS_BETTER else value > other

    def reaches(self, value: float) -> bool:
        """Whether a value is as good as the target."""
        return self.target is not None and (value == self.target or self.better(value, self.target))

    def check(self) -> list[str]:
        """Problems of values."""
        known = (*KNOWN, *SCORES, *SPREADS)
        if self.metric not in known:
            return [f"metric={show(self.metric)}: {unknown('metric', self.metric, known)}"]
        return bounds(self, patience=(1, None))

    def unfit(self, metrics: tuple[str, ...], eval_every: int, valid_fraction: float) -> list[str]:
        """Problems with the other keys of the run."""
        if not self.on:
            return []
        found = []
        if self.metric not in KNOWN and self.metric not in metrics:
            found.append(f"stop.metric={self.metric}: nobody measures it; add metrics=[{self.metric}]")
        if not eval_every:
            found.append("stop: eval_every=0 measures nothing before the last round; set eval_every=1")
        if not valid_fraction:
            text = "it goes by validation data, and there is none"
            found.append(f"stop: {text}; set data.valid_fraction, such as 0.1")
        return found
