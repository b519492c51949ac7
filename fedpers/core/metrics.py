"""From one row a client to the numbers of a round."""

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from fedpers.core.scores import over_clients, short

Columns = dict[str, np.ndarray]

WORST = 0.1  # share of the clients that `worst_decile` is about


def tabulate(rows: Mapping[int, Mapping[str, float]], new: Collection[int]) -> Columns:
    """Columns of equal length from a row of metrics a client, by partition id.

    What `new` clients, who never trained, measured on their test split is split "new"; a client
    that is not in a split has 0 samples there and nan for the rest.
    """
    rows = {k: _as_new(row) if k in new else row for k, row in rows.items()}
    names = dict.fromkeys(name for row in rows.values() for name in row)
    table = {n: np.array([float(row.get(n, _absent(n))) for row in rows.values()]) for n in names}
    return {"partition_id": np.array(list(rows)), **table}


def in_words(column: str) -> str:
    """A column of metrics.csv as screens, tables and pages name it."""
    return column.replace("worst_decile", "worst tenth")


def _as_new(row: Mapping[str, float]) -> dict[str, float]:
    prefix = "test_"
    return {f"new_{n[len(prefix) :]}": v for n, v in row.items() if n.startswith(prefix)}


def _absent(name: str) -> float:
    return 0.0 if name.endswith("_num") else math.nan


def summarise(clients: dict[str, np.ndarray], split: str, metrics: Sequence[str] = ()) -> dict[str, float]:
    """The numbers of one split ("valid" or "test") over the clients that have samples in it.

    loss, accuracy: weighted by samples; accuracy_mean: clients count equally; worst_decile: mean
    accuracy of the worst ceil(N/10) clients. Where there is no accuracy (regression), worst_decile
    is the mean loss of the ceil(N/10) clients with the largest. Columns `{split}_loss_before` and
    `{split}_accuracy_before`, the model before local adaptation, give loss_before, ... alike.
    Everything is nan where no client has a sample. `metrics` names further ones, see `core.scores`.
    """
    result = _numbers(clients, split, "", metrics)
    if f"{split}_loss_before" in clients:
        before = _numbers(clients, split, "_before", metrics)
        result |= {f"{name}_before": value for name, value in before.items()}
    return result


def on_training_data(clients: dict[str, np.ndarray]) -> dict[str, float]:
    """train_loss and train_accuracy, clients counting equally, where clients measure them."""
    found = {n: np.asarray(clients[n], dtype=float) for n in ("train_loss", "train_accuracy") if n in clients}
    return {n: float(v[~np.isnan(v)].mean()) for n, v in found.items() if not np.isnan(v).all()}


def of_centers(metric: np.ndarray, smaller_is_better: bool) -> dict[str, float]:
    """Columns of a table [S, sources] of how good each center is on each source.

    center_best_j and center_worst_j over the centers on source j; centers_apart: the share of
    sources whose best center is the best of no other source; centers_spread: the mean over sources of the
    distance of the best from the worst.
    """
    score = -metric if smaller_is_better else metric
    score = np.where(np.isnan(score), -np.inf, score)  # a center whose values are nan is best at nothing
    best, places = score.argmax(0), np.arange(metric.shape[1])
    columns = {f"center_best_{j}": float(metric[best[j], j]) for j in places}
    columns |= {f"center_worst_{j}": float(metric[score.argmin(0)[j], j]) for j in places}
    alone = [int((best == b).sum() == 1) for b in best]
    spread = float(np.ptp(metric, axis=0).mean())
    return columns | {"centers_apart": float(np.mean(alone)), "centers_spread": spread}


def _numbers(
    clients: dict[str, np.ndarray], split: str, suffix: str, metrics: Sequence[str]
) -> dict[str, float]:
    num = np.asarray(clients[f"{split}_num"], dtype=float)
    seen = num > 0
    loss = np.asarray(clients[f"{split}_loss{suffix}"], dtype=float)[seen]
    accuracy = np.asarray(clients[f"{split}_accuracy{suffix}"], dtype=float)[seen]
    weights = num[seen]
    known = bool(len(accuracy)) and not np.isnan(accuracy).all()
    return {
        "loss": _weighted(loss, weights),
        "accuracy": _weighted(accuracy, weights) if known else math.nan,
        "accuracy_mean": float(accuracy.mean()) if known else math.nan,
        "worst_decile": _worst(accuracy) if known else -_worst(-loss),
        **over_clients(metrics, _further(clients, split, suffix, metrics, seen), accuracy, loss),
    }


def _further(
    clients: dict[str, np.ndarray], split: str, suffix: str, metrics: Sequence[str], seen: np.ndarray
) -> Columns:
    columns = {name: f"{split}_{name}{suffix}" for name in map(short, metrics)}
    return {n: np.asarray(clients[c], dtype=float)[seen] for n, c in columns.items() if c in clients}


def _weighted(values: np.ndarray, weights: np.ndarray) -> float:
    return float((values * weights).sum() / weights.sum()) if len(values) else math.nan


def _worst(values: np.ndarray) -> float:
    """Mean of the smallest ceil(N/10) values; a nan is worse than any number."""
    if not len(values):
        return math.nan
    ranked = np.sort(np.where(np.isnan(values), -np.inf, values))[: math.ceil(WORST * len(values))]
    return float(ranked.mean()) if np.isfinite(ranked).all() else math.nan
