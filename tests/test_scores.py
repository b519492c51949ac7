"""Metrics beyond accuracy: closed forms, and the columns that they make."""

import math

import numpy as np
import pytest
import torch

import fedpers
from fedpers.config import compose
from fedpers.core import scores
from fedpers.core.errors import ConfigError, FedpersError
from fedpers.core.metrics import summarise
from fedpers.core.scores import problems
from fedpers.deploy.policy import Policy
from fedpers.learning.model import build_model


def probabilities(guesses, confidence=0.8, classes=3):
    """Rows that predict `guesses` with this confidence; the rest is shared evenly."""
    p = np.full((len(guesses), classes), (1 - confidence) / (classes - 1))
    p[np.arange(len(guesses)), guesses] = confidence
    return p


def test_balanced_accuracy_is_the_mean_recall_of_the_classes_that_are_there():
    y, p = np.array([0, 0, 0, 0, 1, 1]), probabilities([0, 0, 0, 2, 1, 0])
    assert scores.balanced_accuracy(y, p) == pytest.approx((3 / 4 + 1 / 2) / 2)


def test_macro_f1():
    y, p = np.array([0, 0, 0, 0, 1, 1]), probabilities([0, 0, 0, 2, 1, 0])
    first = 2 * 3 / (2 * 3 + 1 + 1)  # 3 right, 1 missed, 1 false
    second = 2 * 1 / (2 * 1 + 0 + 1)
    assert scores.macro_f1(y, p) == pytest.approx((first + second) / 2)


def test_auc_counts_ordered_pairs_and_half_the_ties():
    y = np.array([1, 1, 0, 0, 0])
    one = np.array([0.9, 0.4, 0.4, 0.3, 0.8])
    pairs = [(0.9, 0.4), (0.9, 0.3), (0.9, 0.8), (0.4, 0.4), (0.4, 0.3), (0.4, 0.8)]
    expected = np.mean([1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs])
    assert scores.auc(y, np.stack([1 - one, one], 1)) == pytest.approx(expected)
    assert math.isnan(scores.auc(np.zeros(4), probabilities([0, 1, 0, 0])))


def test_ece_is_the_gap_of_each_bin():
    """Ten samples at 0.8, of which 5 are right; ten at 0.6, all right: (10 x 0.3 + 10 x 0.4) / 20."""
    p = np.concatenate([probabilities([0] * 10, 0.8), probabilities([0] * 10, 0.6)])
    y = np.array([0] * 5 + [1] * 5 + [0] * 10)
    assert scores.ece(y, p) == pytest.approx(0.35)
    sure = probabilities([0, 1, 2], 1.0)
    assert scores.ece(np.array([0, 1, 2]), sure) == 0.0
    assert scores.ece(np.array([1, 2, 0]), sure) == 1.0


def test_brier_mae_and_r2():
    assert scores.brier(np.array([0]), np.array([[0.7, 0.2, 0.1]])) == pytest.approx(0.09 + 0.04 + 0.01)
    y, p = np.array([1.0, 3.0]), np.array([[2.0], [3.0]])
    assert scores.mae(y, p) == 0.5
    assert scores.r2(y, p) == pytest.approx(1 - 1 / 2)
    assert math.isnan(scores.r2(y[:1], p[:1]))


def test_spreads_over_clients():
    assert scores.variance(np.array([0.2, 0.4, 0.9])) == pytest.approx(0.26 / 3)
    assert scores.jain(np.array([0.5, 0.5, 0.5])) == 1.0
    assert scores.jain(np.array([1.0, 0.0, 0.0, 0.0])) == 0.25
    assert scores.jain(np.array([1.0, 2.0])) == pytest.approx(9 / 10)
    assert scores.jain(np.zeros(3)) == 1.0


def test_a_split_takes_the_mean_over_clients_that_have_a_value():
    clients = {
        "test_num": np.array([4.0, 2.0, 0.0, 5.0]),
        "test_loss": np.array([1.0, 2.0, np.nan, 3.0]),
        "test_accuracy": np.array([0.5, 1.0, np.nan, 0.0]),
        "test_auc": np.array([0.6, np.nan, np.nan, 0.8]),
    }
    found = summarise(clients, "test", ("auc", "jain", "variance"))
    assert found["auc"] == pytest.approx(0.7)
    assert found["jain"] == pytest.approx(1.5**2 / (3 * 1.25))
    assert found["variance"] == pytest.approx(np.var([0.5, 1.0, 0.0]))
    clients["test_accuracy"][:] = np.nan  # regression: of the losses
    assert summarise(clients, "test", ("variance",))["variance"] == pytest.approx(np.var([1.0, 2.0, 3.0]))
    assert "auc" not in summarise(clients, "test")


def test_predictions_that_are_no_numbers():
    """Answers are wrong, what reads probabilities is nan, and no mean over clients passes over that."""
    y, p = np.array([0, 0, 1, 1]), np.full((4, 2), np.nan)
    found = scores.of_client(("balanced_accuracy", "macro_f1", "auc", "ece", "brier"), y, p)
    assert (found["balanced_accuracy"], found["macro_f1"]) == (0.0, 0.0)
    assert all(math.isnan(found[n]) for n in ("auc", "ece", "brier"))
    assert all(math.isnan(v) for v in scores.of_client(("mae", "r2"), y, np.full((4, 1), np.inf)).values())
    p[:2] = [[0.9, 0.1], [0.2, 0.8]]  # of class 0, whose recall is a half; class 1 is never right
    assert scores.of_client(("balanced_accuracy",), y, p)["balanced_accuracy"] == 0.25
    clients = {
        "test_num": np.array([4.0, 4.0]),
        "test_loss": np.array([1.0, np.nan]),
        "test_accuracy": np.array([0.5, 0.0]),
        "test_auc": np.array([0.6, np.nan]),
    }
    assert math.isnan(summarise(clients, "test", ("auc",))["auc"])


