"""Sets whose clients are people, hospitals or domains, on small files of exactly the published layout."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from fedpers.app.run import execute
from fedpers.config import compose
from fedpers.core.errors import DataError
from fedpers.datasets.fetch import resources
from fedpers.datasets.natural import HOSPITALS


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("FEDPERS_CACHE", str(tmp_path_factory.mktemp("cache")))


def federation(root, name, *overrides):
    """What `fedpers run data=NAME` trains on."""
    from fedpers.datasets.federation import load_federation

    cfg = compose.load([f"data={name}", f"data.root={root}", *overrides])
    return load_federation(cfg.data, cfg.seed, torch.float64)


def runs(root, name, out, *overrides):
    """Two rounds from the command line's words."""
    cfg = compose.load([f"data={name}", f"data.root={root}", "rounds=2", *overrides])
    return execute(cfg, out)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="latin-1")


# ---- heart disease ----------------------------------------------------------------------------------


def patients(root, count=30):
    """Lines as UCI has them, 63.0,1.0,1.0,145.0,...; each tenth lacks a cholesterol."""
    rng, rows = np.random.default_rng(0), {}
    for k, name in enumerate(HOSPITALS):
        rows[name] = []
        for i in range(count + k):
            row = [40 + i, i % 2, 1 + i % 4, 100 + k, "?" if i % 10 == 9 else 200 + i, 0, i % 3,
                   rng.integers(90, 180), i % 2, 1.5, "?", "?", "?", i % 5]  # fmt: skip
            rows[name].append(row)
        text = "\n".join(",".join(map(str, row)) for row in rows[name])
        write(root / "heart_disease" / f"processed.{name}.data", text + "\n")
    return rows


def test_heart_disease_has_flambys_rows_columns_and_test_patients(tmp_path):
    from sklearn.model_selection import train_test_split

    rows = patients(tmp_path)
    fed = federation(tmp_path, "heart_disease", "data.standardise=false", "data.valid_fraction=0")
    assert (fed.clients, fed.num_classes, fed.task, fed.input_shape) == (HOSPITALS, 1, "binary", (13,))
    for k, name in enumerate(HOSPITALS):
        kept = [row for row in rows[name] if row[4] != "?"]
        y = np.array([int(row[13] > 0) for row in kept])
        _, test = train_test_split(np.arange(len(y)), test_size=0.34, random_state=43, stratify=y)
        assert (fed.num_train[k], fed.num_test[k]) == (len(y) - len(test), len(test))
        expected = sorted([*row[:2], *row[3:6], *row[7:10], *(row[2] == np.array([2, 3, 4])),
                           *(row[6] == np.array([1, 2]))] for row in (kept[i] for i in test))  # fmt: skip
        found = fed.client(k).test
        np.testing.assert_allclose(sorted(found.x.tolist()), expected)
        assert found.y.sum() == y[test].sum()


def test_heart_disease_runs_and_says_how_to_get_it(tmp_path):
    with pytest.raises(DataError, match="fedpers data fetch heart_disease"):
        federation(tmp_path, "heart_disease")
    patients(tmp_path)
    summary = runs(tmp_path, "heart_disease", tmp_path / "out", "model=logistic", "method=fedavg")
    assert summary["rounds"] == 2
    assert len(resources("heart_disease", tmp_path)) == 4
    write(tmp_path / "heart_disease" / "processed.va.data", "63.0,1.0\n60.0,1.0\n")
    with pytest.raises(DataError, match=r"processed.va.data is damaged: expected 14 columns, found 2"):
        federation(tmp_path, "heart_disease")


# ---- UCI HAR ----------------------------------------------------------------------------------------


def sensors(root):
    """Persons 1 and 3 in the training part, 2 in the test part; feature 0 is the person, 1 the activity."""
    for part, people in (("train", [1, 3, 1, 3] * 6), ("test", [2] * 12)):
        activity = [1 + i % 6 for i in range(len(people))]
        x = np.zeros((len(people), 561))
        x[:, 0], x[:, 1] = np.array(people) / 10, np.array(activity) / 10
        folder = root / "UCI HAR Dataset" / part
        write(folder / f"X_{part}.txt", "\n".join("  " + " ".join(f"{v: .7e}" for v in row) for row in x))
        write(folder / f"y_{part}.txt", "\n".join(map(str, activity)) + "\n")
        write(folder / f"subject_{part}.txt", "\n".join(map(str, people)) + "\n")


