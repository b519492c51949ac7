"""Tasks: losses and metrics against closed forms, and a run of each with several methods."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import fedpers
from fedpers.app.build import assemble
from fedpers.app.export import export
from fedpers.app.exported import load_exported
from fedpers.app.predict import predict
from fedpers.config import compose
from fedpers.core import scores
from fedpers.core.data import Federation
from fedpers.core.errors import ConfigError, DataError
from fedpers.core.tasks import IGNORED, TASKS
from fedpers.datasets.federation import load_federation
from fedpers.learning.model import build_model

N = 4  # clients


def texts(seed: int = 0, length: int = 8) -> Federation:
    """Cycles of 5 tokens: what follows token t is t + 1, and of the odd clients t + 2."""
    rng, clients = np.random.default_rng(seed), []
    for k in range(N):
        first = rng.integers(5, size=(20, 1))
        run = (first + (1 + k % 2) * np.arange(length + 1)) % 5
        clients.append((run[:, :-1], run[:, 1:]))
    return Federation.from_arrays(clients, task="tokens", tokens=True)


def labelled(seed: int = 0) -> Federation:
    """Three labels, the signs of three features; of the odd clients the signs turned round."""
    rng, clients = np.random.default_rng(seed), []
    for k in range(N):
        x = rng.normal(size=(60, 3))
        clients.append((x, (x * (-1) ** k > 0).astype(int)))
    return Federation.from_arrays(clients, task="multilabel")


def last_row(path: Path) -> pd.Series:
    table = pd.read_csv(path / "metrics.csv")
    return table[table.split == "test"].iloc[-1]


def ratings(folder: Path, people: int = 8, things: int = 40) -> Path:
    """People of even number choose things of even number, the others those of odd number."""
    rng = np.random.default_rng(0)
    rows = [(f"p{k}", 2 * i + k % 2, t) for k in range(people)
            for t, i in enumerate(rng.permutation(things // 2)[:15])]  # fmt: skip
    pd.DataFrame(rows, columns=["user", "item", "when"]).to_csv(folder / "ratings.csv", index=False)
    return folder / "ratings.csv"


# ---- closed forms -----------------------------------------------------------------------------------


def test_the_loss_of_tokens_is_the_mean_of_those_that_count():
    z = torch.randn(2, 3, 4)
    y = torch.tensor([[1, 2, IGNORED], [0, 3, 1]])
    log_p = z.log_softmax(-1)
    ours = TASKS["tokens"].losses(z, y)
    first = -(log_p[0, 0, 1] + log_p[0, 1, 2]) / 2
    second = -(log_p[1, 0, 0] + log_p[1, 1, 3] + log_p[1, 2, 1]) / 3
    torch.testing.assert_close(ours, torch.stack([first, second]))
    nobody = TASKS["tokens"].losses(z, torch.full((2, 3), IGNORED))
    assert nobody.tolist() == [0, 0]


def test_perplexity_of_a_guess_among_k_is_k_and_counts_tokens_not_samples():
    p = np.full((3, 5, 7), 1 / 7)
    assert scores.perplexity(np.zeros((3, 5), int), p) == pytest.approx(7)
    p[0, :, 0], y = 1.0, np.full((3, 5), IGNORED)
    y[0], y[1, 0] = 0, 0  # five tokens that are certain and one of probability 1/7
    assert scores.perplexity(y, p) == pytest.approx(7 ** (1 / 6))


def test_the_loss_of_labels_is_the_mean_binary_cross_entropy():
    z, y = torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0, 0.0]])
    expected = (math.log(2) + math.log1p(math.exp(2))) / 2
    assert float(TASKS["multilabel"].losses(z, y)) == pytest.approx(expected)
    assert float(TASKS["multilabel"].correct(z, torch.tensor([[1.0, 1.0]]))) == 0.5


def test_labels_are_scored_each_and_then_averaged():
    y = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0]])
    p = np.array([[0.9, 0.8, 0.1], [0.8, 0.9, 0.1], [0.1, 0.7, 0.9]])
    assert scores.label_f1(y, p) == pytest.approx((1 + 2 * 2 / (2 + 3)) / 2)  # nobody has the third
    assert scores.label_auc(y, p) == pytest.approx((1 + 0.5) / 2)  # 0.8 is between 0.9 and 0.7


@pytest.mark.parametrize("place", [0, 1, 9, 10, 50])
def test_hits_and_gain_of_a_known_place(place):
    score = np.linspace(1, 0, 100)
    y = (np.arange(100) == place).astype(int)
    p = np.stack([1 - score, score], 1)
    assert scores.hr_at_10(y, p) == (place < 10)
    assert scores.ndcg_at_10(y, p) == pytest.approx(1 / math.log2(place + 2) if place < 10 else 0)


def test_one_score_for_all_hits_nothing():
    y = (np.arange(100) == 3).astype(int)
    assert scores.hr_at_10(y, np.full((100, 2), 0.5)) == 0


@pytest.mark.parametrize("name", ["classification", "binary", "multilabel", "tokens"])
def test_mixtures_mix_probabilities(name):
    task = TASKS[name]
    shape = {"binary": (6, 1), "tokens": (6, 2, 4)}.get(name, (6, 4))
    z, w = torch.randn(3, *shape, dtype=torch.float64), torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    mixed = task.predictions(task.mixed(z, w))
    torch.testing.assert_close(mixed, sum(w[j] * task.predictions(z[j]) for j in range(3)))


# ---- runs -------------------------------------------------------------------------------------------

LSTM = {"name": "lstm", "vocabulary": 5, "embedding": 4, "hidden": 8, "layers": 1}
SMALL = {"name": "transformer", "vocabulary": 5, "width": 8, "heads": 2, "layers": 1, "dropout": 0.0}
TWO = ["fedavg", "ditto"]


def trained(out: Path, method: str, data, *words: str, rounds: int = 1, **more) -> pd.Series:
    fedpers.run(method, *words, data=data, rounds=rounds, eval_every=0, out=out, **more)
    return last_row(out)


def test_a_language_model_learns_what_each_client_says(tmp_path):
    """Cycles by one and by two: a personal head tells them apart, one model for all cannot."""
    words = ("method.local.lr=0.02", "method.local.optimizer=adam", "method.local.epochs=5")
    rows = {m: trained(tmp_path / m, m, texts(), *words, rounds=8, model=SMALL) for m in ("fedavg", "ditto")}
    assert rows["ditto"]["perplexity"] < 1.3 < 1.9 < rows["fedavg"]["perplexity"]
    assert rows["ditto"]["accuracy"] > 0.9 > 0.7 > rows["fedavg"]["accuracy"]
    assert rows["fedavg"]["loss"] == pytest.approx(math.log(rows["fedavg"]["perplexity"]), abs=0.05)


def test_a_token_sees_none_that_follows_it():
    model = build_model("transformer", input_shape=(6,), num_outputs=5, task="tokens", **{
        k: v for k, v in SMALL.items() if k != "name"})  # fmt: skip
    w, x = model.init(0), torch.randint(5, (2, 6)).float()
    other = x.clone()
    other[:, 4:] = (x[:, 4:] + 1) % 5
    ours, theirs = model(w, x), model(w, other)
    torch.testing.assert_close(ours[:, :4], theirs[:, :4])
    assert not torch.allclose(ours[:, 4:], theirs[:, 4:])


def test_stack_and_loop_are_one(tmp_path):
    for name, data, model in (("tokens", texts(), SMALL), ("labels", labelled(), {"name": "mlp"})):
        rows = [
            trained(tmp_path / f"{name}-{mode}", "fedper", data, f"engine.runner={mode}", model=model)
            for mode in ("stack", "loop")
        ]
        assert rows[0]["loss"] == pytest.approx(rows[1]["loss"], rel=1e-5), name


def test_workers_are_as_one_process(tmp_path):
    one, two = (
        trained(tmp_path / str(n), "fedper", labelled(), f"engine.workers={n}", model="mlp") for n in (1, 2)
    )
    assert one["loss"] == pytest.approx(two["loss"], rel=1e-6) and one["label_f1"] == two["label_f1"]


def test_labels_that_clients_mean_differently(tmp_path):
    words = ("method.local.lr=0.5", "method.local.epochs=10")
    rows = {m: trained(tmp_path / m, m, labelled(), *words, rounds=3, model="logistic") for m in TWO}
    assert rows["ditto"]["label_auc"] > 0.95 and rows["ditto"]["label_f1"] > 0.8
    assert rows["fedavg"]["label_auc"] < 0.8


def test_what_is_chosen_next_is_ranked_by_a_private_vector(tmp_path):
    """A person's vector is the head: with it hits come, with one vector for all they do not."""
    file = ratings(tmp_path)
    words = (f"data.path={file}", "data.candidates=30", "method.local.optimizer=adam", "method.local.lr=0.05",
             "method.local.epochs=10", "model.vocabulary=40", "data.time=when")  # fmt: skip
    rows = {
        m: trained(tmp_path / m, m, "ratings", *words, rounds=8, model="factors")
        for m in ("fedavg", "fedper")
    }
    assert rows["fedper"]["hr_at_10"] == 1 and rows["fedper"]["ndcg_at_10"] > 0.4
    assert rows["fedavg"]["hr_at_10"] < 1
    config = compose.load([f"data.path={file}", "data=ratings", "data.time=when", "model=factors"])
    fed = load_federation(config.data, 0)
    assert (fed.num_clients, fed.task, fed.tokens, fed.num_classes) == (8, "ranking", 40, 1)
    one = fed.client(0)
    assert len(one.test) == len(one.valid) == 26  # of 40 things 15 were chosen
    assert int(one.test.y.sum()) == int(one.valid.y.sum()) == 1
    assert len(one.train) == 13 * 5 and int(one.train.y.sum()) == 13
    table = pd.read_csv(file)
    last = table[table.user == "p0"]["item"].iloc[-1]
    assert one.test.x[one.test.y == 1].tolist() == [[last]]


