"""Metrics beyond loss and accuracy, by name: of one client's predictions, and of the spread over clients."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from fedpers.core.errors import ConfigError, unknown
from fedpers.core.host import from_import_path
from fedpers.core.tasks import OWN, TASKS, metrics_of

BINS = 15  # of the calibration error, as Guo et al., ICML 2017, have them
CLASSES, NUMBERS, TOKENS = ("classification", "binary"), ("regression",), ("tokens",)
LABELS, RANKED = ("multilabel",), ("ranking",)


@dataclass(frozen=True)
class Score:
    """A metric of one client: a function of targets y [n] and predictions [n, K], and what it is for.

    Predictions are probabilities (of a binary task [n, 2], of tokens [n, length, K]), or values.
    """

    text: str
    of: Callable[[np.ndarray, np.ndarray], float]
    tasks: Sequence[str] = CLASSES
    range: tuple[float, float] = (0.0, 1.0)
    may_be_nan: bool = False  # each is the metric of one client that has samples


def answers(p: np.ndarray) -> np.ndarray:
    """The class of the largest probability; -1, which is no class, where they are no numbers (nan)."""
    return np.where(np.isnan(p).any(1), -1, p.argmax(1))


def balanced_accuracy(y: np.ndarray, p: np.ndarray) -> float:
    """Mean recall over the classes that the client has."""
    from sklearn.metrics import recall_score

    return float(recall_score(y, answers(p), labels=np.unique(y), average="macro", zero_division=0.0))


def macro_f1(y: np.ndarray, p: np.ndarray) -> float:
    """Mean F1 over the classes that the client has; a class that is never predicted counts 0."""
    from sklearn.metrics import f1_score

    return float(f1_score(y, answers(p), labels=np.unique(y), average="macro", zero_division=0.0))


def auc(y: np.ndarray, p: np.ndarray) -> float:
    """Mean area under the ROC curve, one class against the rest, over the classes that the client has.

    nan where the client has one class: there is nothing to rank.
    """
    from sklearn.metrics import roc_auc_score

    found = np.unique(y)
    if len(found) < 2:
        return float("nan")
    return float(np.mean([roc_auc_score(y == c, p[:, int(c)]) for c in found]))


def ece(y: np.ndarray, p: np.ndarray) -> float:
    """Expected calibration error: |accuracy - confidence| in 15 equal bins of the confidence, by size."""
    confidence, right = p.max(1), p.argmax(1) == y
    place = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    gaps = np.bincount(place, right - confidence, minlength=BINS)
    return float(np.abs(gaps).sum() / len(y))


def brier(y: np.ndarray, p: np.ndarray) -> float:
    """Mean squared distance of the probabilities from the truth, summed over classes: in [0, 2]."""
    truth = np.eye(p.shape[1])[y.astype(int)]
    return float(((p - truth) ** 2).sum(1).mean())


def mae(y: np.ndarray, p: np.ndarray) -> float:
    """Mean absolute error, over outputs too."""
    return float(np.abs(p - y.reshape(p.shape)).mean())


def r2(y: np.ndarray, p: np.ndarray) -> float:
    """The share of the variance that is explained; nan where the client has under two samples."""
    from sklearn.metrics import r2_score

    return float("nan") if len(y) < 2 else float(r2_score(y.reshape(p.shape), p))


def perplexity(y: np.ndarray, p: np.ndarray) -> float:
    """exp of the mean of -log p_y over all tokens that count: K for one who guesses among K."""
    real = y >= 0
    own = np.take_along_axis(p, np.maximum(y, 0)[..., None], -1)[..., 0][real]
    return float(np.exp(-np.log(own.astype(np.float64)).mean())) if len(own) else math.nan


def _places(y: np.ndarray, p: np.ndarray) -> np.ndarray:
    """The place of each thing that was chosen among those that were not, from 0; equals stand before it."""
    score = p[:, -1]
    others = np.sort(score[y == 0])
    return len(others) - np.searchsorted(others, score[y == 1], side="left")


def hr_at_10(y: np.ndarray, p: np.ndarray) -> float:
    """The share of what was chosen that is among the first ten."""
    places = _places(y, p)
    return float((places < 10).mean()) if len(places) else math.nan


def ndcg_at_10(y: np.ndarray, p: np.ndarray) -> float:
    """1 / log2(2 + place) of what was chosen, 0 from place 10 on, the mean."""
    places = _places(y, p)
    return float(np.where(places < 10, 1 / np.log2(2.0 + places), 0.0).mean()) if len(places) else math.nan


def label_f1(y: np.ndarray, p: np.ndarray) -> float:
    """Mean F1 over the labels that some sample has; one that is never predicted counts 0."""
    has, said = y > 0, p > 0.5
    right, seen = (has & said).sum(0), has.any(0)
    f1 = 2 * right / np.maximum(has.sum(0) + said.sum(0), 1)
    return float(f1[seen].mean()) if seen.any() else math.nan


def label_auc(y: np.ndarray, p: np.ndarray) -> float:
    """Mean area under the ROC curve over the labels that some samples have and some have not."""
    from sklearn.metrics import roc_auc_score

    both = [k for k in range(y.shape[1]) if 0 < y[:, k].sum() < len(y)]
    return float(np.mean([roc_auc_score(y[:, k], p[:, k]) for k in both])) if both else math.nan


SCORES = {  # of one client
    "balanced_accuracy": Score("mean recall over the classes that a client has", balanced_accuracy),
    "macro_f1": Score("mean F1 over the classes that a client has", macro_f1),
    "auc": Score("area under the ROC curve, one class against the rest", auc, may_be_nan=True),
    "ece": Score("expected calibration error, 15 bins", ece),
    "brier": Score("Brier score, summed over classes", brier, range=(0.0, 2.0)),
    "mae": Score("mean absolute error", mae, NUMBERS, (0.0, math.inf)),
    "perplexity": Score(
        "exp of the mean loss of a token", perplexity, TOKENS, (1.0, math.inf), may_be_nan=True
    ),
    "hr_at_10": Score("share of choices among the first ten", hr_at_10, RANKED, may_be_nan=True),
    "ndcg_at_10": Score("gain of choices among the first ten", ndcg_at_10, RANKED, may_be_nan=True),
    "label_f1": Score("mean F1 over labels", label_f1, LABELS, may_be_nan=True),
    "label_auc": Score("mean area under the ROC curve over labels", label_auc, LABELS, may_be_nan=True),
    "r2": Score("share of the variance that is explained", r2, NUMBERS, (-math.inf, 1.0), may_be_nan=True),
}


OF_ANSWERS = ("balanced_accuracy", "macro_f1")  # these need only the class with the largest probability


def variance(values: np.ndarray) -> float:
    """Of the clients' values around their mean (ddof 0): 0 where all are served alike."""
    return float(values.var())


