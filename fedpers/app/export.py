"""Models out of a run's last checkpoint: the server's own, any client's, the part that all share."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedpers.app.backends import cohort_of
from fedpers.app.build import Parts, assemble
from fedpers.app.exported import FORMAT, ExportedModel, settings_of
from fedpers.app.own_files import assembled
from fedpers.app.run_folder import CONFIG, stored_config
from fedpers.config.model_config import ModelConfig
from fedpers.config.registry import method
from fedpers.config.run_config import RunConfig
from fedpers.core.data import Federation
from fedpers.core.errors import ConfigError, unknown
from fedpers.core.params import Params
from fedpers.core.pytree import tree_map
from fedpers.core.rng import Stream
from fedpers.datasets.config import DataConfig
from fedpers.datasets.keys import OWN
from fedpers.datasets.split import Seen
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.row_store import RowStore
from fedpers.flower.client import PersonalizedClient
from fedpers.results import checkpoint


@dataclass(frozen=True)
class StoredRun:
    """A run at its last checkpoint, with its clients where they have data in this place."""

    cfg: RunConfig
    parts: Parts
    round: int
    exchanges: int  # of that round; what a client draws when it is evaluated depends on it
    cohort: Cohort | None  # None: the clients are devices


def open_run(run: Path, federation: Federation | None = None) -> StoredRun:
    """The run in a folder, at its last checkpoint; `federation` is the data that it was given, if it was.

    Raises:
        ConfigError: `run` is no run.
        CheckpointError: it has no checkpoint, or a damaged one.
        DataError: its data is not here any more.
    """
    if not (run / CONFIG).is_file():
        raise ConfigError(f"{run}: no run directory (there is no {CONFIG} in it)")
    cfg = stored_config(run)
    method(cfg.method_name).strategy_class()  # its records, which a checkpoint holds
    if cfg.data.name == "device":
        return _of_devices(cfg, run)
    store = RowStore(run / "memory", cfg.engine.memory_mb)
    t, state = checkpoint.load(run, store)
    parts = assembled(replace(cfg, resume=str(run)), run, federation)
    cohort = cohort_of(parts, store)
    parts.strategy.state, parts.strategy.rounds_done = state, t
    parts.strategy.connect(InProcessGrid(cohort))
    return StoredRun(cfg, parts, t, checkpoint.exchanges(run), cohort)


def _of_devices(cfg: RunConfig, run: Path) -> StoredRun:
    from fedpers.app.deployed import of_devices

    t, state, federation = of_devices(cfg, run)
    parts = assemble(cfg, federation)
    parts.strategy.state = state
    return StoredRun(cfg, parts, t, checkpoint.exchanges(run), None)


# ---- one model ----------------------------------------------------------------------------------


def model_of(
    run: Path, name: str | None = None, client: int | None = None, federation: Federation | None = None
) -> ExportedModel:
    """What `export` would write: the server's model `name`, or the one that a client predicts with.

    Raises:
        ConfigError: `run` is no run, has no such model or client, or both are named.
        CheckpointError: it has no checkpoint, or a damaged one.
    """
    stored = open_run(run, federation)
    return next(iter(_chosen(stored, name, None if client is None else str(client))))


def personal_model(run: Path | StoredRun, client: int) -> ExportedModel:
    """What one client predicts with at the run's last checkpoint, as it was evaluated there.

    The client has chosen and adapted as its method does before it predicts; a new client has adapted
    for the run's `new_epochs`.

    Args:
        run: a run directory, or one that `open_run` opened (for many clients).
        client: its partition id, as in clients.csv.

    Raises:
        ConfigError: there is no such run or client, or the clients are devices, which keep their models.
        CheckpointError: the run has no checkpoint, or a damaged one.
    """
    stored = run if isinstance(run, StoredRun) else open_run(run)
    cohort, N = stored.cohort, stored.parts.federation.num_clients
    if cohort is None:
        raise ConfigError("clients of engine=deployment keep their personal models on their devices")
    if not 0 <= client < N:
        raise ConfigError(f"client {client}: the run has clients 0 to {N - 1}")
    strategy, when = stored.parts.strategy, (stored.round, stored.exchanges)
    order, kept = strategy.order_to_predict(client), cohort.state(client, when)
    half, train = _own_half(stored, client)[1], cohort.data(client).train
    model = half.model
    rng = Stream(stored.cfg.seed, when[0], client, when[1])
    with torch.no_grad(), model.network.turn(train, rng):
        shared, kept = half.ready(order, kept, train, rng)
        params = half.personal(shared, kept)
        if params is not None:
            params = model.with_statistics(params, train.x)
    if params is None and model.network.tracked:
        raise ConfigError(
            f"{stored.cfg.method_name} predicts with several models, each with statistics of BatchNorm "
            "of its own; they cannot leave their run: use a model without BatchNorm"
        )
    about: dict[str, Any] = {"client": client}
    if params is not None:
        return _model(stored, f"client_{client}", "model", _own(params), about)
    about |= {"settings": settings_of(stored.cfg.method)}
    return _model(stored, f"client_{client}", "mixture", _own((shared, kept)), about)


def whole_models(stored: StoredRun) -> dict[str, ExportedModel]:
    """The server's models by name (global, center_0, ...) and the part that all clients share."""
    strategy = stored.parts.strategy
    if stored.parts.unlike is not None:
        return {}  # a part that all share belongs to several models
    found = {n: _model(stored, n, "model", _own(p)) for n, p in strategy.models(strategy.state).items()}
    if not found and stored.cohort is not None:
        part = _shared_part(stored, strategy.evaluation_message(strategy.state, strategy.roster.ids[0]))
        found |= {kind: _model(stored, kind, kind, _own(p)) for kind, p in part.items()}
    return found


