"""What users are told: mistakes, warnings, and the numbers that the theory chose."""

import logging

import numpy as np
import pytest

from fedpers.app.run import execute
from fedpers.clients.lsgd import APFLConfig, FedResConfig
from fedpers.config import compose
from fedpers.core.errors import ConfigError
from fedpers.families.unified.mixture import MX2
from fedpers.results import files
from tests.unified import blocks, federation, flat, logistic, make, ridge, rounds, uneven


class Envelope(MX2):
    """An objective of a user's own that is no mean over samples."""

    finite_sum = False


class Bent(MX2):
    """One that is not convex."""

    convex = False


WHY = {"Envelope": "is no mean over samples", "Bent": "is not convex"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{name: apfl2, lam: 0.5}", "method.objective.lam is unknown"),
        ("{name: mx2, lambda: 0.5}", "did you mean method.objective.lam"),
        ("{name: ws2, shared_features: 3}", "shared_features=3: is read with private=features only"),
        ("{name: ws2, private: features}", "private=features: needs shared_features"),
        ("{name: mx2, mu: 0}", "method.objective.mu=0: must be above 0"),
        ("mx", "did you mean 'mx2'"),
    ],
)
def test_a_key_that_an_objective_does_not_read_is_an_error(line, message):
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        compose.load(["method=scd", f"method.objective={line}"])


def test_an_objective_by_name_and_with_keys():
    named = compose.load(["method=acd", "method.objective=mt2", "method.objective.lam=2"]).method
    whole = compose.load(["method=acd", "method.objective={name: mt2, lam: 2}"]).method
    assert named == whole and (named.objective.name, named.objective.lam) == ("mt2", 2.0)


@pytest.mark.parametrize("name", ["Envelope", "Bent"])
@pytest.mark.parametrize("method", ["scd", "ascd", "svrcd", "asvrcd", "lsgd", "acd"])
def test_an_objective_of_ones_own_is_refused_where_it_does_not_fit(name, method):
    load = lambda *more: compose.load([f"method={method}", f"method.objective={__name__}:{name}", *more])  # noqa: E731
    if (name, method) == ("Envelope", "acd"):
        assert load()
    elif method == "lsgd":
        assert load("method.batch_size=0", "method.eta=0.1")
        with pytest.raises(ConfigError, match=WHY[name]):
            load()
    else:
        with pytest.raises(ConfigError, match=WHY[name]):
            load()


# ---- warnings -----------------------------------------------------------------------------------


def warned(caplog, name, fed, last=1, **options):
    strategy, _, grid = make(name, fed, **options)
    with caplog.at_level(logging.WARNING, logger="fedpers"):
        strategy.last_round = last
        rounds(strategy, grid, 1)
    return " ".join(caplog.messages)


@pytest.mark.parametrize(
    ("name", "fed", "options", "what"),
    [
        ("acd", logistic(), {}, "momentum counts with mu=0.01"),
        ("acd", logistic(), {"l2": 0.001, "mu": 0.01}, "mu=0.01 is above 0.001"),
        ("scd", ridge(), {"objective": "mt2", "Lambda": 100.0}, "times L_β"),
        ("asvrcd", ridge(), {}, "1 rounds have about 0.1 new anchors"),
    ],
)
def test_warnings(caplog, name, fed, options, what):
    assert what in warned(caplog, name, fed, **options)


def test_no_warning_where_all_is_well(caplog):
    assert not warned(caplog, "acd", logistic(), l2=0.01)
    assert not warned(caplog, "scd", logistic())


def test_without_mu_the_ridge_is_taken():
    """A surrogate above the ridge costs accuracy: F - F* after 300 rounds at l2 = 1e-4."""
    strategy, _, grid = make("acd", logistic(), l2=1e-4)
    rounds(strategy, grid, 1)
    f = strategy.objective
    expected = f._mu(1e-4, 0, 1) / 4
    assert strategy.state.constants.mu == pytest.approx(expected)


