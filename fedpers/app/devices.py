"""Which CPU or GPUs a run uses: what `device=` and `devices=` mean on this machine."""

from fedpers.config.run_config import RunConfig
from fedpers.core import machine
from fedpers.core.errors import ConfigError


def devices_of(cfg: RunConfig) -> tuple[str, ...]:
    """The run's devices, as torch names them; the first is that of the server half.

    Raises:
        ConfigError: names a device that is not there, or was not granted.
    """
    if cfg.device == "cpu":
        return ("cpu",)
    there = machine.gpus()
    if cfg.device == "auto" and not cfg.devices:
        return (_named(there[0]),) if there else ("cpu",)
    key = _key(cfg)
    if not there:
        raise ConfigError(f"{key}: torch finds no CUDA device here; use device=cpu or device=auto")
    wanted = cfg.devices or _numbers(cfg.device) or tuple(there)
    missing = [n for n in wanted if n not in there]
    if missing:
        listed = ", ".join(map(str, there))
        text = f"there is no GPU {', '.join(map(str, missing))} for this process; it has {listed}"
        raise ConfigError(f"{key}: {text}")
    return tuple(map(_named, wanted))


def choose_device(cfg: RunConfig) -> str:
    """The device of the server half, and of clients that one process serves: "cpu", "cuda" or "cuda:N".

    Raises:
        ConfigError: it is not there.
    """
    return devices_of(cfg)[0]


def _key(cfg: RunConfig) -> str:
    return f"devices=[{','.join(map(str, cfg.devices))}]" if cfg.devices else f"device={cfg.device}"


def _numbers(device: str) -> tuple[int, ...]:
    _, colon, number = device.partition(":")
    return (int(number),) if colon else ()


def _named(number: int) -> str:
    """Torch's name; the first is the current one, which "cuda" means."""
    return f"cuda:{number}" if number else "cuda"