def _shared_part(stored: StoredRun, order: Any) -> dict[str, Params]:
    """{"body" or "head": parameters}, where that is what a method sends to everybody."""
    model = stored.parts.model
    names = set(model.init_trained(0))
    kinds = {
        "body": {n for n in names if not model.is_head(n)},
        "head": {n for n in names if model.is_head(n)},
    }
    sent = [v for v in vars(order).values() if isinstance(v, dict)] if order is not None else []
    return {kind: p for p in sent for kind, want in kinds.items() if set(p) == want}


def _model(
    stored: StoredRun, name: str, kind: str, content: Any, more: dict[str, Any] | None = None
) -> ExportedModel:
    cfg, parts, more = stored.cfg, stored.parts, more or {}
    chosen, half = _own_half(stored, more.get("client"))
    about = {
        "format": FORMAT,
        "kind": kind,
        "model": chosen.name,
        "options": dict(chosen.options),
        "base": half.model.network.digest,
        "input_shape": list(parts.federation.input_shape),
        "classes": parts.federation.num_classes,
        "task": parts.federation.task,
        "dtype": cfg.dtype,
        "tokens": parts.federation.tokens,
        "name": name,
        "method": cfg.method_name,
        "data": cfg.data.name,
        "seed": cfg.seed,
        "round": stored.round,
        **_rows(cfg.data, parts.federation, more.get("client")),
    }
    return ExportedModel(about | more, half.model, content, half if kind == "mixture" else None)


def _own_half(stored: StoredRun, client: int | None) -> tuple[ModelConfig, PersonalizedClient]:
    """The model that a client has, or all have, and the method's client half with it."""
    unlike = stored.parts.unlike
    if unlike is None or client is None:
        return stored.cfg.model, stored.parts.client
    place = unlike.places[client]
    return unlike.configs[place], unlike.clients[place]


def _rows(data: DataConfig, federation: Federation, k: int | None) -> dict[str, Any]:
    """How rows of the data become inputs of a model: for client k, or (None) the same for all clients."""
    seen = getattr(federation.client, "seen", lambda k: Seen(0, federation.pipeline.classes))(k)
    pipeline = replace(federation.pipeline, classes=seen.classes if seen else ())
    return {
        "pipeline": pipeline.plain(),
        "turns": seen.turns if seen else None,
        "image_size": list(data.image_size),
        "client_column": data.client if data.kind in OWN else None,
        "client_name": federation.clients[k] if k is not None and federation.clients else None,
    }


def _own(tree: Any) -> Any:
    """The tree with tensors of its own, on the CPU: two parameters may be one tensor, or parts of one."""
    return tree_map(lambda x: x.detach().cpu().clone() if isinstance(x, torch.Tensor) else x, tree)


# ---- files --------------------------------------------------------------------------------------


def export(
    run: Path, name: str | None = None, out: Path | None = None, client: str | None = None, onnx: bool = False
) -> list[Path]:
    """Write models of a run's last checkpoint as OUT/NAME.safetensors and OUT/NAME.json.

    Args:
        run: a run directory.
        name: which of the server's models; may be left out if there is one, or with `client`.
        out: the folder; default: `run`/export.
        client: instead of these the model of that client, by its number or as the data calls it, as
            client_<number>; "all" for every client's.
        onnx: write NAME.onnx besides.

    Returns:
        The paths of the safetensors files (and of the ONNX files).

    Raises:
        ConfigError: `run` is no run, or has no model or client of that name.
        CheckpointError: the run has no checkpoint, or the file system refuses.
    """
    stored, folder = open_run(run), out or run / "export"
    written: list[Path] = []
    for model in _chosen(stored, name, client):
        written += [model.write(folder), *(model.write_onnx(folder) if onnx else [])]
    return written


def _chosen(stored: StoredRun, name: str | None, client: str | None) -> Iterable[ExportedModel]:
    if client is not None and name is not None:
        raise ConfigError(f"--client {client} and --model {name}: choose one of them")
    if client is None:
        return [_by_name(whole_models(stored), name, stored.cfg.method_name)]
    federation = stored.parts.federation
    numbers = range(federation.num_clients) if client == "all" else [_number(client, federation.clients)]
    return (personal_model(stored, k) for k in numbers)


def _number(client: str, names: tuple[str, ...]) -> int:
    """The number of a client that is named by it, or as the data calls it."""
    if client.isdecimal():
        return int(client)
    if client not in names:
        text = "expected a client's number, as in clients.csv, or all"
        raise ConfigError(f"--client {client}: {unknown('client', client, names) if names else text}")
    return names.index(client)


def _by_name(models: dict[str, ExportedModel], name: str | None, of: str) -> ExportedModel:
    if not models:
        raise ConfigError(
            f"{of} has no shared model to export, because each client has its own: use --client"
        )
    if name is None and len(models) == 1:
        return next(iter(models.values()))
    if name is None:
        raise ConfigError(f"{of} has several models; say which with --model: {', '.join(models)}")
    if name not in models:
        raise ConfigError(unknown("model of this run", name, models))
    return models[name]
