"""Observers that send a run's numbers to Weights & Biases or to MLflow; off unless they are named.

Where to, and with what key, is set as these tools themselves want it: WANDB_MODE, WANDB_PROJECT,
WANDB_API_KEY; MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME.
"""

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpers.config.run_config import flatten
from fedpers.core.errors import ConfigError
from fedpers.flower.observer import Observer

PROJECT = "fedpers"  # of W&B; experiment of MLflow
LONGEST = 500  # characters of a value that MLflow keeps
AT_ONCE = 100  # values of a batch that MLflow takes


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row of metrics.csv, named split/column as TensorBoard has them."""
    return {f"{row['split']}/{k}": float(v) for k, v in row.items() if k not in ("round", "split")}


def _finals(summary: Mapping[str, Any]) -> dict[str, float]:
    """final/accuracy, best/accuracy, ...: the numbers of a summary."""
    flat = flatten({name: summary.get(name) or {} for name in ("final", "best")})
    return {k.replace(".", "/"): float(v) for k, v in flat.items() if isinstance(v, (int, float))}


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


class WandbObserver(Observer):
    """Logs to Weights & Biases: the config, each row of metrics.csv, the final numbers.

    Raises:
        ConfigError: the extra `wandb` is not installed, or nobody is logged in.
    """

    def __init__(self) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ConfigError(f"observers=[wandb] needs: pip install wandb ({error})") from error
        self._wandb: Any = wandb
        self._run: Any = None
        mode = os.environ.get("WANDB_MODE") or wandb.setup().settings.mode
        self._offline = mode in ("offline", "disabled", "dryrun")
        if not self._offline:
            self._log_in()

    def _log_in(self) -> None:
        """Look for a key before a run begins; at a terminal W&B asks for one."""
        try:
            self._wandb.login()
        except Exception as error:  # no key and nobody to ask, or one that cannot be a key
            raise ConfigError(
                f"observers=[wandb]: W&B has no key ({_first_line(error)}); run `wandb login`, set "
                "WANDB_API_KEY, or set WANDB_MODE=offline and send the run later with `wandb sync`"
            ) from error

    def on_start(self, out: Path, config: Mapping[str, Any]) -> None:
        """Begin a run, or go on with that of this folder.

        Raises:
            ConfigError: its server does not take the run.
        """
        key = hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:16]
        try:
            self._run = self._wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                name=out.name,
                id=key,
                resume=None if self._offline else "allow",
                dir=out,
                config=dict(config),
            )
        except Exception as error:  # no network, a key that is none of theirs, a project of others
            raise ConfigError(
                f"observers=[wandb]: W&B cannot begin the run ({_first_line(error)}); set WANDB_MODE=offline "
                "and send it later with `wandb sync`, or leave the observer out"
            ) from error

    def on_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log a row's numbers at the step of its round."""
        for row in rows:
            self._run.log(_numbers(row), step=row["round"])

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Keep the final numbers and close the run."""
        if self._run is None:
            return
        run, self._run = self._run, None
        run.summary.update(_finals(summary))
        run.finish(exit_code=0 if summary.get("status") == "finished" else 1)


class MlflowObserver(Observer):
    """Logs to MLflow: the config as parameters, each row of metrics.csv, the final numbers.

    Raises:
        ConfigError: the extra `mlflow` is not installed.
    """

    def __init__(self) -> None:
        try:
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise ConfigError(f"observers=[mlflow] needs: pip install mlflow-skinny ({error})") from error
        self._client: Any = MlflowClient()
        self._id = ""

    def on_start(self, out: Path, config: Mapping[str, Any]) -> None:
        """Begin a run in the experiment, which is made where it is not there.

        Raises:
            ConfigError: its server does not take the run.
        """
        try:
            self._begin(out, config)
        except Exception as error:  # no network, no rights, a folder that cannot be written
            uri = os.environ.get("MLFLOW_TRACKING_URI", "its default")
            raise ConfigError(
                f"observers=[mlflow]: MLflow cannot begin the run at {uri} ({_first_line(error)}); "
                "MLFLOW_TRACKING_URI=file:///FOLDER needs no server"
            ) from error

    def _begin(self, out: Path, config: Mapping[str, Any]) -> None:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        there = self._client.get_experiment_by_name(name)
        experiment = there.experiment_id if there else self._client.create_experiment(name)
        self._id = self._client.create_run(experiment, run_name=out.name).info.run_id
        from mlflow.entities import Param

        params = [Param(k, str(v)[:LONGEST]) for k, v in flatten(config).items()]
        for at in range(0, len(params), AT_ONCE):
            self._client.log_batch(self._id, params=params[at : at + AT_ONCE])

    def on_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log a row's numbers at the step of its round."""
        for row in rows:
            self._log(_numbers(row), row["round"])

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Keep the final numbers and close the run."""
        if not self._id:
            return
        self._log(_finals(summary), int(summary.get("rounds_done", 0)))
        ended = "FINISHED" if summary.get("status") == "finished" else "FAILED"
        self._client.set_terminated(self._id, ended)
        self._id = ""

    def _log(self, numbers: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._id, metrics=[Metric(k, v, now, step) for k, v in numbers.items()])
