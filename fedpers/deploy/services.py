"""Files that keep a server or a device running: units of systemd, and the proxy's configuration."""

import shutil
import sys
from importlib.resources import files
from pathlib import Path
from string import Template

from fedpers.core.errors import ConfigError
from fedpers.deploy.keys import check_name
from fedpers.deploy.submit import QUIET

PLAIN = "/._-@:,+="  # beside letters and digits, what systemd takes in a path or a word as it is


def server(out: Path, keys: Path, state: Path, user: str) -> list[Path]:
    """Write the units of SuperLink and proxy, and the proxy's nginx.conf; returns their paths.

    Raises:
        ConfigError: a path or name holds characters that systemd would not take as they are.
    """
    out, keys = out.resolve(), keys.resolve()
    nginx = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin") or "/usr/sbin/nginx"
    facts = {**_common(state, user), "keys": _word(keys), "here": _word(out), "nginx": nginx}
    conf = (
        _file("nginx.conf").replace("/run/secrets/", f"{keys}/").replace("superlink:8000", "127.0.0.1:8000")
    )
    units = {f"fedpers-{n}.service": _filled(f"fedpers-{n}.service", facts) for n in ("superlink", "proxy")}
    return _write(out, {**units, "nginx.conf": conf})


def device(
    out: Path, keys: Path, state: Path, user: str, name: str, at: str, node: dict[str, str]
) -> list[Path]:
    """Write the unit of a device; `at` is HOST:PORT of the proxy, `node` its node-config.

    Raises:
        ConfigError: as `server`.
    """
    check_name(name)
    told = {"client": name, **node, "state": str(state / "state")}
    facts = {**_common(state, user), "keys": _word(keys.resolve()), "name": name, "server": _word(at)}
    facts["node"] = _quoted(" ".join(f'{key}="{_inside(value)}"' for key, value in told.items()))
    return _write(out.resolve(), {"fedpers-device.service": _filled("fedpers-device.service", facts)})


def _common(state: Path, user: str) -> dict[str, str]:
    """The values that all units need."""
    places = {"HOME": state, "FLWR_HOME": state / "flwr", "FEDPERS_CACHE": state / "kernels"}
    values = {**QUIET, **{n: _word(p) for n, p in places.items()}, "OMP_NUM_THREADS": "1"}
    values["PATH"] = f"{_word(_bin())}:/usr/local/bin:/usr/bin:/bin"
    lines = "\n".join(f"Environment={name}={value}" for name, value in values.items())
    return {"environment": lines, "bin": _word(_bin()), "state": _word(state), "user": _word(user)}


def _bin() -> Path:
    """The folder of this environment's commands."""
    return Path(sys.executable).parent


def _word(value: object) -> str:
    text = str(value)
    if not text or any(not (c.isascii() and c.isalnum()) and c not in PLAIN for c in text):
        raise ConfigError(f"{text!r}: letters, digits and {PLAIN} are what a unit of systemd can hold here")
    return text


def _inside(text: str) -> str:
    """A value between the quotes of a node-config."""
    if any(c in text for c in "\"'\\") or not text.isprintable():
        raise ConfigError(f"{text!r}: no quotes, backslashes or line breaks in a node-config")
    return text


def _quoted(text: str) -> str:
    """One word of a command; % and $ have a meaning to systemd."""
    return f"'{text.replace('%', '%%').replace('$', '$$')}'"


def _file(name: str) -> str:
    return files("fedpers.deploy").joinpath("files", name).read_text(encoding="utf-8")


def _filled(name: str, facts: dict[str, str]) -> str:
    return Template(_file(name)).substitute(facts)


def _write(out: Path, texts: dict[str, str]) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    return [out / name for name in texts]
