"""Tasks: the loss of a model's outputs, which are right, what they predict, and the form of the targets.

A task of a user's own is a record made of one of these, named "package.module:Name":

    Focal = replace(TASKS["classification"], losses=focal, metrics=(sensitivity,))
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedpers.core.errors import ConfigError, unknown
from fedpers.core.host import from_import_path

OWN = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # an own one; devices' policies read it, too
IGNORED = -100  # the target of a token that counts for nothing, as torch's cross entropy has it
Scoring = Callable[[Tensor, Tensor], Tensor]  # (outputs [n, ...], targets [n, ...]) -> [n]


@dataclass(frozen=True)
class Task:
    """How a model of outputs [n, K] (of tokens [n, length, K]) is trained and judged.

    losses: the loss of each sample, [n]; correct: the share of it that is right, [n], nan where nothing is.
    outputs: logits of classes (softmax), of yes and no (sigmoid), or values: how they predict and are mixed.
    targets: what y is: class [n], tokens [n, length], labels [n, K] of 0 and 1, or values [n] or [n, K].
    second: K to a bound of the second derivative of `losses` in the outputs; None: nobody knows one.
    metrics: what is measured beyond `metrics=`, names of `core.scores` or functions of (y, predictions).
    """

    name: str
    losses: Scoring
    correct: Scoring
    outputs: Literal["softmax", "sigmoid", "values"]
    targets: Literal["class", "tokens", "labels", "values"]
    second: Callable[[int], float] | None = None
    metrics: tuple[Any, ...] = ()

    @property
    def one_output(self) -> bool:
        """Whether a model has one output, however many classes there are."""
        return self.outputs == "sigmoid" and self.targets == "class"

    def predictions(self, outputs: Tensor) -> Tensor:
        """Probabilities of classes [n, ..., K] (of yes and no [n, 2]) or of labels [n, K]; values."""
        if self.outputs == "softmax":
            return outputs.softmax(-1)
        if self.one_output:
            return torch.cat([torch.sigmoid(-outputs), torch.sigmoid(outputs)], 1)
        return torch.sigmoid(outputs) if self.outputs == "sigmoid" else outputs

    def mixed(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """Outputs [n, ..., K] that predict Σ_j w_j p_j, from outputs [J, n, ..., K] and weights [J]."""
        if self.outputs == "values":
            return averaged(outputs, weights)
        log_w = _beside(outputs, weights).log()
        if self.outputs == "sigmoid":
            yes, no = (F.logsigmoid(sign * outputs) for sign in (1, -1))
            return torch.logsumexp(log_w + yes, 0) - torch.logsumexp(log_w + no, 0)
        return torch.logsumexp(log_w + torch.log_softmax(outputs, -1), 0)


def averaged(outputs: Tensor, weights: Tensor) -> Tensor:
    """Σ_j w_j out_j of outputs [J, n, ..., K] and weights [J]."""
    return (_beside(outputs, weights) * outputs).sum(0)


def _beside(outputs: Tensor, weights: Tensor) -> Tensor:
    return weights.to(outputs.dtype).reshape(-1, *[1] * (outputs.dim() - 1))


def _cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """-log softmax(f)_y."""
    if torch.is_grad_enabled():
        return F.cross_entropy(outputs, y, reduction="none")
    z = outputs - outputs.amax(1, keepdim=True)  # five times as fast as torch's where classes are few
    return z.exp().sum(1).log() - z.gather(1, y.unsqueeze(1)).squeeze(1)


def _logistic(outputs: Tensor, y: Tensor) -> Tensor:
    """log(1 + exp(f)) - y f without overflow, the mean over outputs."""
    target = y.to(outputs.dtype).reshape(outputs.shape)
    return F.binary_cross_entropy_with_logits(outputs, target, reduction="none").mean(1)


def _squares(outputs: Tensor, y: Tensor) -> Tensor:
    """(f - y)² without a factor 1/2, the mean over outputs."""
    return (outputs - y.to(outputs.dtype).reshape(outputs.shape)).square().mean(1)


def _of_tokens(outputs: Tensor, y: Tensor) -> Tensor:
    """-log softmax(f)_y, the mean over a sample's tokens that are not IGNORED; 0 where all are."""
    real = y != IGNORED
    log_p = torch.log_softmax(outputs, -1).gather(-1, y.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return -(log_p * real).sum(1) / real.sum(1).clamp(min=1)


def _right_class(outputs: Tensor, y: Tensor) -> Tensor:
    right = (outputs.argmax(1) == y) & outputs.amax(1).isfinite()
    return right.to(outputs.dtype)


def _right_sides(outputs: Tensor, y: Tensor) -> Tensor:
    """The share of outputs on the right side of 0."""
    right = ((outputs > 0) == y.reshape(outputs.shape)) & ~outputs.isnan()
    return right.to(outputs.dtype).mean(1)


def _right_tokens(outputs: Tensor, y: Tensor) -> Tensor:
    real = y != IGNORED
    right = (outputs.argmax(-1) == y) & outputs.amax(-1).isfinite() & real
    return right.to(outputs.dtype).sum(1) / real.sum(1).clamp(min=1)


def _nothing(outputs: Tensor, y: Tensor) -> Tensor:
    return torch.full_like(outputs[:, 0], math.nan)


# Bounds of second derivatives: of p(1 - p), and of diag(p) - pp' (Böhning, "Multinomial logistic regression
# algorithm", Ann. Inst. Stat. Math. 44, 1992); exact for the mean square
TASKS: Mapping[str, Task] = {
    t.name: t
    for t in (
        Task("classification", _cross_entropy, _right_class, "softmax", "class", lambda K: 0.5),
        Task("binary", _logistic, _right_sides, "sigmoid", "class", lambda K: 0.25),
        Task("regression", _squares, _nothing, "values", "values", lambda K: 2 / K),
        Task("tokens", _of_tokens, _right_tokens, "softmax", "tokens", metrics=("perplexity",)),
        Task("multilabel", _logistic, _right_sides, "sigmoid", "labels", metrics=("label_f1", "label_auc")),
        Task("ranking", _logistic, _right_sides, "sigmoid", "class", metrics=("hr_at_10", "ndcg_at_10")),
    )
}
PLAIN = ("classification", "binary", "regression")  # the tasks that kernels, closed forms and devices know
FROM_ARRAYS = (*PLAIN, "multilabel", "tokens")  # the tasks that own arrays (x, y) can be for
WHOLE_NUMBERS = ("class", "tokens")  # targets that are no floating-point numbers
CLASSED = ("classification", "binary")  # whose targets are classes that samples can be dealt by


@cache
def task_of(name: str) -> Task:
    """The task of this name, or that of "package.module:Name"; modules of the current folder are found too.

    Raises:
        ConfigError: there is none, or it is no `Task`.
    """
    if name in TASKS:
        return TASKS[name]
    if not OWN.fullmatch(name):
        raise ConfigError(unknown("task", name, TASKS) + "; one of yours is written package.module:Name")
    try:
        found = from_import_path(name)
    except Exception as error:  # an imported module may raise anything
        raise ConfigError(f"task={name}: cannot import it ({type(error).__name__}: {error})") from error
    if not isinstance(found, Task):
        raise ConfigError(
            f"task={name}: is a {type(found).__name__}; make a Task: "
            'replace(TASKS["classification"], losses=your_function)'
        )
    return found


def base_of(name: str) -> str:
    """The task of TASKS whose data a task takes: its own name, or that which it was made of."""
    return name if name in TASKS else task_of(name).name


def metrics_of(name: str) -> tuple[str, ...]:
    """What the task measures by itself, as `metrics=` names it.

    Raises:
        ConfigError: a function of the user's has no place that it could be imported from.
    """
    return tuple(m if isinstance(m, str) else _path(m, name) for m in task_of(name).metrics)


def _path(function: Any, task: str) -> str:
    path = f"{getattr(function, '__module__', None)}:{getattr(function, '__qualname__', None)}"
    if not OWN.fullmatch(path):
        raise ConfigError(
            f"task={task}: its metric {function!r} must be a function at the top level of a module"
        )
    return path
