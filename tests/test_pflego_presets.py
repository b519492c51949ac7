"""The presets of PFLEGO's Tables 1 and 2 hold the paper's rates (its Tables 6, 7), cell by cell."""

from pathlib import Path

import pytest
import yaml

CONF = Path(__file__).parents[1] / "conf" / "experiment"
COLUMNS = {  # file: degrees of personalisation, High, Medium, No
    "mnist": ("K2", "K5", "K10"),
    "cifar10": ("K2", "K5", "K10"),
    "emnist": ("K2", "K31", "K62"),
    "fashion": ("K2", "K5", "K10"),
}
RATES = {  # of Tables 6 and 7, in the order of COLUMNS
    "fedper": [0.007, 0.007, 0.007, 0.007, 0.005, 0.005, 0.007, 0.007, 0.007, 0.007, 0.007, 0.007],
    "fedavg": [0.007, 0.007, 0.007, 0.007, 0.007, 0.006, 0.007, 0.007, 0.007, 0.007, 0.007, 0.007],
    "fedprox": [0.007, 0.007, 0.007, 0.007, 0.007, 0.006, 0.007, 0.007, 0.007, 0.007, 0.007, 0.007],
    "ditto": [0.007, 0.007, 0.007, 0.007, 0.007, 0.007, 0.007, 0.007, 0.007, 0.005, 0.007, 0.007],
    "ditto mu": [0.25, 0.5, 1, 0.25, 0.5, 1, 0.25, 0.25, 1, 0.25, 0.25, 1],
    "fedrep": [0.007, 0.007, 0.007, 0.005, 0.007, 0.007, 0.007, 0.007, 0.007, 0.003, 0.007, 0.007],
    "fedbabu": [0.007] * 12,
    "pflego beta": [0.189, 0.189, 0.189, 0.002, 0.0189, 0.03, 0.03, 0.03, 0.03, 0.006, 0.006, 0.007],
    "pflego rho": [0.003, 0.003, 0.003, 0.001, 0.003, 0.003, 0.003, 0.003, 0.003, 0.002, 0.002, 0.003],
}
CELLS = [(name, degree) for name, degrees in COLUMNS.items() for degree in degrees]
LAST = {"steps": 45, "batch_size": 0, "momentum": 0.999}, {"steps": 5, "batch_size": 0, "momentum": 0.999}


def whole(hyper, method):
    """The settings of one method: what all have, and its own."""
    own = hyper.get(method, {})
    return {**hyper["all"], **own, "local": {**hyper["all"]["local"], **own.get("local", {})}}


def read(name):
    return yaml.safe_load((CONF / f"pflego_{name}.yaml").read_text(encoding="utf-8"))


def check_common(hyper, rate):
    """What holds in all thirteen cells; `rate` is FedRep's."""
    assert hyper["pflego"]["tau"] == 50
    assert hyper["pflego"]["head_step"] == "paper"
    assert {hyper[m]["head_init"] for m in ("pflego", "fedper", "fedrep")} == {"uniform01"}
    assert all(hyper[m]["own_classes"] for m in ("pflego", "fedper", "fedrep"))
    assert hyper["fedrep"]["head"] == {"lr": rate, **LAST[0]}
    assert hyper["fedrep"]["body"] == {"lr": rate, **LAST[1]}
    assert hyper["fedprox"]["mu"] == 0.25
    assert hyper["fedbabu"]["local"]["momentum"] == 0.9
    assert (hyper["all"]["local"]["epochs"], hyper["all"]["local"]["batch_size"]) == (50, 0)


@pytest.mark.parametrize(("place", "cell"), list(enumerate(CELLS)), ids=[f"{n}-{d}" for n, d in CELLS])
def test_a_cell_of_table_1_has_the_papers_rates(place, cell):
    hyper = read(f"table1_{cell[0]}")["paper"]["hyper"][cell[1]]
    for method in ("fedper", "fedavg", "fedprox", "ditto", "fedbabu"):
        assert whole(hyper, method)["local"]["lr"] == RATES[method][place], method
    assert hyper["ditto"]["lam"] == RATES["ditto mu"][place]
    assert (hyper["pflego"]["beta"], hyper["pflego"]["rho"]) == (
        RATES["pflego beta"][place],
        RATES["pflego rho"][place],
    )
    check_common(hyper, RATES["fedrep"][place])


def test_table_2_has_the_papers_rates():
    hyper = read("table2_omniglot")["hyper"]
    for method in ("fedper", "fedavg", "fedprox", "fedbabu"):
        assert whole(hyper, method)["local"]["lr"] == 0.009, method
    assert (hyper["ditto"]["lam"], whole(hyper, "ditto")["local"]["lr"]) == (0.5, 0.007)
    assert (hyper["pflego"]["beta"], hyper["pflego"]["rho"]) == (0.1341, 0.003)
    assert (hyper["fedrecon"]["head"]["lr"], hyper["fedrecon"]["rho"]) == (0.009, 0.003)
    assert (hyper["fedrecon"]["head_init"], hyper["fedrecon"]["own_classes"]) == ("uniform01", True)
    check_common(hyper, 0.009)


def test_every_preset_of_pflego_is_compared():
    assert {p.stem for p in CONF.glob("pflego_table*.yaml")} == {
        "pflego_table2_omniglot",
        *(f"pflego_table1_{name}" for name in COLUMNS),
    }
