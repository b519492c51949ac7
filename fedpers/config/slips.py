"""Slips on the command line: what was probably meant."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any


def given_twice(parsed: Sequence[Any]) -> list[str]:
    """Problems of Hydra's overrides: keys that are swept over and given again, where one would win."""
    times = Counter(o.key_or_group for o in parsed)
    found = []
    for key in dict.fromkeys(o.key_or_group for o in parsed if o.is_sweep_override()):
        if times[key] > 1:
            lines = ", ".join(str(o.input_line) for o in parsed if o.key_or_group == key)
            found.append(f"{key}: given {times[key]} times ({lines}); give it once")
    return found


def remedy(text: str) -> str:
    """What was probably meant; "" where it cannot be told."""
    if found := re.fullmatch(r"-*([\w.]+) *: *(\S+)", text):
        return f"write {found[1]}={found[2]}"
    if re.fullmatch(r"[\w.]+", text):
        return f"write {text}=VALUE"
    key, sign, value = text.partition("=")
    quotable = key and sign and "'" not in value
    return f"if the value is text, put quotes around it: \"{key}='{value}'\"" if quotable else ""
