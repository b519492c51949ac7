"""`make constraints`: docker/constraints.txt anew, the newest versions that pyproject.toml allows."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
WHAT = f"{ROOT}[monitoring,parquet]"  # what the image installs
NOT_OURS = re.compile(r"fedpers|nvidia-.*|cuda-.*|triton|setuptools")  # of torch with CUDA, or of building


def resolved() -> dict[str, str]:
    """{distribution: version} of a fresh environment; versions without a build's suffix, such as +cpu."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    done = subprocess.run([*command, "--report", "-", WHAT], check=True, stdout=subprocess.PIPE, text=True)
    found = (entry["metadata"] for entry in json.loads(done.stdout)["install"])
    pins = {re.sub(r"[-_.]+", "-", m["name"]).lower(): m["version"].partition("+")[0] for m in found}
    return {name: pin for name, pin in sorted(pins.items()) if not NOT_OURS.fullmatch(name)}


if __name__ == "__main__":
    lines = [f"{name}=={pin}\n" for name, pin in resolved().items()]
    (ROOT / "docker" / "constraints.txt").write_text("".join(lines), encoding="utf-8")