def test_har_is_split_by_person_over_both_parts(tmp_path):
    sensors(tmp_path)
    fed = federation(tmp_path, "uci_har")
    assert (fed.clients, fed.num_classes, fed.input_shape) == (("1", "2", "3"), 6, (561,))
    for k in range(3):
        data = fed.client(k)
        for part in (data.train, data.valid, data.test):
            torch.testing.assert_close(part.x[:, 0] * 10, torch.full((len(part),), k + 1.0).double())
            torch.testing.assert_close(part.x[:, 1] * 10, part.y.double() + 1)
        assert len(data.train) + len(data.valid) + len(data.test) == 12
    assert runs(tmp_path, "uci_har", tmp_path / "out", "model=logistic", "method=local")["rounds"] == 2
    (tmp_path / "UCI HAR Dataset" / "test" / "y_test.txt").unlink()
    with pytest.raises(DataError, match=r"y_test.txt is missing; get UCI HAR Dataset.zip"):
        federation(tmp_path, "uci_har")


# ---- MovieLens --------------------------------------------------------------------------------------


def ratings(root):
    """User u rates film f with 1 + (u + f) % 5; film f is of genre f."""
    films = [f"{f}|Título {f} (1995)|01-Jan-1995||http://x|" + "|".join(str(int(g == f)) for g in range(19))
             for f in range(1, 11)]  # fmt: skip
    rows = [f"{u}\t{f}\t{1 + (u + f) % 5}\t88125094{f}" for u in (7, 12, 100) for f in range(1, 11)]
    write(root / "ml-100k" / "u.item", "\n".join(films) + "\n")
    write(root / "ml-100k" / "u.data", "\n".join(rows) + "\n")


def test_movielens_has_users_genres_and_ratings(tmp_path):
    ratings(tmp_path)
    fed = federation(tmp_path, "movielens")
    assert (fed.clients, fed.task, fed.input_shape) == (("7", "12", "100"), "regression", (19,))
    for k, user in enumerate((7, 12, 100)):
        train = fed.client(k).train
        film = train.x.argmax(1)
        assert torch.equal(train.x, torch.eye(19).double()[film])
        assert torch.equal(train.y, (1 + (user + film) % 5).double()[:, None])
    assert runs(tmp_path, "movielens", tmp_path / "out", "model=linear", "method=ditto")["rounds"] == 2
    write(tmp_path / "ml-100k" / "u.data", "1\t99\t3\t1\n")
    with pytest.raises(DataError, match=r"rates the film 99, which is not in u\.item"):
        federation(tmp_path, "movielens")


# ---- domains ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "file"), [("office_caltech10", None), ("digits_five", None),
                                            ("office_caltech10", "PACS")])  # fmt: skip
def test_domains_are_clients(tmp_path, name, file):
    domains = {"amazon": 40, "dslr": 200}
    for domain, grey in domains.items():
        for c, kind in enumerate(("bike", "mug")):
            for i in range(5 + c):
                path = tmp_path / (file or name) / domain / kind / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (40 + i, 30), (grey, 0, 0)).save(path)
    more = ["data.image_size=[8,6]", *([f"data.file={file}"] if file else [])]
    fed = federation(tmp_path, name, *more)
    assert (fed.clients, fed.num_classes, fed.input_shape) == (tuple(domains), 2, (3, 8, 6))
    for k, grey in enumerate(domains.values()):
        torch.testing.assert_close(fed.client(k).train.x[:, 0].mean(), torch.tensor(grey / 255).double())
    with pytest.raises(DataError, match=f"data set '{name}'.* as DOMAIN/CLASS/image"):
        federation(tmp_path / "nowhere", name)
    assert runs(tmp_path, name, tmp_path / "out", "model=mlp", *more)["rounds"] == 2


def test_a_class_under_two_names_is_refused(tmp_path):
    """Caltech-256 has `laptop` where Office-31 has `laptop_computer`: two classes instead of one."""
    for domain, kinds in {"amazon": ("mug", "laptop_computer"), "caltech": ("mug", "laptop")}.items():
        for kind in kinds:
            path = tmp_path / "office_caltech10" / domain / kind / "1.png"
            path.parent.mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(path)
    said = "'amazon' has no class 'laptop'; it has laptop_computer, which others lack"
    with pytest.raises(DataError, match=said):
        federation(tmp_path, "office_caltech10", "data.image_size=[8,8]")


# ---- LEAF -------------------------------------------------------------------------------------------


def leaf(root, name, train, test):
    """{"users", "num_samples", "user_data"} as LEAF writes it; a training shard for each user."""
    shards = [("train", f"s{i}", {u: d}) for i, (u, d) in enumerate(train.items())]
    for part, stem, users in (*shards, ("test", "s", test)):
        sizes = [len(d["y"]) for d in users.values()]
        text = {"users": list(users), "num_samples": sizes, "user_data": users}
        path = root / name / part / f"all_data_{stem}_niid_0_keep_0_{part}_9.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(text))


