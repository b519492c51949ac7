"""What of a module is trained, and the numbers that it starts from: model.trainable and model.weights."""

import logging
from collections.abc import Mapping, Sequence, Set
from fnmatch import fnmatchcase
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from fedpers.core.errors import ConfigError

log = logging.getLogger("fedpers")
SAFE, TORCH = (".safetensors",), (".pt", ".pth", ".bin")  # what a file of weights may be called


def freeze(
    module: nn.Module, trainable: Any, head: str, what: str, by_itself: Set[str] = frozenset()
) -> None:
    """Freeze all parameters but those whose names fit a pattern.

    Args:
        trainable: patterns of names in the module, such as "layer4.*"; None: `requires_grad` alone counts.
        head: name of the last linear layer, which must be among them.
        by_itself: names of what the module has frozen, which patterns may not name.

    Raises:
        ConfigError: a pattern fits nothing or a frozen parameter, or the head would be frozen.
    """
    if trainable is not None:
        _freeze_others(module, trainable, what, by_itself)
    frozen = [n for n, p in module.get_submodule(head).named_parameters() if not p.requires_grad]
    if frozen:
        raise ConfigError(
            f"{what}: its head '{head}' is frozen ({', '.join(frozen)}); clients train at least that: add "
            f"'{head}.*' to model.trainable, or set requires_grad=True"
        )


def _freeze_others(module: nn.Module, trainable: Any, what: str, by_itself: Set[str]) -> None:
    listed = isinstance(trainable, Sequence) and not isinstance(trainable, str)
    if not listed or not trainable or not all(isinstance(p, str) for p in trainable):
        raise ConfigError(
            f"model.trainable is {trainable!r}; it must be a list of patterns: [fc.*, layer4.*]"
        )
    named = dict(module.named_parameters())
    for pattern in trainable:
        fitting = [n for n in named if fnmatchcase(n, pattern)]
        if not fitting:
            some = ", ".join(list(named)[-8:])
            raise ConfigError(f"{what}: model.trainable: '{pattern}' fits no parameter; such are {some}")
        against = [n for n in fitting if n in by_itself]
        if against:
            raise ConfigError(
                f"{what}: model.trainable: '{pattern}' names '{against[0]}', which the module itself has "
                "frozen (requires_grad=False); change one of them"
            )
    for name, p in named.items():
        p.requires_grad_(any(fnmatchcase(name, pattern) for pattern in trainable))


def load_weights(module: nn.Module, path: str, head: str, what: str) -> None:
    """Copy the numbers of a file into the module, by name; a head of other classes keeps its own start.

    Raises:
        ConfigError: the file cannot be read, or holds other names or shapes.
    """
    found = read_weights(path)
    own = module.state_dict(keep_vars=True)
    ours = {n for n in own if n.startswith(f"{head}.")}
    other = {n for n in found.keys() & own.keys() if found[n].shape != own[n].shape}
    if other & ours:  # a head of other classes, or of other features beside a body of them
        found = {n: v for n, v in found.items() if n not in ours}
        other -= ours
    counted = {
        n for n in own if n.rpartition(".")[2] in ("running_mean", "running_var", "num_batches_tracked")
    }
    tied = {id(own[n]) for n in found if n in own}  # of parameters with two names a file may hold one
    missing = {n for n in own.keys() - found.keys() - ours - counted if id(own[n]) not in tied}
    more = found.keys() - own.keys()
    shapes = [tuple(of[n].shape) for n in sorted(other)[:1] for of in (found, own)]
    unlike = "has shape {} there and {} in the module".format(*shapes) if shapes else ""
    faults = ((missing, "is missing"), (more, "is not in the module"), (other, unlike))
    for names, is_wrong in faults:
        if names:
            beside = f"; the file has '{min(more)}'" if names is missing and more else ""
            raise ConfigError(
                f"{what}: model.weights={path}: '{min(names)}' {is_wrong} ({len(names)} such{beside}); the "
                "file must hold the module's state_dict(), with its names and shapes (but for the head)"
                f"{_prefix(more, missing)}"
            )
    with torch.no_grad():
        for name, value in found.items():
            own[name].copy_(value)
    if ours - found.keys():
        log.info("model.weights=%s has no head '%s' of the module's shape: it starts anew", path, head)


def _prefix(more: Set[str], missing: Set[str]) -> str:
    """What to do where a file has what is missing behind a prefix, as DataParallel writes it; else ""."""
    starts = {n.removesuffix(name) for name in sorted(missing)[:1] for n in more if n.endswith(f".{name}")}
    for start in sorted(starts):
        if {f"{start}{name}" for name in missing} <= more:
            return f": save {{name.removeprefix('{start}'): value for name, value in state_dict.items()}}"
    return ""


def read_weights(path: str) -> Mapping[str, Tensor]:
    """{name: tensor} of a file; nothing in it is run.

    Raises:
        ConfigError: it is missing, damaged, of another kind, or holds more than tensors.
    """
    file = Path(path).expanduser()
    if file.suffix not in SAFE + TORCH:
        raise ConfigError(f"model.weights={path}: a file of weights ends in {', '.join(SAFE + TORCH)}")
    if not file.is_file():
        where = "" if file.is_absolute() else f" in {Path.cwd()}, where you are"
        raise ConfigError(f"model.weights={path}: there is no such file{where}")
    try:
        found = _read(file)
    except Exception as error:  # damaged in one of many ways
        said = (str(error).splitlines() or [""])[0]
        text = "" if isinstance(error, UnpicklingError) else f": {type(error).__name__}: {said}"
        raise ConfigError(
            f"model.weights={path}: cannot be read as tensors alone{text}; other objects are not loaded, "
            "because they may run code: save the module's state_dict(), best with safetensors.torch.save_file"
        ) from error
    found = found.get("state_dict", found) if isinstance(found, Mapping) else found
    if not isinstance(found, Mapping) or not all(isinstance(v, Tensor) for v in found.values()):
        raise ConfigError(f"model.weights={path}: holds no state_dict() (a dict of names and tensors)")
    return found


def _read(file: Path) -> Any:
    if file.suffix in SAFE:
        from safetensors.torch import load_file

        return load_file(file)
    return torch.load(file, map_location="cpu", weights_only=True)
