"""The image and the compose files: linted everywhere, run where there are containers and an image."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from fedpers.app.run import execute
from fedpers.config.compose import load
from fedpers.core.pytree import leaves
from fedpers.results import checkpoint

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
COMPOSE = sorted(DOCKER.glob("compose*.yaml"))
BIN = Path(sys.executable).parent


def tool(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path=str(BIN))
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def done(*command: object) -> str:
    ran = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def services(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text())["services"])


def test_the_dockerfile_passes_its_linter() -> None:
    done(tool("hadolint"), DOCKER / "Dockerfile")


@pytest.mark.parametrize("path", COMPOSE, ids=lambda p: p.name)
def test_compose_files_fit_the_specification(path: Path) -> None:
    done(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", path)


@pytest.mark.parametrize("path", COMPOSE, ids=lambda p: p.name)
def test_every_service_is_hardened(path: Path) -> None:
    for name, service in services(path).items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"] and "privileged" not in service, name


def test_only_the_proxy_is_published_and_devices_do_not_see_the_superlink() -> None:
    server, demo = services(DOCKER / "compose.server.yaml"), services(DOCKER / "compose.yaml")
    assert [name for name, s in server.items() if "ports" in s] == ["proxy"]
    assert not [name for name, s in demo.items() if "ports" in s]
    assert all(demo[f"site-{k}"]["networks"] == ["devices"] for k in range(3))
    assert demo["superlink"]["networks"] == ["server"]


def test_the_image_runs_as_nobody_in_particular() -> None:
    lines = (DOCKER / "Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("USER")] == ["USER 49999", "USER 49999"]


def test_the_image_holds_pinned_versions_and_no_leftovers() -> None:
    """It is built in two stages, so that neither pip's nor the sources' are in it."""
    lines = (DOCKER / "Dockerfile").read_text().splitlines()
    stages = [line.split() for line in lines if line.startswith("FROM")]
    assert [(words[1], words[3]) for words in stages] == [("${BASE}", n) for n in ("build", "app", "proxy")]
    assert all("==" in line for line in (DOCKER / "constraints.txt").read_text().split())
    assert "--no-cache-dir" in "".join(lines) and "--constraint /src/constraints.txt" in "".join(lines)


@pytest.mark.parametrize("path", COMPOSE, ids=lambda p: p.name)
def test_every_command_is_one_that_flower_knows(path: Path) -> None:
    """Options change between Flower's versions; its own parsers judge them."""
    from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

    parsers = {
        "flower-supernode": _parse_args_run_supernode(),
        "fedpers superlink": _parse_args_run_superlink(),
    }
    judged = 0
    for service in services(path).values():
        command = " ".join(service.get("command", ()))
        for name, known in parsers.items():
            if command.startswith(f"{name} --"):
                known.parse_args(service["command"][len(name.split()) :])
                judged += 1
    assert judged


def works(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def with_images() -> str:
    """The container engine that has our images; $CONTAINER_ENGINE is the only one asked if it is set."""
    chosen = os.environ.get("CONTAINER_ENGINE")
    there = [e for e in ([chosen] if chosen else ["docker", "podman"]) if shutil.which(e)]
    if not there:
        pytest.skip(f"{chosen or 'neither docker nor podman'} is not installed")
    for engine in there:
        if all(works(engine, "image", "inspect", name) for name in ("fedpers", "fedpers-proxy")):
            return engine
    pytest.skip(f"{' and '.join(there)}: no images fedpers and fedpers-proxy: make docker-image")


def composer(engine: str) -> str:
    """What reads compose files for an engine: its own plugin, or the tool of its name."""
    for words in ((engine, "compose"), (f"{engine}-compose",)):
        if works(*words, "--profile", "run", "version"):
            return " ".join(words)
    pytest.skip(f"neither '{engine} compose' nor {engine}-compose is installed, or too old for --profile")


@pytest.mark.deployment
@pytest.mark.slow
def test_the_demonstration_runs_in_containers(tmp_path: Path) -> None:
    """Needs the images: `make docker-image`, with podman or docker and their compose."""
    engine = with_images()
    compose = f"COMPOSE={composer(engine)} -f docker/compose.yaml"
    done("make", "-C", ROOT, "docker-demo", f"DOCKER={engine}", compose, f"DOCKER_OUT={tmp_path}/demo")
    assert (tmp_path / "demo" / "summary.json").is_file()
    assert list((tmp_path / "demo" / "plots").glob("*.png"))
    same = ["data=digits", "data.num_clients=3", "data.partition=dirichlet", "seed=3"]  # as in compose.yaml
    execute(load([*same, "method=pflego", "rounds=5", "engine.runner=loop"]), tmp_path / "in")
    for x, y in zip(*(leaves(checkpoint.load(tmp_path / f, None)[1]) for f in ("demo", "in")), strict=True):
        torch.testing.assert_close(x, y)  # the image's torch may be another build
