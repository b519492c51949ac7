"""What we write and print for servers and devices: Flower and systemd know it, and it reports to nobody."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from fedpers.app.cli import main
from fedpers.core.errors import ConfigError
from fedpers.deploy import services
from fedpers.deploy.submit import QUIET

ROOT = Path(__file__).parents[2]
OFF = ("FLWR_TELEMETRY_ENABLED=0", "FLWR_DISABLE_UPDATE_CHECK=1")
DEVICE = ["services", "device", "site-a", "--server", "fl.example.org:8443", "--data", "/srv/my train.csv"]


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """All files, for a server and for a device."""
    out = tmp_path / "services"
    assert main(["services", "server", "--keys", str(tmp_path / "keys"), "--out", str(out)]) == 0
    assert main([*DEVICE, "--target", "y", "--out", str(out)]) == 0
    return out


def words_of(unit: Path) -> list[str]:
    """What a unit executes, as systemd splits it."""
    text = unit.read_text().replace("\\\n", " ")
    line = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    return [w.replace("%%", "%").replace("$$", "$") for w in shlex.split(line.removeprefix("ExecStart="))]


def test_units_are_what_systemd_and_flower_take(units: Path) -> None:
    from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

    server = _parse_args_run_superlink().parse_args(words_of(units / "fedpers-superlink.service")[2:])
    assert server.enable_supernode_auth and server.database == "/var/lib/fedpers/link.db"
    node = _parse_args_run_supernode().parse_args(words_of(units / "fedpers-device.service")[1:])
    told = 'client="site-a" data="/srv/my train.csv" target="y" state="/var/lib/fedpers/state"'
    assert node.node_config == told and node.superlink == "fl.example.org:8443"
    if shutil.which("systemd-analyze") is None:
        return
    for unit in units.glob("*.service"):
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
        )
        said = [line for line in done.stderr.splitlines() if unit.name in line and "nginx" not in line]
        assert not said, said


def test_the_proxys_configuration_needs_no_name_of_this_machine(units: Path, tmp_path: Path) -> None:
    conf = (units / "nginx.conf").read_text()
    assert f"ssl_certificate {tmp_path}/keys/server.crt;" in conf and "/run/secrets" not in conf
    assert "proxy_pass https://127.0.0.1:8000;" in conf and "superlink:" not in conf


@pytest.mark.parametrize("value", ['a"b', "a'b", "a\nb", "a\\b"])
def test_what_a_unit_cannot_hold_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigError, match="node-config"):
        services.device(tmp_path, tmp_path, Path("/var/lib/x"), "fedpers", "a", "h:1", {"data": value})
    with pytest.raises(ConfigError, match="systemd"):
        services.device(tmp_path, tmp_path, Path("/var/lib/x"), "fedpers", "a", value, {"data": "d"})


def test_percent_and_dollar_reach_the_device_as_they_are(tmp_path: Path) -> None:
    (unit,) = services.device(tmp_path, tmp_path, Path("/s"), "fedpers", "a", "h:1", {"data": "/d/5% $x.csv"})
    assert "5%% $$x.csv" in unit.read_text() and 'data="/d/5% $x.csv"' in words_of(unit)[-1]


# ---- telemetry and look-ups for updates -----------------------------------------------------------


def test_units_report_to_nobody(units: Path) -> None:
    for name in ("superlink", "device"):
        lines = (units / f"fedpers-{name}.service").read_text().splitlines()
        assert {f"Environment={n}={v}" for n, v in QUIET.items()} <= set(lines)


def test_containers_report_to_nobody() -> None:
    """All services are of the image, whose environment says so; none says otherwise."""
    image = (ROOT / "docker" / "Dockerfile").read_text().partition(" AS app")[2].partition("\nFROM")[0]
    assert all(word in image.split() for word in OFF)
    for path in (ROOT / "docker").glob("compose*.yaml"):
        for name, service in yaml.safe_load(path.read_text())["services"].items():
            assert service["image"] in ("${FEDPERS_IMAGE:-fedpers}", "${FEDPERS_PROXY_IMAGE:-fedpers-proxy}")
            assert not {n for n in service.get("environment", {}) if n.startswith("FLWR")}, name


@pytest.mark.parametrize(
    "page", [*sorted(ROOT.glob("docs/**/*.md")), ROOT / "README.md"], ids=lambda p: p.name
)
def test_pages_with_commands_of_flower_turn_both_off_before(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = [(m.start(), m[1]) for m in re.finditer(r"```\w*\n(.*?)```", text, re.S)]
    command = re.compile(
        r"(^|\s)(flower-superlink|fedpers superlink|flower-supernode|flwr (run|list|stop)) ", re.M
    )
    for start, block in blocks:
        if (first := command.search(block)) is not None:
            before = text[:start] + block[: first.start()]
            assert all(word in before for word in OFF), f"{page.name}: {block[:200]}"


def test_the_ten_commands_of_the_page_are_in_an_order_that_works() -> None:
    """A proxy needs its configuration, and a SuperNode whose key is unknown ends at once."""
    page = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text(encoding="utf-8")
    proxy = ["fedpers keys init", "fedpers services server", "$PWD/services/nginx.conf"]
    device = [
        "keys client",
        "fedpers keys admit",
        "flower-supernode --superlink",
        "fedpers run engine=deployment",
    ]
    places = [page.index(text) for text in [*proxy, *device]]
    assert places == sorted(places)
