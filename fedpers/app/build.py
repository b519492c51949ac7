"""From a configuration to the objects of a run; the same on the server and on every client."""

import json
import logging
from dataclasses import dataclass
from typing import Any

from fedpers.app.devices import choose_device
from fedpers.app.unlike import Unlike, check_unlike
from fedpers.config import public
from fedpers.config.model_config import ModelConfig
from fedpers.config.registry import method
from fedpers.config.run_config import RunConfig, from_mapping, to_mapping
from fedpers.core import scores
from fedpers.core.data import Federation
from fedpers.core.errors import ConfigError
from fedpers.core.systems import Systems
from fedpers.core.tasks import base_of
from fedpers.datasets.config import TASKS_OF
from fedpers.flower.client import PersonalizedClient
from fedpers.flower.strategy import PersonalizedStrategy, Plan
from fedpers.learning.model import Model, build_model, check_inputs
from fedpers.learning.soft_targets import softened
from fedpers.learning.training_round import trainings

log = logging.getLogger("fedpers")


@dataclass(frozen=True)
class Parts:
    """What a run is made of."""

    strategy: PersonalizedStrategy
    client: PersonalizedClient
    federation: Federation
    model: Model  # with `unlike` the first of them
    plan: Plan
    unlike: Unlike | None = None  # where clients have unlike models


def assemble(cfg: RunConfig, federation: Federation | None = None, unlike: bool = False) -> Parts:
    """Load the data, unless `federation` is given, and build model, strategy and client.

    Args:
        cfg: the run.
        federation: the data; None: that of the configuration.
        unlike: whether the caller looks at `Parts.unlike`; else model=groups is refused.

    Raises:
        DataError: the data is missing, damaged or cannot be split as asked.
        ConfigError: the parts do not fit each other.
    """
    import torch

    from fedpers.datasets.federation import load_federation

    if federation is None:
        data = public.told(cfg.data, cfg.method_name)
        federation = load_federation(data, cfg.seed, getattr(torch, cfg.dtype))
    r, num_clients = cfg.clients_per_round, federation.num_clients
    if r is not None and r > num_clients:
        text = f"there are {num_clients} clients; choose at most that, or null for all"
        raise ConfigError(f"clients_per_round={r}: {text}")
    if cfg.model.several and not unlike:
        raise ConfigError("model=groups: only engine=inprocess gives clients unlike models; choose one model")
    models = [_model(cfg, one, federation) for one in cfg.model.models]
    model, plan, row = models[0], make_plan(cfg, num_clients), method(cfg.method_name)
    if row.strategy_class().takes_all:
        _check_that_all_take_part(cfg, num_clients - cfg.new_clients)
    _check_aggregation(cfg, row.strategy_class())
    strategy = row.strategy_class()(cfg.method, model, plan)
    if cfg.participation != "fixed" and strategy.draws_itself:
        text = f"method={cfg.method_name} {strategy.draws_itself} with these settings; leave it fixed"
        raise ConfigError(f"participation={cfg.participation}: {text}")
    _check_asked(cfg, strategy, num_clients)
    strategy.holdout, strategy.public = federation.holdout, federation.public
    if problems := scores.problems(cfg.metrics, federation.task):
        raise ConfigError(*problems)
    clients = [_client(cfg, each) for each in models]
    groups = None
    if cfg.model.several:
        check_unlike(cfg, row, models)
        groups = Unlike(cfg.model.models, models, clients, cfg.model.places(num_clients))
    return Parts(strategy, clients[0], federation, model, plan, groups)


def _model(cfg: RunConfig, chosen: ModelConfig, federation: Federation) -> Model:
    """One of the run's models, on the data it is for."""
    model = build_model(
        chosen.name,
        input_shape=federation.input_shape,
        num_outputs=federation.num_classes,
        task=_task(cfg, federation),
        **chosen.options,
    )
    for local in trainings(cfg.method).values():
        softened(model.loss, local)  # refuses softened targets where the loss has none
    if cfg.data.name != "device":  # whose inputs nobody here has seen
        check_inputs(model, federation.tokens, federation.input_shape)
    return model


def _client(cfg: RunConfig, model: Model) -> PersonalizedClient:
    """The method's client half, with what it measures."""
    client: PersonalizedClient = method(cfg.method_name).client_class()(cfg.method, model)
    if cfg.eval_train:
        client.splits = ("train", *client.splits)
    client.metrics = scores.of_one(scores.measured(cfg.metrics, model.task))
    return client