def test_leaf_synthetic(tmp_path):
    train = {u: {"x": [[float(k), i] for i in range(6)], "y": [i % 3 for i in range(6)]}
             for k, u in enumerate("ab")}  # fmt: skip
    leaf(tmp_path, "leaf_synthetic", train, train)
    fed = federation(tmp_path, "leaf_synthetic", "data.valid_fraction=0")
    assert (fed.clients, fed.num_classes, fed.num_train.tolist()) == (("a", "b"), 3, [6, 6])
    assert sorted(fed.client(1).train.x.tolist()) == train["b"]["x"]
    assert runs(tmp_path, "leaf_synthetic", tmp_path / "out", "model=logistic")["rounds"] == 2
    train["b"]["x"][2] = [1.0]
    leaf(tmp_path, "leaf_synthetic", train, train)
    with pytest.raises(DataError, match="expected x of numbers, as many a sample"):
        federation(tmp_path, "leaf_synthetic")


def test_celeba_reads_the_images_that_leaf_names(tmp_path):
    images = tmp_path / "celeba" / "raw" / "img_align_celeba"
    images.mkdir(parents=True)
    eight = range(8)
    users = {u: {"x": [f"{u}{i:05}.jpg" for i in eight], "y": [i % 2 for i in eight]} for u in "12"}
    for user in users.values():
        for name, y in zip(user["x"], user["y"], strict=True):
            Image.new("RGB", (178, 218), (255 * y, 0, 0)).save(images / name)
    leaf(tmp_path, "celeba", users, users)
    fed = federation(tmp_path, "celeba", "data.num_clients=null")
    assert (fed.clients, fed.num_classes, fed.input_shape) == (("1", "2"), 2, (3, 84, 84))
    train = fed.client(0).train
    torch.testing.assert_close(train.x[:, 0].mean((1, 2)), train.y.double(), atol=0.02, rtol=0)
    (images / "100003.jpg").unlink()
    with pytest.raises(DataError, match=r"100003.jpg is missing; put CelebA's aligned images"):
        federation(tmp_path, "celeba", "data.num_clients=null")


def test_sent140_numbers_the_words_of_the_training_part(tmp_path):
    """Words as LEAF splits them; the rarest are one number, and so is the end."""
    tweet = lambda text: ["146", "Mon Apr 06", "NO_QUERY", "me", text, "training"]  # noqa: E731
    two = [tweet("good good day!"), tweet("bad day")]
    users = {u: {"x": two * 4, "y": [1, 0] * 4} for u in ("me", "you")}
    test = {"me": {"x": [tweet("good night")], "y": [1]}, "you": {"x": [tweet("day " * 40)], "y": [0]}}
    leaf(tmp_path, "sent140", users, test)
    fed = federation(tmp_path, "sent140", "data.num_clients=null", "data.valid_fraction=0")
    # "day" and "good" are as frequent, and so are "!" and "bad": then letters decide
    number = {"day": 0, "good": 1, "!": 2, "bad": 3}
    assert (fed.tokens, fed.num_classes, fed.input_shape) == (5, 2, (25,))
    for row, y in zip(fed.client(0).train.x.tolist(), fed.client(0).train.y.tolist(), strict=True):
        words = ["good", "good", "day", "!"] if y else ["bad", "day"]
        assert row == [*(number[w] for w in words), *[4] * (25 - len(words))]
    assert fed.client(0).test.x.tolist() == [[1, 4] + [4] * 23]
    assert fed.client(1).test.x.tolist() == [[0] * 25]
    assert runs(tmp_path, "sent140", tmp_path / "out", "model=lstm", "data.num_clients=2")["rounds"] == 2


def test_reddit_predicts_what_follows_ten_words(tmp_path):
    words = ["<BOS>", *"abcdefghi"]
    whole = {"target_tokens": [[*"abcdefghi", "j"], [*"klmnopqr", "<EOS>", "<PAD>"]], "count_tokens": [],
             "subreddit": "s", "created_utc": 1}  # fmt: skip
    users = {u: {"x": [[words, [*"jklmnopqr", "<EOS>"]]] * 5, "y": [whole] * 5} for u in ("me", "you")}
    leaf(tmp_path, "reddit", users, users)
    fed = federation(tmp_path, "reddit", "data.num_clients=null", "data.valid_fraction=0")
    assert fed.num_train.tolist() == [5, 5]  # the second run ends in padding
    # ten words, all as frequent: numbered by their letters, "<BOS>" first; j is no word of any x
    assert fed.client(0).train.x.tolist() == [list(range(10))] * 5
    assert fed.client(0).train.y.tolist() == [10] * 5
    assert (fed.tokens, fed.num_classes) == (11, 11)


