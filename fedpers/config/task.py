"""The key `task=`: whether the chosen data can be for it, and how the data is told."""

from dataclasses import replace

from fedpers.core.errors import unknown
from fedpers.core.tasks import OWN, PLAIN, TASKS
from fedpers.datasets.config import TASKS_OF, DataConfig


def told(data: DataConfig, task: str | None) -> DataConfig:
    """The data's keys, with the task where the set leaves a choice."""
    if task is None:
        return data
    free = task in TASKS_OF.get(data.kind, ()) and data.task == DataConfig.task
    return replace(data, task=task) if free else data


def problems(task: str | None, data: DataConfig) -> list[str]:
    """A problem of a task that is unknown, beside another, or not for devices."""
    if task is None:
        return []
    if data.name == "device" and task not in PLAIN:
        text = f"devices train for {', '.join(PLAIN)}; leave it out, or simulate it with other data"
        return [f"task={task}: {text}"]
    if task in TASKS:
        two = data.task not in (task, DataConfig.task)
        return [f"task={task} data.task={data.task}: are two tasks; give one of them"] if two else []
    known = OWN.fullmatch(task)
    return [] if known else [unknown("task", task, TASKS) + "; one of yours is written package.module:Name"]
