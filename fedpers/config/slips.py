"""Slips on the command line: what was probably meant."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedpers.core.errors import ConfigError

BARE = re.compile(r"[A-Za-z_][\w.]* *:?")  # a key alone, as in `rounds: 5` and `rounds 5`


def given_twice(parsed: Sequence[Any]) -> list[str]:
    """Problems of Hydra's overrides: keys that are swept over and given again, where one would win."""
    times = Counter(o.key_or_group for o in parsed)
    found = []
    for key in dict.fromkeys(o.key_or_group for o in parsed if o.is_sweep_override()):
        if times[key] > 1:
            lines = ", ".join(str(o.input_line) for o in parsed if o.key_or_group == key)
            found.append(f"{key}: given {times[key]} times ({lines}); give it once")
    return found


def joined(words: Sequence[str]) -> list[str]:
    """The words, those together that are one slip: rounds: 5, rounds 5, rounds = 5."""
    found: list[str] = []
    for word in words:
        last = found[-1] if found else ""
        apart = BARE.fullmatch(last) and word.startswith("=")
        bare = "=" not in word and (BARE.fullmatch(last) or last.endswith(" ="))
        if apart or bare:
            found[-1] = f"{last} {word}"
        else:
            found.append(word)
    return found


def refuse_dashes(words: Sequence[str], keys: Collection[str]) -> None:
    """Raise ConfigError for `--rounds 5` and its like; Hydra's options are none of the `keys` of a run."""
    found = []
    for word, after in zip(words, [*words, ""][1:], strict=True):
        match = re.fullmatch(r"--?([A-Za-z_][\w.]*)(?:=(.*))?", word)
        if match and match[1].partition(".")[0] in keys:
            bare = match[2] is None and after and not after.startswith("-") and "=" not in after
            value = match[2] or (after if bare else "VALUE")
            text = f"{word} {after}" if bare else word
            found.append(
                f"'{text}' is no override (key=value), which has no dashes: write {match[1]}={value}"
            )
    if found:
        raise ConfigError(*found)


def misplaced(key: str, values: Mapping[str, Any]) -> str:
    """A problem of a key that is one of a group's, such as lr of method.local.lr; "" of others."""
    pattern = re.compile(rf".*?\.{re.escape(key)}(?=\.|$)")
    inside = list(dict.fromkeys(m[0] for k in values if (m := pattern.match(k))))
    return f"{key} is unknown; did you mean {' or '.join(inside[:3])}?" if inside else ""


def remedy(text: str) -> str:
    """What was probably meant; "" where it cannot be told."""
    if found := re.fullmatch(r"-*([A-Za-z_][\w.]*)(?: *: *| += *| +)([^\s=]+)", text):
        return f"write {found[1]}={found[2]}"
    if re.fullmatch(r"[\w.]+", text):
        return f"write {text}=VALUE"
    key, sign, value = text.partition("=")
    quotable = key and sign and "'" not in value
    return f"if the value is text, put quotes around it: \"{key}='{value}'\"" if quotable else ""