@pytest.mark.parametrize("name", ["leaf_synthetic", "celeba", "sent140", "reddit"])
def test_leaf_that_is_missing_or_damaged_is_named(tmp_path, name):
    with pytest.raises(DataError, match=rf"data set '{name}': .*train is missing; make it with LEAF"):
        federation(tmp_path, name)
    write(tmp_path / name / "train" / "a.json", '{"user_data": {"u": {"x": [1, 2], "y": [1]}}}')
    write(tmp_path / name / "test" / "a.json", '{"user_data": {"u": {"x": [], "y": []}}}')
    with pytest.raises(DataError, match=r"a.json is damaged|no user has a sample"):
        federation(tmp_path, name)


# ---- TensorFlow Federated ---------------------------------------------------------------------------


def hdf5(path, clients):
    h5py = pytest.importorskip("h5py")
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, fields in clients.items():
            for field, values in fields.items():
                file.create_dataset(f"examples/{name}/{field}", data=values)


def writers(count):
    x = lambda k: np.full((count, 28, 28), (k + 1) / 255, dtype=np.float32)  # noqa: E731
    return {f"f000{k}_14": {"pixels": x(k), "label": np.arange(count, dtype=np.int32) + k} for k in range(3)}


def test_tff_emnist(tmp_path):
    for part, count in (("train", 8), ("test", 4)):
        hdf5(tmp_path / "tff" / f"fed_emnist_{part}.h5", writers(count))
    fed = federation(tmp_path, "tff_emnist", "data.num_clients=null", "data.normalise=false")
    assert fed.clients == ("f0000_14", "f0001_14", "f0002_14")
    assert (fed.num_classes, fed.input_shape, fed.num_test.tolist()) == (62, (1, 28, 28), [4, 4, 4])
    test = fed.client(2).test
    torch.testing.assert_close(test.x, torch.full((4, 1, 28, 28), 3 / 255).double())
    assert sorted(test.y.tolist()) == [2, 3, 4, 5]
    more = ["data.num_clients=3", "model=mlp"]
    assert runs(tmp_path, "tff_emnist", tmp_path / "out", *more)["rounds"] == 2
    hdf5(tmp_path / "tff" / "fed_emnist_test.h5", {"f": {"pixels": np.zeros((2, 28, 28)), "label": [1, 62]}})
    with pytest.raises(DataError, match=r"client f has pixels .* below 62"):
        federation(tmp_path, "tff_emnist", "data.num_clients=null")
    hdf5(tmp_path / "tff" / "fed_emnist_test.h5", {"f": {"label": [1, 2]}})
    with pytest.raises(DataError, match=r"fed_emnist_test.h5 is damaged: expected examples/CLIENT/pixels"):
        federation(tmp_path, "tff_emnist", "data.num_clients=null")


def test_tff_shakespeare_is_leafs_alphabet(tmp_path):
    from fedpers.datasets.shakespeare import ALPHABET

    for part in ("train", "test"):
        lines = [b"x" * 60, "y\u00e9".encode() * 30 + b"z" * 40]
        few = {"A_HAL": {"snippets": lines}, "B_BOY": {"snippets": [b"no"]}}
        hdf5(tmp_path / "tff" / f"shakespeare_{part}.h5", few)
    more = ["data.num_clients=null", "data.stride=1", "data.min_size=1", "data.valid_fraction=0"]
    fed = federation(tmp_path, "tff_shakespeare", *more)
    text = "x" * 60 + "\n" + "y\u00e9" * 30 + "z" * 40
    assert (fed.clients, fed.tokens, fed.num_test.tolist()) == (("A_HAL",), 80, [len(text) - 80])
    number = {c: i for i, c in enumerate(ALPHABET)}
    first = [number.get(c, 79) for c in text[:80]]
    assert first in fed.client(0).test.x.tolist()


def test_tff_does_not_read_what_lies_in_other_files(tmp_path):
    h5py = pytest.importorskip("h5py")
    for part in ("train", "test"):
        hdf5(tmp_path / "tff" / f"fed_emnist_{part}.h5", writers(4))
    hdf5(tmp_path / "other.h5", writers(4))
    with h5py.File(tmp_path / "tff" / "fed_emnist_train.h5", "a") as file:
        file["examples/link"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/examples/f0000_14")
    with pytest.raises(DataError, match="lies in another file"):
        federation(tmp_path, "tff_emnist", "data.num_clients=null")