def jain(values: np.ndarray) -> float:
    """Jain's index (Σ v)² / (N Σ v²) of the clients' values: 1 where all are equal, 1/N where one has all."""
    square = float((values**2).sum())
    return float(values.sum() ** 2 / (len(values) * square)) if square else 1.0


SPREADS: dict[str, Callable[[np.ndarray], float]] = {  # over clients' accuracies, or losses for regression
    "variance": variance,
    "jain": jain,
}


def short(name: str) -> str:
    """What the column of a metric is called: "auc", or of "package.module:function" the function."""
    return name.rpartition(":")[2]


@cache
def own(spec: str) -> Score:
    """The metric of "package.module:function"; modules of the current folder are found as well.

    Raises:
        ConfigError: it cannot be imported, or is no function.
    """
    try:
        function = from_import_path(spec)
    except Exception as error:  # an imported module may raise anything
        raise ConfigError(f"metrics=[{spec}]: cannot import it ({type(error).__name__}: {error})") from error
    if not callable(function):
        raise ConfigError(f"metrics=[{spec}]: is a {type(function).__name__}; name a function of (y, p)")
    return Score(spec, function, tuple(TASKS), (-math.inf, math.inf), may_be_nan=True)


def _value(name: str, y: np.ndarray, predictions: np.ndarray) -> float:
    """A metric of one client.

    Raises:
        ConfigError: a function of the user's raises, or gives no number.
    """
    if ":" not in name:
        return SCORES[name].of(y, predictions)
    try:
        return float(own(name).of(y, predictions))
    except Exception as error:
        text = f"failed on y {y.shape} and predictions {predictions.shape}"
        raise ConfigError(f"metrics=[{name}]: {text} ({type(error).__name__}: {error})") from error


def problems(names: Sequence[str], task: str | None = None) -> list[str]:
    """A problem for each name that is no metric, or none of this task (where it is known).

    Functions of the user's are not imported here: a device has to allow that first.
    """
    known = [*SCORES, *SPREADS]
    hint = "; a function of yours is written package.module:function"
    found = [unknown("metric", n, known) + hint for n in names if ":" not in n and n not in known]
    taken = [*known, "loss", "accuracy", "num"]
    for name in (n for n in names if ":" in n):
        if not OWN.fullmatch(name):
            found.append(f"metrics=[{name}]: is no package.module:function")
        elif short(name) in taken:
            found.append(f"metrics=[{name}]: no column may be called '{short(name)}'; rename the function")
        taken.append(short(name))
    for name in names:
        if task and name in SCORES and task not in SCORES[name].tasks:
            fitting = [*(k for k, s in SCORES.items() if task in s.tasks), *SPREADS]
            found.append(
                f"metrics=[{name}]: a {task} task has no such metric; choose of {', '.join(fitting)}"
            )
    return found


def measured(names: Sequence[str], task: str) -> tuple[str, ...]:
    """What a run measures: what it was told to, and what the task measures by itself."""
    return tuple(dict.fromkeys((*names, *metrics_of(task))))


def of_one(names: Sequence[str]) -> tuple[str, ...]:
    """Those of the names that are one client's."""
    for name in (n for n in names if ":" in n):
        own(name)  # a metric that cannot be imported ends the run before its first round
    return tuple(n for n in names if n in SCORES or ":" in n)


def of_client(names: Sequence[str], y: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """These metrics of one client's samples; nan without a sample, or where predictions are no numbers.

    Those that look at answers alone count a prediction that is no number as wrong.
    """
    measurable = names if np.isfinite(predictions).all() else [n for n in names if n in OF_ANSWERS]
    return {short(n): _value(n, y, predictions) if len(y) and n in measurable else math.nan for n in names}


def over_clients(
    names: Sequence[str], columns: Mapping[str, np.ndarray], accuracy: np.ndarray, loss: np.ndarray
) -> dict[str, float]:
    """The numbers of a split from its clients' values.

    Args:
        names: of SCORES and SPREADS.
        columns: {metric: values [N]}; their mean is taken, clients counting equally, without the nan of
            clients on whose data there is nothing to measure. It is nan where a model has no numbers.
        accuracy: [N]; where it is nan (regression) the spreads are those of `loss` [N].
    """
    found = {}
    for name in map(short, names):
        if name in columns:
            left_out = np.isnan(columns[name]) & np.isfinite(loss)
            known = columns[name][~left_out]
            found[name] = float(known.mean()) if len(known) else float("nan")
        elif name in SPREADS and len(loss):
            found[name] = SPREADS[name](loss if np.isnan(accuracy).all() else accuracy)
    return found
