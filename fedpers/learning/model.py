"""Models: pure functions of dicts of tensors, each a body and a last linear layer, the head.

The bodies are in `fedpers.learning.networks`; their shapes follow from the data.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpers.core.data import Data
from fedpers.core.errors import ConfigError, FedpersError, unknown
from fedpers.core.params import Params, merge
from fedpers.core.plan import Plan
from fedpers.core.tasks import Task, base_of, task_of
from fedpers.learning.constants import other_base
from fedpers.learning.layers import MismatchError, Network, fresh, linear_start
from fedpers.learning.module import BODY, HEAD, ModuleNetwork
from fedpers.learning.networks import NETWORKS, builder, options_of
from fedpers.learning.starts import INITS, seeded

MODELS = NETWORKS  # what `model=` may be


@dataclass(frozen=True)
class Model:
    """A network, its head and its loss. Parameters are an argument of every function, a dict of tensors."""

    name: str
    task: str  # a name of TASKS, or package.module:Name of one of the user's
    num_features: int  # M, inputs of the head
    num_outputs: int  # K; 1 when the task is binary or ranking
    network: Network
    bias: bool = True  # of the head
    start: str = "default"  # a name of INITS

    @property
    def kind(self) -> Task:
        """The record of its task: what outputs, losses and predictions are."""
        return task_of(self.task)

    def init(self, seed: int) -> Params:
        """All initial parameters: `init_trained`, and those that are frozen, which no seed moves."""
        return self.init_trained(seed) | self.constants

    @property
    def constants(self) -> Params:
        """Frozen parameters and buffers: never trained, sent or stored; no part of a run's parameters."""
        return self.network.constants

    def check_base(self, digest: str) -> None:
        """Compare the digest of frozen parameters with that of the process that leads the run.

        Raises:
            FedpersError: they differ.
        """
        if digest != self.network.digest:
            raise FedpersError(other_base(f"model={self.name}", self.network.digest, digest))

    @property
    def trains(self) -> tuple[int, int]:
        """(number of entries that are trained, number of all entries of the parameters)."""
        trained = sum(v.numel() for v in self.init_trained(0).values())
        return trained, trained + self.network.num_frozen

    def init_trained(self, seed: int) -> Params:
        """Initial parameters that are trained, drawn from `seed`; torch's global generator is restored."""
        with seeded(seed):
            own = self.network.init()
            head = {} if HEAD + "weight" in own else self._new_head(self.num_outputs)
            return INITS[self.start](merge(own, head))

    def init_head(self, seed: int, num_outputs: int | None = None) -> Params:
        """An initial head from `seed`, weight [K, M] and bias [K]; K is `num_outputs` or the model's."""
        return {name: value[0] for name, value in self.init_heads([seed], num_outputs).items()}

    def init_heads(self, seeds: Sequence[int], num_outputs: int | None = None) -> Params:
        """`init_head` of N seeds together, weight [N, K, M] and bias [N, K]."""
        wanted = self.num_outputs if num_outputs is None else num_outputs
        if self.start == "default":
            heads = linear_start(self.num_features, wanted, self.bias, seeds)
            return {HEAD + name: value for name, value in heads.items()}
        drawn = [self._drawn_head(wanted, seed) for seed in seeds]
        return {name: torch.stack([head[name] for head in drawn]) for name in drawn[0]}

    def _drawn_head(self, num_outputs: int, seed: int) -> Params:
        with seeded(seed):
            return INITS[self.start](self._new_head(num_outputs))

    def _new_head(self, num_outputs: int) -> Params:
        linear = nn.Linear(self.num_features, num_outputs, bias=self.bias)
        return {HEAD + name: value for name, value in fresh(linear).items()}

    def is_head(self, name: str) -> bool:
        """Whether this parameter belongs to the head."""
        return name.startswith(HEAD)

    def is_norm(self, name: str) -> bool:
        """Whether this parameter belongs to a normalisation layer."""
        return name in self.network.norms

    def with_statistics(self, params: Params, x: Tensor) -> Params:
        """The parameters with BatchNorm's statistics on a client's training inputs x [n, ...].

        With these the model predicts by itself as it does on that client; without BatchNorm nothing is added.
        """
        found = self.network.statistics(params, x)
        return params | {BODY + name: value for name, value in found.items()}

    def body(self, params: Params, x: Tensor) -> Tensor:
        """Features [n, M] of inputs [n, ...]; `params` must hold the body's parameters."""
        return self.network(params, x)

    def head(self, params: Params, features: Tensor) -> Tensor:
        """Outputs [n, K], logits or values, of features [n, M]; `params` must hold the head's."""
        values = F.linear(features, params[HEAD + "weight"], params.get(HEAD + "bias"))
        return values.relu().softmax(1) if self.network.softmax_head else values

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        """Outputs [n, K] of inputs [n, ...]."""
        return self.head(params, self.body(params, x))

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of each sample, [n]."""
        return self.kind.losses(outputs, y)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Probabilities [n, ..., K] of classes (of yes and no [n, 2]) or labels; values for regression."""
        return self.kind.predictions(outputs)

    def correct(self, outputs: Tensor, y: Tensor) -> Tensor:
        """1 where the prediction is right, else 0, [n]; of tokens and labels the share; nan for regression.

        Outputs that give no probabilities are right about nothing, though the argmax of nan is a class.
        """
        return self.kind.correct(outputs, y)

    def loss(self, params: Params, data: Data) -> Tensor:
        """Mean loss over the samples that are not padding, a scalar; nan if there is none."""
        return self.head_loss(params, self.body(params, data.x), data)

    def head_loss(self, params: Params, features: Tensor, data: Data) -> Tensor:
        """`loss`, given the features [n, M]; `data.x` is not read."""
        losses = self.sample_losses(self.head(params, features), data.y)
        return (losses * data.mask).sum() / data.num

    def features_loss(self, params: Params, data: Data) -> Tensor:
        """`loss` of a head on data whose inputs are the features [n, M]."""
        return self.head_loss(params, data.x, data)


