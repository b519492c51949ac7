"""`device=` and `devices=`: what of them can be told without a look at the machine."""

import difflib
import re
from collections.abc import Sequence

from fedpers.core.bounds import show

DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


def problems(device: str, devices: Sequence[int], engine: str) -> list[str]:
    """The problems, one line each."""
    listed = show(tuple(devices)).replace(" ", "")
    if not DEVICE.fullmatch(device):
        near = difflib.get_close_matches(device, ("auto", "cpu", "cuda"), n=1, cutoff=0.7)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        return [f"device={device}: expected one of auto, cpu, cuda, cuda:N{hint}"]
    if devices and device not in ("auto", "cuda"):
        return [f"devices={listed} device={device}: name the devices once; leave one of them out"]
    if len(set(devices)) < len(devices) or any(n < 0 for n in devices):
        return [f"devices={listed}: expected different numbers of GPUs, from 0 on, such as [0,2]"]
    chosen = f"devices={listed}" if devices else f"device={device}" * (":" in device)
    if chosen and engine != "inprocess":
        who = "Ray gives each actor its GPU" if engine == "ray" else "each device has its own"
        return [f"{chosen}: {who} with engine={engine}; use device=cuda, or engine=inprocess"]
    return []