def sizes_of(parts: Parts) -> dict[str, Any]:
    """What summary.json has of the model's size, or of each model's."""
    if parts.unlike is not None:
        return {"models": parts.unlike.facts()}
    trained, entries = parts.model.trains
    if trained < entries:
        log.info(
            "trains %s of %s parameters; the others are frozen and never sent", f"{trained:,}", f"{entries:,}"
        )
    return {"trains": {"entries": trained, "of": entries}}


def _task(cfg: RunConfig, federation: Federation) -> str:
    """The task: that of the data set, or the one that `task=` names, where its targets are of that kind.

    Raises:
        ConfigError: task= is for other targets than the data has.
    """
    if cfg.task is None:
        return federation.task
    if base_of(cfg.task) != federation.task:
        sets = ", ".join(sorted(name for name, tasks in TASKS_OF.items() if cfg.task in tasks))
        raise ConfigError(
            f"task={cfg.task}: is for {base_of(cfg.task)}, and data={federation.name} is for "
            f"{federation.task}; leave it out, or choose other data" + (f": {sets}" if sets else "")
        )
    return cfg.task


def _check_that_all_take_part(cfg: RunConfig, num_clients: int) -> None:
    r, method_name = cfg.clients_per_round, f"method={cfg.method_name}"
    if r is not None and r < num_clients:
        text = f"{method_name} takes all {num_clients} clients in every round; leave it null"
        raise ConfigError(f"clients_per_round={r}: {text}")
    if cfg.participation != "fixed":
        text = f"{method_name} takes all clients in every round; leave it fixed"
        raise ConfigError(f"participation={cfg.participation}: {text}")


def _check_aggregation(cfg: RunConfig, strategy: type[PersonalizedStrategy]) -> None:
    if cfg.aggregation.name != "mean" and strategy.not_robust:
        kind, name = cfg.aggregation.name, cfg.method_name
        raise ConfigError(f"aggregation={kind} method={name}: {strategy.not_robust}; use aggregation=mean")


def _check_asked(cfg: RunConfig, strategy: PersonalizedStrategy, num_clients: int) -> None:
    """Refuse settings that change which clients take part, for a method that chooses them itself."""
    verb = "takes all clients in every round" if strategy.takes_all else strategy.draws_itself
    if verb and cfg.engine.extra:
        raise ConfigError(f"engine.extra={cfg.engine.extra}: method={cfg.method_name} {verb}; set it to 0")
    if cfg.systems.on and not Systems(cfg.systems, num_clients, 0).always and verb:
        text = f"method={cfg.method_name} {verb}, available or not; let all be available"
        raise ConfigError(f"systems={cfg.systems.name}: {text}")
    if cfg.systems.partial and not method(cfg.method_name).partial_work:
        text = "it is not known to bear clients that train for less than others; leave it false"
        raise ConfigError(f"systems.partial=true method={cfg.method_name}: {text}")


def make_plan(cfg: RunConfig, num_clients: int) -> Plan:
    """The part of the configuration that is the same for every method."""
    return Plan(
        seed=cfg.seed,
        clients_per_round=cfg.clients_per_round,
        participation=cfg.participation,
        least_per_round=cfg.least_per_round,
        eval_every=cfg.eval_every,
        eval_clients=cfg.eval_clients,
        eval_protocol=cfg.eval_protocol,
        new_clients=cfg.new_clients,
        new_epochs=cfg.new_epochs,
        new_lr=cfg.new_lr,
        extra=cfg.engine.extra,
        failures=cfg.failures,
        num_clients=num_clients,
        device=choose_device(cfg),
        dtype=cfg.dtype,
        privacy=cfg.privacy,
        aggregation=cfg.aggregation,
    )


def encode_config(cfg: RunConfig) -> str:
    """A configuration as text that `decode_config` reads back in another process."""
    return json.dumps(to_mapping(cfg))


def decode_config(text: str) -> RunConfig:
    """A configuration from `encode_config`'s text, or from Hydra overrides separated by spaces."""
    if text.lstrip().startswith("{"):
        return from_mapping(json.loads(text))
    import shlex

    from fedpers.config.compose import load

    return load(shlex.split(text))