@pytest.mark.parametrize("name", ["ratings.csv", "u.data"])
def test_people_and_things_are_text(tmp_path, name):
    """007 and 7 are two, and so are NA and nan."""
    mark, file = ("\t", tmp_path / name) if name == "u.data" else (",", tmp_path / name)
    rows = [(who, what, 3, t) for who in ("007", "7", "NA") for t, what in enumerate(("01", "1", "10", "2"))]
    rows += [("anna", f"{i}", 3, i) for i in range(20, 24)]
    head = [] if name == "u.data" else ["user,item,rating,timestamp"]
    file.write_text("\n".join(head + [mark.join(map(str, row)) for row in rows]))
    words = ["data=ratings", f"data.path={file}", "model=factors", "data.time=timestamp"]
    fed = load_federation(compose.load(words).data, 0)
    assert (fed.clients, fed.tokens) == (("007", "7", "NA", "anna"), 8)  # things 01, 1, 2, 10, 20 to 23
    assert [int(fed.client(k).test.x[fed.client(k).test.y == 1]) for k in (0, 3)] == [2, 7]


FAMILIES = ["pflego", "fedsoft", "ppfl", "fedem", "federico", "lsgd", "fedproto", "moon", "knnper"]


@pytest.mark.parametrize(
    ("task", "method"),
    [*(("tokens", m) for m in FAMILIES), ("multilabel", "fedem"), ("multilabel", "fedpac")],
)
def test_every_family_trains_or_refuses_by_name(tmp_path, task, method):
    """Nothing crashes, and nothing is nan."""
    data, model = (texts(), LSTM) if task == "tokens" else (labelled(), {"name": "mlp", "hidden": [8]})
    try:
        row = trained(tmp_path / "run", method, data, model=model)
    except ConfigError as error:
        assert any(word in str(error) for word in (method, task, "class labels")), error
        return
    assert math.isfinite(row["loss"]) and math.isfinite(row["perplexity" if task == "tokens" else "label_f1"])


