"""The one ServerApp, for `flwr run .`: simulation or a SuperLink with SuperNodes."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedpers.app.build import decode_config
from fedpers.app.privacy import check_privacy
from fedpers.app.run_folder import check_same, opened
from fedpers.config.run_config import RunConfig
from fedpers.core.errors import ConfigError
from fedpers.core.host import borrowed
from fedpers.flower.internals import is_simulation

app = ServerApp()


@app.main()
@borrowed()
def main(grid: Grid, context: Context) -> None:
    """Run the strategy that the run's overrides name, and write a run directory.

    Raises:
        ConfigError: the overrides ask for what Flower's engines cannot do.
    """
    from fedpers.app.run import drive, prepare

    cfg = on_grid(decode_config(str(context.run_config.get("overrides", ""))), grid)
    out = folder_of(cfg)
    with opened(cfg, out, False, ()) as admitted:
        assert admitted is not None  # only a repeated run may have ended
        drive(prepare(admitted, out), grid)
    print(f"results: {out.resolve()}", flush=True)  # its process may have begun anywhere


def folder_of(cfg: RunConfig) -> Path:
    """The run directory: the one that is named, the one to go on with, or a new one.

    Raises:
        ConfigError: the run to go on with is another one, or in another folder than `out`.
    """
    if cfg.resume:
        if cfg.out and Path(cfg.out).resolve() != Path(cfg.resume).resolve():
            raise ConfigError(
                f"out={cfg.out} resume={cfg.resume}: a resumed run stays in its folder; leave out out="
            )
        check_same(cfg, Path(cfg.resume))
        return Path(cfg.resume)
    name = f"{datetime.now(UTC):%Y-%m-%d/%H-%M-%S}-{cfg.method_name}-{cfg.data.name}-s{cfg.seed}"
    return Path(cfg.out or Path("runs") / name)


def on_grid(cfg: RunConfig, grid: Grid) -> RunConfig:
    """The configuration with the engine that a grid of Flower's belongs to, whatever it said.

    Raises:
        ConfigError: this engine cannot do what is asked for.
    """
    name: Literal["ray", "deployment"] = "ray" if is_simulation(grid) else "deployment"
    cfg = replace(cfg, engine=replace(cfg.engine, name=name))
    check_privacy(cfg)
    if cfg.privacy.on and name == "deployment":
        raise ConfigError(
            "privacy=dp: through `flwr run` the noise would follow from the seed, which the server knows; "
            "use fedpers run engine=deployment"
        )
    if problems := cfg.check():
        raise ConfigError(*problems)
    return cfg
