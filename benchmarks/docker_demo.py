"""The demonstration in containers: how large its images are, how long it takes, what it found.

    python benchmarks/docker_demo.py [make's variables]    after `make docker-image`

writes benchmarks/results/docker_demo.json. With podman the variables are those of docker/README.md.
"""

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

from fedpers.bench.main import machine

ROOT = Path(__file__).parents[1]
FILE = ROOT / "benchmarks" / "results" / "docker_demo.json"
IMAGES = ("fedpers", "fedpers-proxy")


def main() -> None:
    """Measure, and write the file."""
    variables = sys.argv[1:]
    docker = next((w.partition("=")[2] for w in variables if w.startswith("DOCKER=")), "docker")
    sizes = {name: size(docker, name) for name in IMAGES}
    began = time.monotonic()
    subprocess.run(["make", "docker-demo", *variables], cwd=ROOT, check=True)
    seconds = time.monotonic() - began
    summary = json.loads((ROOT / "runs" / "docker-demo" / "summary.json").read_text())
    row = {f"MB image {name}": mb for name, mb in sizes.items()} | {"minutes": seconds / 60}
    row |= {"rounds": summary["rounds_done"], "accuracy": summary["final"]["accuracy"]}
    command = shlex.join(["python", "benchmarks/docker_demo.py", *variables])
    found = {"machine": machine(), "command": command, "rows": [row]}
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def size(docker: str, image: str) -> float:
    """MB of an image."""
    command = [docker, "image", "inspect", "--format", "{{.Size}}", image]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) / 1e6


if __name__ == "__main__":
    main()