def test_predictions_of_each_task():
    x = torch.tensor([[0.3, -1.0]])
    several = build_model("logistic", input_shape=(2,), num_outputs=2, task="classification")
    torch.testing.assert_close(several.predictions(x), torch.softmax(x, 1))
    binary = build_model("logistic", input_shape=(2,), num_outputs=2, task="binary")
    p = binary.predictions(torch.tensor([[0.3], [-90.0]]))
    torch.testing.assert_close(p, torch.tensor([[1 - 0.574442517, 0.574442517], [1.0, 0.0]]))
    value = build_model("linear", input_shape=(2,), num_outputs=1, task="regression")
    assert value.predictions(x) is x


NAMES = ("balanced_accuracy", "macro_f1", "auc", "ece", "brier", "variance", "jain")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same run with and without metrics; PFLEGO adapts heads, a new client is among them."""
    out, found = tmp_path_factory.mktemp("runs"), []
    for metrics in (NAMES, ()):
        words = ["rounds=2", "data.num_clients=5", "new_clients=1", "model.hidden=[8]"]
        found.append(fedpers.run("pflego", *words, metrics=metrics, out=out / str(len(found))))
    return found


def test_they_are_columns_of_every_file(runs):
    scored, plain = runs
    last = scored.frame().query("split == 'test' and round == 2").iloc[0]
    table = scored.clients()
    for name in NAMES[:5]:
        assert last[name] == pytest.approx(table[name].mean(), rel=1e-12), name
    assert last.variance == pytest.approx(table.accuracy.var(ddof=0), rel=1e-12)
    assert {"valid_auc", "new_auc"} <= set(table.columns)
    assert set(NAMES) <= scored.summaries[0]["final"].keys() & scored.summaries[0]["best"].keys()
    assert not set(NAMES) & set(plain.frame().columns)


def test_they_change_no_other_number(runs):
    scored, plain = (r.frame().drop(columns=["seconds", "between_seconds"]) for r in runs)
    for column in ("accuracy", "gradient_evals", "bytes_up"):
        assert scored[column].equals(plain[column]), column
    np.testing.assert_allclose(scored.loss.dropna(), plain.loss.dropna(), rtol=1e-5)  # one by one, or a stack


def test_a_regression_has_its_own(tmp_path):
    data = {"name": "synthetic_sine", "num_clients": 3}
    run = fedpers.run("fedavg", data=data, model="mlp", rounds=1, metrics=["mae", "r2", "jain"], out=tmp_path)
    assert run.clients().mae.gt(0).all()
    assert {"mae", "r2", "jain"} <= set(run.frame().columns)


def test_mistakes(tmp_path):
    with pytest.raises(ConfigError, match=r"metric 'balanced_acuracy' is unknown; did you mean"):
        compose.load(["metrics=[balanced_acuracy]"])
    with pytest.raises(ConfigError, match=r"metrics=\[r2\]: a classification task has no such"):
        fedpers.run("fedavg", metrics=["r2"], out=tmp_path)


OWN = """
import numpy as np

def sure(y, p):
    return p.max(1).mean()

def nothing(y, p):
    return None

NUMBER = 1.0
"""


def test_a_metric_of_your_own(tmp_path, monkeypatch):
    """Its column is called as the function; clients.csv has each client's, the rest the mean over clients."""
    (tmp_path / "my_scores.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    data = {"name": "digits", "num_clients": 3}
    words = {"model": "logistic", "rounds": 1, "metrics": ["my_scores:sure", "brier"]}
    run = fedpers.run("fedavg", data=data, out=tmp_path / "run", **words)
    values = run.clients().sure
    assert len(values) == 3 and values.between(0.1, 1).all()
    frame = run.frame()
    last = frame[frame.split == "test"].iloc[-1]
    assert last.sure == pytest.approx(values.mean(), rel=1e-12)
    assert run.summaries[0]["final"]["sure"] == pytest.approx(last.sure)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("my_wrong:nothing", "failed on y"),
        ("my_wrong:NUMBER", "is a float; name a function"),
        ("my_wrong:missing", "cannot import it"),
        ("no_such_module:f", "cannot import it"),
    ],
)
def test_an_own_metric_that_fails_is_named(tmp_path, monkeypatch, name, text):
    (tmp_path / "my_wrong.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    data = {"name": "digits", "num_clients": 2}
    with pytest.raises(FedpersError, match=rf"metrics=\[{name}\]: {text}"):
        fedpers.run("fedavg", data=data, model="logistic", rounds=1, metrics=[name], out=tmp_path / "run")


def test_an_own_metric_has_a_column_of_its_own():
    assert not problems(["mine:f", "mine:g"], "regression")
    for names, text in (
        (["mine:auc"], "no column may be called 'auc'"),
        (["mine:f", "yours:f"], "no column may be called 'f'"),
        (["a-b:f"], "is no package.module:function"),
    ):
        (problem,) = problems(names)
        assert text in problem


def test_a_device_imports_no_metric_that_its_policy_does_not_allow():
    with pytest.raises(ConfigError, match="metrics=os:system; it allows no module"):
        Policy().check({"method": {"name": "fedavg"}, "model": {"name": "mlp"}, "metrics": ["os:system"]}, {})
    allowed = Policy(modules=("mine:f",))
    allowed.check({"method": {"name": "fedavg"}, "model": {"name": "mlp"}, "metrics": ["mine:f"]}, {})
