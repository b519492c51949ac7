"""What a method's page says of its clients' memory is what its class does."""

import re
from pathlib import Path

import pytest

from fedpers.config.registry import METHODS
from fedpers.flower.client import PersonalizedClient

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| \[(\w+)\]\((docs/methods/\w+\.md)\)", re.MULTILINE)
PAGES = dict(ROW.findall((ROOT / "README.md").read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", METHODS)
def test_a_page_says_whether_clients_remember(name: str) -> None:
    text = (ROOT / PAGES[name]).read_text(encoding="utf-8")
    said = re.findall(r"\*\*State(ful|less)\*\*: ", text)
    remembers = METHODS[name].client_class().initial_state is not PersonalizedClient.initial_state
    assert said == ["ful" if remembers else "less"]