DOUBLE = """
from dataclasses import replace
from fedpers.method import TASKS
usual = TASKS["classification"].losses
def size(y, p):
    return len(y)
Double = replace(TASKS["classification"], losses=lambda z, y: 2 * usual(z, y), metrics=(size,))
"""


def test_a_doubled_loss_is_a_doubled_rate(tmp_path, monkeypatch):
    """No kernel, whose loss is the usual one, takes a model of somebody's own task."""
    (tmp_path / "doubled.py").write_text(DOUBLE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    words = ("data.limit=300", "data.num_clients=3", "data.partition=iid", "model.hidden=[8]")
    for method in ("fedavg", "fedper"):
        own, usual = (
            trained(
                tmp_path / f"{method}{lr}",
                method,
                "digits",
                f"method.local.lr={lr}",
                *words,
                model="mlp",
                **task,
            )
            for lr, task in ((0.05, {"task": "doubled:Double"}), (0.1, {}))
        )
        assert own["accuracy"] == usual["accuracy"] and own["size"] == 20
        assert own["loss"] == pytest.approx(2 * usual["loss"], rel=1e-4), method
    with pytest.raises(ConfigError, match="label_smoothing"):
        trained(tmp_path / "soft", "fedavg", "digits", "method.local.label_smoothing=0.1", model="mlp",
                task="doubled:Double")  # fmt: skip


# ---- mistakes ---------------------------------------------------------------------------------------

DEVICES = ["data=device", "data.input_shape=[4]", "engine=deployment"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["task=tokens", "data=digits"], "task=tokens: is for tokens, and data=digits is for classification"),
        (["task=tokenz"], "task 'tokenz' is unknown; did you mean 'tokens'"),
        (["task=nowhere:Nothing"], "task=nowhere:Nothing: cannot import it"),
        (["task=math:pi"], "task=math:pi: is a float; make a Task"),
        ([*DEVICES, "task=tokens"], "task=tokens: devices train for classification, binary, regression"),
        ([*DEVICES, "task=math:pi"], "task=math:pi: devices train for classification, binary, regression"),
        (["data=ratings"], "data=ratings needs data.path=FILE|no such file"),
        (["metrics=[perplexity]"], "metrics=.perplexity.: a classification task has no such metric"),
    ],
)
def test_mistakes_are_told(words, text):
    with pytest.raises((ConfigError, DataError), match=text):
        assemble(compose.load(words))


