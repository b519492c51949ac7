"""Whole models out of a run: safetensors for the numbers, JSON for what they are."""

import json
from pathlib import Path
from typing import Any

from fedpers.core.errors import CheckpointError, ConfigError, unknown
from fedpers.core.params import Params
from fedpers.learning.model import Model, build_model
from fedpers.results import checkpoint
from fedpers.results.files import replace_json

FORMAT = 1


def export(run: Path, name: str | None = None, out: Path | None = None) -> Path:
    """Write a model of a run's last checkpoint as OUT/NAME.safetensors and OUT/NAME.json.

    Args:
        run: a run directory.
        name: which of the strategy's models; may be left out if there is one.
        out: the folder; default: `run`/export.

    Returns:
        The path of the safetensors file.

    Raises:
        ConfigError: `run` is no run, or its method has no model of that name.
        CheckpointError: the run has no checkpoint, or the file system refuses.
    """
    import yaml
    from safetensors.torch import save_file

    from fedpers.app.build import assemble
    from fedpers.app.deployed import of_devices
    from fedpers.config.run_config import from_mapping

    path = run / ".hydra" / "config.yaml"
    if not path.is_file():
        raise ConfigError(f"{run}: no run directory (there is no .hydra/config.yaml in it)")
    cfg = from_mapping(yaml.safe_load(path.read_text(encoding="utf-8")))
    if cfg.data.name == "device":
        round_, state, federation = of_devices(cfg, run)
    else:
        (round_, state), federation = checkpoint.load(run, None), None
    parts = assemble(cfg, federation)
    models = parts.strategy.models(state)
    name = _choose(name, models, cfg.method_name)
    folder = out or run / "export"
    about = {
        "format": FORMAT,
        "model": cfg.model.name,
        "options": dict(cfg.model.options),
        "input_shape": list(parts.federation.input_shape),
        "classes": parts.federation.num_classes,
        "task": parts.federation.task,
        "name": name,
        "method": cfg.method_name,
        "data": cfg.data.name,
        "seed": cfg.seed,
        "round": round_,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        params = {k: v.detach().cpu().contiguous() for k, v in models[name].items()}
        save_file(params, folder / f"{name}.safetensors")
        replace_json(folder / f"{name}.json", about)
    except OSError as error:
        raise CheckpointError(f"cannot write into {folder}: {error}; choose another --out") from error
    return folder / f"{name}.safetensors"


def _choose(name: str | None, models: dict[str, Params], method: str) -> str:
    if not models:
        raise ConfigError(f"{method} has no whole model to hand out: each client's is its own")
    if name is None and len(models) == 1:
        return next(iter(models))
    if name is None:
        raise ConfigError(f"{method} has several models; say which with --model: {', '.join(models)}")
    if name not in models:
        raise ConfigError(unknown("model of this run", name, models))
    return name


def load_exported(path: Path) -> tuple[Model, Params]:
    """(model, parameters) from either of the two files that `export` wrote; model(params, x) predicts.

    Raises:
        CheckpointError: a file is missing or damaged, or of a newer format.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        about: dict[str, Any] = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        if about["format"] > FORMAT:
            raise CheckpointError(f"{path} was written by a newer fedpers (format {about['format']})")
        model = build_model(
            about["model"],
            input_shape=tuple(about["input_shape"]),
            num_outputs=about["classes"],
            task=about["task"],
            **about["options"],
        )
        return model, load_file(path.with_suffix(".safetensors"))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError(f"{path} is missing, damaged or no exported model: {error!r}") from error