def build_model(
    name: str,
    *,
    input_shape: tuple[int, ...],
    num_outputs: int,
    task: str,
    init: str = "default",
    bias: bool = True,
    **options: Any,
) -> Model:
    """The model `name` of NETWORKS for data of this shape.

    Args:
        input_shape: of one sample, without the batch dimension.
        num_outputs: K, classes or targets; a binary task has one output whatever it is.
        task: a name of TASKS, or package.module:Name.
        init: how parameters are initialised, a name of INITS.
        bias: whether the head has one.
        options: the network's own keyword arguments, such as mlp's `hidden`.

    Raises:
        ConfigError: a name, option or value is unknown, or the model cannot take such data.
    """
    problems = _problems(name, num_outputs, task, init, bias, options)
    if problems:
        raise ConfigError(*problems)
    kind = task_of(task)
    num_outputs = 1 if kind.one_output else num_outputs
    with seeded(0):  # a module is tried on made-up inputs
        network = _network(name, input_shape, num_outputs, kind.targets == "tokens", options)
    _check_form(name, task, kind.targets == "tokens", network)
    if init == "zeros" and (isinstance(network, ModuleNetwork) or network.init()):
        raise ConfigError(
            f"model.init is zeros, from which the hidden layers of '{name}' never move; "
            "use default or xavier_normal"
        )
    return Model(
        name=name,
        task=task,
        num_features=network.num_features,
        num_outputs=num_outputs,
        network=network,
        bias=network.head_bias if isinstance(network, ModuleNetwork) else bias,
        start=init,
    )


def _problems(
    name: str, num_outputs: int, task: str, init: str, bias: bool, options: dict[str, Any]
) -> list[str]:
    problems = []
    try:
        known = options_of(name, options.get("library"))
        wrong = [option for option in options if option not in known]
        problems += [unknown(f"option of model '{name}'", option, known) for option in wrong]
    except ConfigError as error:
        problems += error.problems
    if init not in INITS:
        problems.append(unknown("model.init", str(init), INITS))
    if not isinstance(bias, bool):
        problems.append(f"model.bias is {bias!r}; it must be true or false")
    if num_outputs < 1:
        problems.append(f"a model with {num_outputs} outputs was asked for; it needs at least 1")
    try:
        base = base_of(task)
    except ConfigError as error:
        return [*problems, *error.problems]
    if (name, base == "regression") in {("linear", False), ("logistic", True)}:
        other = {"linear": "logistic", "logistic": "linear"}[name]
        problems.append(f"model '{name}' does not fit a {task} task; use model={other}")
    return problems


def _check_form(name: str, task: str, each_token: bool, network: Network) -> None:
    """Raise ConfigError for a network without outputs for each token where the task needs them, or with."""
    gives = isinstance(network, ModuleNetwork) and network.each_token
    if gives and not each_token:
        raise ConfigError(
            f"model={name} gives outputs for each token, [n, length, K], and the task {task} needs one row a "
            "sample; set task=tokens on data that has such targets, or return the last token's"
        )
    if each_token and not gives:
        raise ConfigError(
            f"model={name} gives one row of outputs a sample, and the task {task} needs one for each token; "
            "use model=lstm, model=transformer, or a module that returns [n, length, K]"
        )


def _network(
    name: str, shape: tuple[int, ...], num_outputs: int, each_token: bool, options: dict[str, Any]
) -> Network:
    options = dict(options)
    make = builder(name, options.pop("library", None))
    takes = inspect.signature(make).parameters
    more = {"num_outputs": num_outputs, "name": name, "each_token": each_token}
    try:
        return make(tuple(shape), **options, **{k: v for k, v in more.items() if k in takes})
    except MismatchError as e:
        raise ConfigError(
            f"model '{name}' cannot take inputs of shape {tuple(shape)}: {e}. "
            "Use model=mlp, which takes any shape, or data with larger images"
        ) from e


def check_inputs(model: Model, tokens: int, input_shape: tuple[int, ...]) -> None:
    """Refuse a model of measurements for texts, one of texts for measurements, and too small a vocabulary.

    Args:
        tokens: how many tokens the data has; 0: it holds measurements.
        input_shape: of one sample.

    Raises:
        ConfigError: says which model or key would do.
    """
    network = model.network
    if tokens and not isinstance(network, ModuleNetwork):
        raise ConfigError(
            f"model={model.name} takes measurements, and the data holds numbers of tokens; use model=lstm, "
            "model=transformer or model=module"
        )
    if network.tokens and not tokens:
        raise ConfigError(
            f"model={model.name} embeds tokens, and the data holds measurements; "
            "if they are numbers of tokens, set data.tokens=true"
        )
    if not network.tokens:
        return
    try:
        with torch.no_grad():
            network(model.with_statistics(model.init(0), torch.zeros(2, *input_shape)),
                    torch.full((1, *input_shape), float(tokens - 1)))  # fmt: skip
    except IndexError as error:
        raise ConfigError(
            f"model={model.name} has too small a vocabulary: the data has tokens up to {tokens - 1}; "
            f"set model.vocabulary={tokens}, or what your module calls it"
        ) from error


def initial_params(model: Model, plan: Plan) -> Params:
    """The initial parameters of a run, of the plan's seed, device and dtype."""
    dtype = getattr(torch, plan.dtype)
    return {k: v.to(plan.device, dtype) for k, v in model.init_trained(plan.seed).items()}