def test_models_and_tasks_that_do_not_fit(tmp_path):
    with pytest.raises(ConfigError, match="model=mlp gives one row of outputs a sample"):
        build_model("mlp", input_shape=(8,), num_outputs=5, task="tokens")
    with pytest.raises(DataError, match=r"y must be \[n, labels\] of 0 and 1"):
        Federation.from_arrays([(np.ones((4, 2)), np.full((4, 2), 2))], task="multilabel")
    with pytest.raises(DataError, match=r"y must be \[n, length\] of whole numbers"):
        Federation.from_arrays([(np.ones((4, 2)), np.full((4, 2), 0.5))], task="tokens")
    with pytest.raises(ConfigError, match="task 'ranking' is unknown"):
        Federation.from_arrays([(np.ones((4, 2)), np.ones(4))], task="ranking")


def told(folder: Path) -> Path:
    """A file a client: cycles of five tokens by one, or by two."""
    folder.mkdir()
    for k in range(3):
        run = (np.arange(12)[:, None] + (1 + k % 2) * np.arange(9)) % 5
        np.savez(folder / f"c{k}.npz", x=run[:, :-1], y=run[:, 1:])
    return folder


@pytest.mark.ray
def test_tokens_and_rankings_on_ray_are_those_in_process(tmp_path):
    network = [f"model.{k}={v}" for k, v in SMALL.items() if k != "name"]
    tasks = {
        "tokens": [f"data.path={told(tmp_path / 'texts')}", "data.task=tokens", "data.tokens=true", *network],
        "ranking": [f"data.path={ratings(tmp_path)}", "data.candidates=30", "model.vocabulary=40"],
    }
    of = {"tokens": ("files", SMALL["name"], "perplexity"), "ranking": ("ratings", "factors", "ndcg_at_10")}
    for task, words in tasks.items():
        data, model, score = of[task]
        ours, theirs = (
            trained(
                tmp_path / f"{task}-{engine}",
                "fedper",
                data,
                *words,
                f"model={model}",
                engine=engine,
                rounds=2,
            )
            for engine in ("inprocess", "ray")
        )
        for column in ("loss", "accuracy", score):
            assert theirs[column] == pytest.approx(ours[column], rel=1e-5), (task, column)


def test_predictions_of_tokens_are_refused_as_a_table_and_made_in_python(tmp_path):
    words = [f"data.path={told(tmp_path / 'texts')}", "data.task=tokens", "data.tokens=true"]
    network = {k: v for k, v in SMALL.items() if k != "name"}
    words += [f"model.{k}={v}" for k, v in network.items()]
    trained(tmp_path / "run", "fedper", "files", *words, model="transformer")
    (file,) = export(tmp_path / "run", out=tmp_path / "model", client="0")
    with pytest.raises(ConfigError, match=r"task tokens, whose predictions are no table; .*load_exported"):
        predict(tmp_path / "texts" / "c0.npz", None, None, None, file, None, None)
    found = load_exported(file)(torch.zeros(2, 8))
    assert found.shape == (2, 8, 5) and bool(found.isfinite().all())


