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
    """Refuse privacy=dp where it would promise what does not hold, and methods that no device answers.

    Raises:
        ConfigError: names the method, why, and what to choose instead.
    """
    if cfg.engine.name == "deployment":
        refuse_on_devices(cfg.method_name)
    if not cfg.privacy.on:
        return
    client = method(cfg.method_name).client_class()
    if reason := client.disclosure.no_dp:
        sound = ", ".join(sorted(n for n, d in disclosures().items() if not d.no_dp))
        raise ConfigError(f"privacy=dp method={cfg.method_name}: {reason}; it is sound for {sound}")
    if found := client.exposed(cfg.method):
        raise ConfigError(f"privacy=dp method={cfg.method_name}: {'; '.join(found)}")


def disclosures() -> dict[str, Disclosure]:
    """What each method of ours declares, by name."""
    return {name: row.client_class().disclosure for name, row in METHODS.items()}


def table() -> str:
    """The rows of docs/privacy.md, a method each, as Markdown."""
    head = [
        "| method | leaves the device in training | differential privacy | secure aggregation |",
        "| --- | --- | --- | --- |",
    ]
    rows = [
        f"| {name} | {d.leaves} | {_sound(d)} | {f'no: {d.no_sum}' if d.no_sum else 'could: one sum'} |"
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
