"""The one ServerApp, for `flwr run .`: simulation or a SuperLink with SuperNodes."""

from datetime import UTC, datetime
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedpers.app.build import decode_config

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the strategy that the run's overrides name, and write a run directory."""
    from fedpers.app.run import drive, prepare

    cfg = decode_config(str(context.run_config.get("overrides", "")))
    name = f"{datetime.now(UTC):%Y-%m-%d/%H-%M-%S}-{cfg.method_name}-{cfg.data.name}-s{cfg.seed}"
    run = prepare(cfg, Path(cfg.out or Path("runs") / name))
    drive(run, grid)
