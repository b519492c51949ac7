"""What a device's owner allows runs to do there: a TOML file on the device, which no server can change.

Checked before anything of a run's configuration is used: no module is imported that is not allowed by name.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeGuard

from fedpers.config.registry import method, methods
from fedpers.core.errors import ConfigError
from fedpers.learning.networks import NETWORKS

# what may be told beside replies and sizes; sums: of features and their squares, for data.standardise
TOLD = ("label_counts", "evaluation", "training_evaluation", "sums")
IMPORTED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")  # package.module:name
DIGEST = 16  # hexadecimal digits


@dataclass(frozen=True)
class Policy:
    """The keys of the file. What is left out allows registered methods and models, and no module."""

    methods: tuple[str, ...] | None = None  # names; None: all that are registered
    models: tuple[str, ...] | None = None  # names, or library:name; None: all of NETWORKS
    modules: tuple[str, ...] = ()  # package.module:name that a run may import: nets, optimisers, objectives
    files: tuple[str, ...] = ()  # that `model.weights` may name
    least_noise: float = 0.0  # of privacy.noise_multiplier; above 0: privacy=dp only
    largest_norm: float | None = None  # of privacy.clip; with it: privacy=dp only
    most_rounds: int | None = None
    may_tell: tuple[str, ...] = TOLD

    @classmethod
    def read(cls, path: str | None) -> "Policy":
        """The policy in a file; the default one without.

        Raises:
            ConfigError: the file is missing, damaged, or has a key or value that is not known.
        """
        if not path:
            return cls()
        try:
            found = tomllib.loads(Path(path).expanduser().read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"the device's policy cannot be read: {error}; orders are refused") from error
        return cls.of(found)

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "Policy":
        """From plain values.

        Raises:
            ConfigError: a key or value is not known.
        """
        known = {f.name: f.default for f in fields(cls)}
        problems = [f"policy.{key}: unknown; known: {', '.join(known)}" for key in found if key not in known]
        problems += [
            f"policy.{k}={v!r}: {_NEEDS[k]}" for k, v in found.items() if k in known and not _fits(k, v)
        ]
        if problems:
            raise ConfigError(*problems)
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in found.items()}
        return cls(**values)

    @property
    def digest(self) -> str:
        """The first digits of SHA-256 over all values, defaults included: equal for equal policies."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:DIGEST]

    def check(self, config: Mapping[str, Any], header: Mapping[str, Any]) -> None:
        """Refuse an order of a run with this configuration, plain values as the server sent them.

        Raises:
            ConfigError: with every key that the policy does not allow.
        """
        problems = [
            *self._method(_section(config, "method")),
            *self._model(_section(config, "model")),
            *self._imports("method", config.get("method")),
            *self._imports("metrics", config.get("metrics")),
            *self._privacy(_section(config, "privacy")),
            *self._rounds(config.get("rounds"), header.get("t")),
            *self._tells(config, header),
        ]
        if problems:
            raise ConfigError(*[f"refused by this device's policy: {p}" for p in problems])

    def _method(self, method: Mapping[str, Any]) -> list[str]:
        name, allowed = method.get("name"), methods() if self.methods is None else self.methods
        return [] if name in allowed else [f"method={name}; it allows {', '.join(sorted(allowed))}"]

    def _model(self, model: Mapping[str, Any]) -> list[str]:
        name, path, library = model.get("name"), model.get("path"), model.get("library")
        if (weights := model.get("weights")) is not None and weights not in self.files:
            return [f"model.weights={weights}; it allows {', '.join(self.files) or 'no file'}"]
        if path is not None:
            good = path in self.modules
            return [] if good else [f"model.path={path}; it allows {', '.join(self.modules) or 'no module'}"]
        named = f"{library}:{name}" if library else name
        allowed = set(NETWORKS) if self.models is None else self.models
        return [] if named in allowed else [f"model={named}; it allows {', '.join(sorted(allowed))}"]

    def _imports(self, key: str, value: Any) -> list[str]:
        """Problems with what a method's settings name to be imported, wherever it stands in them."""
        if isinstance(value, Mapping):
            return [p for k, v in value.items() for p in self._imports(f"{key}.{k}", v)]
        if isinstance(value, list | tuple):
            return [p for v in value for p in self._imports(key, v)]
        if not isinstance(value, str) or not IMPORTED.fullmatch(value) or value in self.modules:
            return []
        return [f"{key}={value}; it allows {', '.join(self.modules) or 'no module'}"]

    def _privacy(self, privacy: Mapping[str, Any]) -> list[str]:
        least, largest = self.least_noise, self.largest_norm
        if not least and largest is None:
            return []
        if (name := privacy.get("name")) != "dp":
            return [f"privacy={name}; it wants privacy=dp"]
        noise, clip = privacy.get("noise_multiplier"), privacy.get("clip")
        found = []
        if not _is_number(noise) or not noise >= least:  # nan is no noise
            found.append(f"privacy.noise_multiplier={noise}; it wants at least {least:g}")
        if largest is not None and (not _is_number(clip) or not clip <= largest):
            found.append(f"privacy.clip={clip}; it allows at most {largest:g}")
        return found

    def _rounds(self, planned: Any, now: Any) -> list[str]:
        most = self.most_rounds
        asked = [n for n in (planned, now) if most is not None and (type(n) is not int or n > most)]
        return [f"rounds={asked[0]}; it allows at most {most}"] if asked else []

    def _tells(self, config: Mapping[str, Any], header: Mapping[str, Any]) -> list[str]:
        wanted = {"evaluation": header.get("kind") == "evaluate" or header.get("assess")}
        wanted["training_evaluation"] = config.get("eval_train")
        wanted["sums"] = bool(_section(config, "data").get("standardise"))
        return [f"{name.replace('_', ' ')}: not told" for name, on in wanted.items()
                if on and name not in self.may_tell]  # fmt: skip


def _is_number(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float)


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


_NAMES = "expected a list of names"
_NEEDS = {
    **dict.fromkeys(("methods", "models", "modules", "files"), _NAMES),
    "least_noise": "expected a number of at least 0",
    "largest_norm": "expected a number above 0",
    "most_rounds": "expected a whole number of at least 1",
    "may_tell": f"expected some of {', '.join(TOLD)}",
}


def _fits(key: str, value: Any) -> bool:
    if key in ("methods", "models", "modules", "files", "may_tell"):
        names = isinstance(value, list) and all(isinstance(v, str) for v in value)
        return names and (key != "may_tell" or set(value) <= set(TOLD))
    if key == "most_rounds":
        return type(value) is int and value >= 1
    return _is_number(value) and (value >= 0 if key == "least_noise" else value > 0)


def refuse_on_devices(name: str) -> None:
    """Refuse a method that is for simulations only, whatever a policy allows.

    Raises:
        ConfigError: it is one.
    """
    if why := method(name).client_class().disclosure.no_devices:
        raise ConfigError(f"method={name}: refused on devices, {why}; use engine=inprocess, a simulation")
