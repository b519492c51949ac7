"""Which privacy a method can promise: refused before a run where it is not sound; the table of the page.

`python -m fedpers.app.privacy` writes the table of docs/privacy.md anew, from what the methods declare.
"""

from pathlib import Path

from fedpers.config.registry import METHODS, method
from fedpers.config.run_config import RunConfig
from fedpers.core.errors import ConfigError
from fedpers.deploy.policy import refuse_on_devices
from fedpers.flower.privacy import Disclosure

BEGIN, END = "<!-- methods: python -m fedpers.app.privacy -->\n", "<!-- end -->"
PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"


def check_privacy(cfg: RunConfig) -> None:
    """Refuse privacy=dp for methods whose guarantee would not hold or that devices cannot run.

    Raises:
        ConfigError: names the method, why, and what to choose instead.
    """
    if cfg.engine.name == "deployment":
        refuse_on_devices(cfg.method_name)
    if not cfg.privacy.on:
        return
    client, asked = method(cfg.method_name).client_class(), f"privacy={cfg.privacy.name}"
    if reason := client.disclosure.no_dp:
        sound = ", ".join(sorted(n for n, d in disclosures().items() if not d.no_dp))
        raise ConfigError(f"{asked} method={cfg.method_name}: {reason}; it is sound for {sound}")
    if found := client.exposed(cfg.method):
        raise ConfigError(f"{asked} method={cfg.method_name}: {'; '.join(found)}")
    if cfg.privacy.by_server and (why := _no_server(cfg)):
        raise ConfigError(f"{asked} {why}; use privacy=dp")


def _no_server(cfg: RunConfig) -> str:
    """The reason why noise of the server would not hide a client; "" if it does."""
    if cfg.engine.name == "deployment":
        return "engine=deployment: the server's noise follows from the run's seed, which devices are told"
    if cfg.aggregation.name != "mean":
        return f"aggregation={cfg.aggregation.name}: the noise is for the plain mean"
    if not takes_one_mean(cfg.method_name):
        return f"method={cfg.method_name}: its server does not take one mean of what clients send"
    return ""


def takes_one_mean(name: str) -> bool:
    """Whether a method's server uses replies in one mean per round and in nothing else."""
    strategy = method(name).strategy_class()
    return bool(not strategy.not_robust and strategy.one_mean)


def disclosures() -> dict[str, Disclosure]:
    """What each method of ours declares, by name."""
    return {name: row.client_class().disclosure for name, row in METHODS.items()}


def table() -> str:
    """The rows of docs/privacy.md, a method each, as Markdown."""
    head = [
        "| method | leaves the device in training | privacy=dp | privacy=central | secure aggregation |",
        "| --- | --- | --- | --- | --- |",
    ]
    rows = [
        f"| {name} | {d.leaves} | {_sound(d)} | {'yes' if not d.no_dp and takes_one_mean(name) else 'no'} | "
        f"{f'no: {d.no_sum}' if d.no_sum else 'could: one sum'} |"
        for name, d in sorted(disclosures().items())
    ]
    return "\n".join([*head, *rows, ""])


def _sound(d: Disclosure) -> str:
    if d.no_dp:
        return f"no: {d.no_dp}"
    return f"yes: on the change of `{d.delta}`" if d.since else f"yes: on `{d.delta}` itself"


def filled(page: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