# ---- summary.json -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["lsgd", "acd", "scd", "ascd", "svrcd", "asvrcd"])
def test_what_the_theory_chose_is_in_the_summary(tmp_path, method):
    line = ["data.num_clients=3", "rounds=1", "checkpoint_every=0", "device=cpu", "model=logistic"]
    theory = execute(compose.load([f"method={method}", *line]), tmp_path / "run")["theory"]
    chosen = {"lsgd": {"eta"}, "acd": {"p_w", "theta", "eta", "nu"}}
    others = {"p_w", "eta", "theta_1", "theta_2", "gamma", "nu", "rho", "theta"}
    assert theory.keys() >= {"mu", "L_w", "L_b", "cL_w", "cL_b"} | chosen.get(method, others)


def test_what_was_spent_counts_the_mean_size():
    strategy, _, grid = make("acd", uneven())
    rounds(strategy, grid, 1)
    c = strategy.state.counts
    assert c.beta_sample_grads == 6 * c.beta_grads  # sizes 3, 9, 6


# ---- how far clients are from the shared model --------------------------------------------------


def test_apart_is_the_distance_of_the_blocks():
    strategy, cohort, grid = make("acd", logistic(), report=True, lam=0.05)
    rounds(strategy, grid, 3)
    w, betas = blocks(strategy, cohort)
    for k, beta in enumerate(betas):
        message, state = strategy.evaluation_message(strategy.state, k), cohort.state(k, (99, 0))
        found = cohort.client.assess(message, state, cohort.data(k), None)
        assert float(found["apart"]) == pytest.approx(
            np.linalg.norm(flat(beta) - flat(w) / 4**0.5), rel=1e-12
        )
    strategy, cohort, grid = make("acd", logistic(), report=False)
    message = strategy.evaluation_message(strategy.state, 0)
    assert "apart" not in cohort.client.assess(message, cohort.state(0, (99, 0)), cohort.data(0), None)


def test_a_picture_of_heterogeneity(tmp_path, pictures):
    line = ["data.num_clients=3", "rounds=1", "checkpoint_every=0", "device=cpu", "model=logistic"]
    summary = execute(compose.load(["method=acd", *line]), tmp_path / "run")
    assert "plots/heterogeneity.png" in summary["plots"]
    rows, _ = files.read_csv(tmp_path / "run" / "clients.csv")
    assert all(r["apart"] > 0 for r in rows)
    summary = execute(compose.load(["method=local", *line]), tmp_path / "local")
    assert "plots/heterogeneity.png" not in summary["plots"]


@pytest.mark.parametrize("config", [APFLConfig(), FedResConfig(tau=1)])
def test_published_names_move_the_private_model_however_many_clients_there_are(config):
    """As in the papers: client 0's first private model does not change with two more."""
    options = {k: v for k, v in vars(config).items() if k not in ("objective", "report")}
    few, found = ridge(M=2), []
    parts = [few.client(m % 2).train for m in range(4)]
    for fed in (few, federation([p.x.numpy() for p in parts], [p.y.numpy() for p in parts])):
        strategy, cohort, grid = make(
            "lsgd", fed, objective=config.objective.name, reparametrise=False, **options
        )
        rounds(strategy, grid, 1)
        found.append(flat(blocks(strategy, cohort)[1][0]))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-12)
    assert abs(found[0]).max() > 0.01


@pytest.mark.parametrize("name", ["apfl", "lsgd", "asvrcd", "l2sgd"])
@pytest.mark.parametrize("report", ["true", "false"])
def test_participants_measure_after_local_steps_and_not_after_questions(tmp_path, name, report):
    """The constants of the losses are asked for before round 1, f_m after rounds: no model in them."""
    words = [f"method={name}", f"method.report={report}", "model=logistic", "rounds=2"]
    cfg = compose.load([*words, "eval_protocol=participants_local", "data.num_clients=3", "data.limit=90"])
    final = execute(cfg, tmp_path / "run")["final"]
    assert 0 <= final["accuracy"] <= 1 and final["loss"] > 0
