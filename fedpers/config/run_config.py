"""What a run is: frozen dataclasses that every YAML value is checked against."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from fedpers.config import devices, observers, public, registry, schema, search, slips, task
from fedpers.config.engine import ENGINES_OF, EngineConfig
from fedpers.config.model_config import ModelConfig, model_of
from fedpers.config.stop import StopConfig
from fedpers.core import scores
from fedpers.core.aggregation import USED_BY, AggregationConfig
from fedpers.core.bounds import bounds, show
from fedpers.core.errors import ConfigError
from fedpers.core.privacy import PrivacyConfig
from fedpers.core.systems import SystemsConfig
from fedpers.datasets.config import DataConfig, unused

RESUMABLE = ("rounds", "device", "checkpoint_every", "eval_every", "engine", "observers",
             "devices")  # fmt: skip  # may change later


@dataclass(frozen=True)
class RunConfig:
    """One run. `method` is the config dataclass of the method called `method_name`."""

    method_name: str
    method: Any
    data: DataConfig
    model: ModelConfig
    engine: EngineConfig = field(default_factory=EngineConfig)
    aggregation: AggregationConfig = field(default_factory=AggregationConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    systems: SystemsConfig = field(default_factory=SystemsConfig)
    task: str | None = None  # what outputs are for, a name or pkg.mod:Name; null: as the data says
    rounds: int = 20
    seed: int = 0
    clients_per_round: int | None = None  # null = all
    participation: Literal["fixed", "bernoulli", "range"] = "fixed"
    least_per_round: int = 1  # of participation=range
    eval_every: int = 1  # 0 = after the last round only
    eval_clients: int | None = None  # a fixed sample of them; null = all
    eval_train: bool = False  # on clients' training data as well
    metrics: tuple[str, ...] = ()  # beyond accuracy: names of core.scores
    optimum: bool = False  # solve it; note how far it is
    eval_protocol: Literal["all_after", "participants_local"] = "all_after"
    new_clients: int = 0  # the last ones never train
    new_epochs: int = 0  # of a new client, on its own data before it predicts
    new_lr: float = 0.05  # rate of these
    checkpoint_every: int = 10  # 0 = never
    device: str = "auto"  # auto, cpu, cuda (all GPUs) or cuda:N
    devices: tuple[int, ...] = ()  # numbers of the GPUs; (): as `device` says
    dtype: Literal["float32", "float64"] = "float32"
    failures: Literal["raise", "skip"] = "raise"
    stop: StopConfig = field(default_factory=StopConfig)  # when the run ends before its last round
    observers: tuple[str, ...] = ()  # names, or pkg.mod:Class
    out: str | None = None  # the run directory
    resume: str | None = None  # the run directory to go on with
    experiment: str | None = None  # name in conf/experiment
    paper: Mapping[str, Any] = field(default_factory=dict)  # the paper's numbers, for the report

    def __post_init__(self) -> None:
        """A set that leaves a choice is told of the task."""
        object.__setattr__(self, "data", public.placed(task.told(self.data, self.task)))

    def check(self) -> list[str]:
        """Problems of values."""
        return (
            bounds(
                self,
                rounds=(1, None),
                seed=(0, None),
                clients_per_round=(1, None),
                least_per_round=(1, max(self.clients_per_round, 1) if self.clients_per_round else None),
                eval_every=(0, None),
                eval_clients=(1, None),
                new_clients=(0, None),
                new_epochs=(0, None),
                new_lr=(0, None),
                checkpoint_every=(0, None),
            )
            + task.problems(self.task, self.data)
            + public.problems(self.data, self.method_name)
            + self._off_line()
            + self._unlike()
            + self._idle()
            + self.systems.unfit(self.engine, self.clients_per_round, self.participation, self.privacy.on)
            + devices.problems(self.device, self.devices, self.engine.name)
            + self.stop.unfit(self.metrics, self.eval_every, self.data.valid_fraction)
            + observers.problems(self.observers)
            + scores.problems(self.metrics)
        )

    def _idle(self) -> list[str]:
        """A problem where no local training of the method makes a step: all its rounds would be in vain."""
        parts = {f.name: getattr(self.method, f.name) for f in fields(self.method)} if self.method else {}
        local = {name: part for name, part in parts.items() if hasattr(part, "num_steps")}
        if not local or any((part.epochs or part.steps) and part.lr for part in local.values()):
            return []
        name, first = next(iter(local.items()))
        key = "lr" if first.epochs or first.steps else "epochs"
        return [f"method.{name}.{key}={getattr(first, key):g}: no client would train; give more than 0"]

    def _off_line(self) -> list[str]:
        if not self.optimum or (self.engine.name == "inprocess" and not self.new_clients):
            return []
        return [
            "optimum=true: needs engine=inprocess and new_clients=0, for it looks at all data and "
            "states; choose these or set optimum=false"
        ]

    def _unlike(self) -> list[str]:
        """Problems of model=groups with keys that suppose one model for all clients."""
        if not self.model.several:
            return []
        here = {
            f"engine={self.engine.name}": self.engine.name != "inprocess",
            "optimum=true": self.optimum,
            f"systems={self.systems.name}": self.systems.on,
        }
        text = "supposes that all clients have one model; choose one, or engine=inprocess, optimum=false and "
        return [f"model=groups: {key} {text}systems=off" for key, holds in here.items() if holds]


def from_mapping(values: Mapping[str, Any], explicit: Sequence[str] = ()) -> RunConfig:
    """A run from plain values, as YAML gives them.

    `explicit` are the dotted keys that the user set himself; `hyper:` does not touch these.

    Raises:
        ConfigError: lists all that is wrong.
    """
    problems: list[str] = []
    cfg = dict(values)
    hyper = cfg.pop("hyper", None) or {}
    search.sweep_config(cfg, problems)
    command = ("hyper", *search.KEYS)  # of no single run
    cfg.setdefault("paper", {})
    name, method = _method(cfg.get("method"), hyper, explicit, problems)
    cfg |= {
        "method_name": name,
        "method": method,
        "paper": cfg["paper"] or {},
        "model": model_of(cfg.get("model"), problems),
    }
    known = [f.name for f in fields(RunConfig) if f.name != "method_name"]
    strange = [k for k in values if k not in (*command, *known)]
    problems += [slips.misplaced(k, flatten(values)) or schema.unknown_keys([k], known)[0] for k in strange]
    kept = {k: v for k, v in cfg.items() if k in (*known, "method_name")}
    run = schema.build(RunConfig, kept, "", problems)
    problems += [] if run is None else _without_effect(run, explicit) + _two_noises(run, explicit)
    if problems or run is None:
        raise ConfigError(*dict.fromkeys(problems))
    return replace(run, privacy=run.privacy.found(run.rounds))  # a change a round


def _two_noises(run: RunConfig, explicit: Sequence[str]) -> list[str]:
    z, target = run.privacy.noise_multiplier, run.privacy.epsilon
    if target is None or z is None or "privacy.noise_multiplier" not in explicit:
        return []
    return [f"privacy.noise_multiplier={show(z)} privacy.epsilon={show(target)}: the noise follows from "
            "epsilon; give one of them"]  # fmt: skip


def _without_effect(run: RunConfig, explicit: Sequence[str]) -> list[str]:
    """Problems of keys that the user set himself and that the chosen set, partition or engine ignores."""
    below = {
        group: [k.partition(".")[2] for k in explicit if k.startswith(f"{group}.")]
        for group in ("data", "engine", "aggregation", "privacy", "systems")
    }
    found = unused(run.data, below["data"])
    found += [
        f"engine.{key}={show(getattr(run.engine, key))}: without effect for engine={run.engine.name}; "
        f"{', '.join(ENGINES_OF[key])} would use it"
        for key in below["engine"]
        if run.engine.name not in ENGINES_OF.get(key, (run.engine.name,))
    ]
    kind = run.aggregation.name
    found += [
        f"aggregation.{key}: without effect for aggregation={kind}; aggregation={USED_BY[key]} would use it"
        for key in below["aggregation"]
        if USED_BY.get(key, kind) != kind
    ]
    quiet = {"privacy": "dp", "systems": "drawn"}
    return found + [
        f"{group}.{key}: without effect for {group}=off; {group}={other} would use it"
        for group, other in quiet.items()
        for key in below[group]
        if not getattr(run, group).on
    ]


def _method(
    values: Any, hyper: Mapping[str, Any], explicit: Sequence[str], problems: list[str]
) -> tuple[str, Any]:
    """(name, config) of the method; the config is None where something was wrong."""
    if not isinstance(values, Mapping) or not isinstance(values.get("name"), str):
        problems.append(f"method={show(values)}: expected the name of a method")
        return "", None
    name = values["name"]
    try:
        cls = registry.method(name).config_class()
    except ConfigError as error:
        problems += error.problems
        return name, None
    names = {f.name for f in fields(cls)}
    settings = {k: v for k, v in values.items() if k != "name" or "name" in names}
    shared = _shared(hyper.get("all") or {}, names, cls, problems)
    for extra in (shared, hyper.get(name) or {}):
        settings = _overlay(settings, extra, "method", explicit)
    settings.pop(search.SPACE, None)
    for key in [k for k in settings if k not in names] if not hasattr(cls, "variant") else ():
        problems += [p + _others_with(key) for p in schema.unknown_keys([key], names, "method")]
        settings.pop(key)
    return name, schema.build(cls, settings, "method", problems)


def _others_with(key: str) -> str:
    """Names some methods that have a key which the chosen one has not."""
    having = [n for n, row in registry.METHODS.items() if key in {f.name for f in fields(row.config_class())}]
    more = f" and {len(having) - 3} more" if len(having) > 3 else ""
    return f"; method={', '.join(having[:3])}{more} would use it" if having else ""


def _shared(values: Mapping[str, Any], names: set[str], cls: Any, problems: list[str]) -> dict[str, Any]:
    """The part of hyper.all that a method has; `local` stands for all its local trainings.

    A key that no method has is a problem: it would change nothing without a word.
    """
    found = {k: v for k, v in values.items() if k in names}
    rest = [k for k in values if k not in names]
    if "local" in rest:
        trainings = [f.name for f in fields(cls) if "LocalConfig" in str(f.type)]
        found = {k: values["local"] for k in trainings} | found
    everybody = (
        {f.name for row in registry.METHODS.values() for f in fields(row.config_class())} if rest else []
    )
    unused = [k for k in rest if k not in everybody]
    problems += schema.unknown_keys(unused, everybody, "hyper.all") if unused else []
    return found


def _overlay(
    base: Mapping[str, Any], extra: Mapping[str, Any], path: str, explicit: Sequence[str]
) -> dict[str, Any]:
    """`base` with the values of `extra`, but for the keys that the user set himself."""
    result = dict(base)
    for key, value in extra.items():
        here = f"{path}.{key}"
        if here in explicit:
            continue
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            value = _overlay(result[key], value, here, explicit)
        result[key] = value
    return result


def to_mapping(run: RunConfig) -> dict[str, Any]:
    """Plain values for .hydra/config.yaml; `from_mapping` makes an equal run of them."""
    plain = {f.name: getattr(run, f.name) for f in fields(run) if f.name != "method_name"}
    return _plain(
        plain
        | {
            "method": {"name": run.method_name, **asdict(run.method)},
            "model": {"name": run.model.name, **run.model.options},
            "data": asdict(run.data),
            "engine": asdict(run.engine),
            "aggregation": asdict(run.aggregation),
            "privacy": asdict(run.privacy),
            "stop": asdict(run.stop),
            "systems": asdict(run.systems),
        }
    )


def flatten(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The values of a mapping of mappings by dotted key; an empty mapping is a value."""
    flat: dict[str, Any] = {}
    for key, item in values.items():
        here = f"{path}{key}"
        flat |= flatten(item, f"{here}.") if isinstance(item, Mapping) and item else {here: item}
    return flat


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