def told_once(table, capsys, name, rows, model):
    """The table of predictions, and what is said of the answers."""
    capsys.readouterr()  # what training said
    predict(rows, None, None, None, model, None, table / f"{name}.csv")
    return pd.read_csv(table / f"{name}.csv", dtype={"prediction": str}), capsys.readouterr().err


def test_predictions_of_labels_are_a_column_each(tmp_path, capsys):
    """Two labels: the signs of the inputs, and a model that is that of the data."""
    (tmp_path / "data").mkdir()
    rng = np.random.default_rng(0)
    for k in range(2):
        x = rng.normal(size=(200, 2)).astype("float32")
        np.savez(tmp_path / "data" / f"c{k}.npz", x=x, y=(x > 0).astype(int))
    words = [f"data.path={tmp_path / 'data'}", "data.task=multilabel", "method.local.lr=1.0"]
    trained(tmp_path / "run", "fedavg", "files", *words, model="logistic", rounds=5)
    (file,) = export(tmp_path / "run", out=tmp_path / "model", client="1")
    x = np.array([[5, -5], [5, 5], [-5, -5]], dtype="float32")
    np.savez(tmp_path / "new.npz", x=x, y=np.array([[1, 0], [1, 1], [0, 1]]))  # one of six is wrong
    table, said = told_once(tmp_path, capsys, "labels", tmp_path / "new.npz", file)
    assert list(table) == ["prediction_0", "prediction_1", "p0", "p1"]
    assert table[["prediction_0", "prediction_1"]].to_numpy().tolist() == [[1, 0], [1, 1], [0, 0]]
    assert ((table[["p0", "p1"]].to_numpy() > 0.5) == (x > 0)).all()
    assert said == "83.33% of the labels of 3 rows are right\n"
    for y in ([0, 1, 1], [[1, 2], [0, 0], [0, 0]], [[1, 0, 0]] * 3):
        np.savez(tmp_path / "odd.npz", x=x, y=np.array(y))
        with pytest.raises(DataError, match=r"expected \[n, 2\] of 0 and 1"):
            predict(tmp_path / "odd.npz", None, None, None, file, None, None)


def test_predictions_of_a_ranking_are_places_of_things_by_name(tmp_path, capsys):
    """Who chose even things is told even things first; things go by their names, not their numbers."""
    path = ratings(tmp_path)
    table = pd.read_csv(path)
    table["item"] = "film " + table["item"].astype(str)
    table.to_csv(path, index=False)
    words = [f"data.path={path}", "data.candidates=10", "model.vocabulary=60", "method.local.lr=1.0"]
    trained(tmp_path / "run", "fedper", "ratings", *words, model="factors", rounds=30)
    (file,) = export(tmp_path / "run", out=tmp_path / "model", client="p0")
    new = pd.DataFrame({"note": "x", "item": [f"film {i}" for i in (7, 8, 10, 11, 12, 13)]})
    new.to_csv(tmp_path / "new.csv", index=False)
    found, said = told_once(tmp_path, capsys, "ranks", tmp_path / "new.csv", file)
    assert list(found) == ["rank", "p"] and said == ""
    assert sorted(found["rank"][[1, 2, 4]]) == [1, 2, 3]
    assert (found.sort_values("rank")["p"].diff().dropna() <= 0).all()
    for name, rows, text in (
        ("unknown", pd.DataFrame({"item": ["film 99"]}), r"item 'film 99' is none of the \d+ of training"),
        ("column", pd.DataFrame({"film": [1]}), "has no column 'item'; it has film"),
        ("none", new[:0], "has no rows"),
    ):
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
        with pytest.raises(DataError, match=text):
            predict(tmp_path / f"{name}.csv", None, None, None, file, None, None)
    np.save(tmp_path / "numbers.npy", np.array([[1]]))
    with pytest.raises(DataError, match=r"is no table; give .csv, .tsv, .parquet with the column 'item'"):
        predict(tmp_path / "numbers.npy", None, None, None, file, None, None)
