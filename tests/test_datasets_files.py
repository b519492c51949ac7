"""Sets on disk: counts of the real files, and what happens to missing and damaged ones."""

import io
import json
import os
import pickle
import shutil

import numpy as np
import pytest
import torch
from sklearn.datasets import dump_svmlight_file

from fedpers.core.errors import DataError
from fedpers.datasets import omniglot
from fedpers.datasets.cifar import ArrayUnpickler
from fedpers.datasets.config import DataConfig
from fedpers.datasets.federation import load_federation


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """One cache for this run of the tests, so that it is known to be fresh."""
    base = tmp_path_factory.getbasetemp() / "decoded"
    monkeypatch.setenv("FEDPERS_CACHE", str(base))
    return base


def load(root, **options):
    return load_federation(DataConfig(root=str(root), **options), 0)


def sizes(fed):
    """All training and validation samples, all test samples."""
    train = sum(len(fed.client(k).train) + len(fed.client(k).valid) for k in range(fed.num_clients))
    return train, int(fed.num_test.sum())


def idx(array):
    head = b"\0\0\x08" + bytes([array.ndim]) + np.array(array.shape, dtype=">i4").tobytes()
    return head + array.astype(np.uint8).tobytes()


@pytest.fixture
def tiny(tmp_path):
    """A set in MNIST's place: 60 + 30 images whose pixels are 10 times their class."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, n in (("train", 60), ("t10k", 30)):
        y = np.arange(n) % 10
        x = np.broadcast_to(10 * y[:, None, None], (n, 28, 28))
        (raw / f"{part}-images-idx3-ubyte").write_bytes(idx(x))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(idx(y))
    return tmp_path


TINY = {"name": "mnist", "partition": "iid", "num_clients": 3}


def test_images_and_labels_stay_together(tiny):
    fed = load(tiny, **TINY)
    assert sizes(fed) == (60, 30)
    for k in range(3):
        data = fed.client(k)
        for split in (data.train, data.valid, data.test):
            torch.testing.assert_close(split.x[:, 0, 5, 5], 10 * split.y / 255)


def test_pool_mixes_both_parts(tiny):
    fed = load(tiny, **TINY, pool=True, test_fraction=0.2)
    assert sizes(fed) == (72, 18)
    split = fed.client(1).test
    torch.testing.assert_close(split.x[:, 0, 5, 5], 10 * split.y / 255)


def test_train_only_leaves_the_test_part_out(tiny):
    fed = load(tiny, **TINY, train_only=True, limit=50, test_fraction=0.2)
    train, test = sizes(fed)
    assert train + test == 50 and test == 9  # 17, 17 and 16 samples: 3 tests each


@pytest.mark.parametrize(
    "name", ["mnist", "emnist_letters", "cifar10", "cifar100", "omniglot", "femnist", "libsvm"]
)
def test_a_missing_set_says_how_to_get_it(tmp_path, name):
    with pytest.raises(DataError) as error:
        load(tmp_path, name=name, num_clients=2, partition="iid", file="a9a")
    assert f"fedpers data fetch {name} --root {tmp_path}" in str(error.value)
    assert "FEDPERS_DATA" in str(error.value)


@pytest.mark.parametrize(
    ("keep", "expected", "found"),
    [
        (1000, f"{16 + 60 * 784} bytes", "1000 bytes"),
        (9, "at least 16 bytes", "9 bytes"),
        (2, "an idx file", "begin with"),
    ],
)
def test_a_file_cut_short_is_named_with_sizes(tiny, keep, expected, found):
    path = tiny / "MNIST" / "raw" / "train-images-idx3-ubyte"
    os.truncate(path, keep)
    with pytest.raises(DataError) as error:
        load(tiny, **TINY)
    for part in (str(path), expected, found, f"fedpers data fetch mnist --root {tiny}"):
        assert part in str(error.value)


def test_labels_of_another_set_are_noticed(tiny):
    (tiny / "MNIST" / "raw" / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(59)))
    with pytest.raises(DataError, match="expected 60 labels, found 59"):
        load(tiny, **TINY)


def test_only_arrays_are_unpickled(tmp_path):
    array = {"data": np.arange(5), "labels": [1, 2]}
    again = ArrayUnpickler(io.BytesIO(pickle.dumps(array))).load()
    assert again["data"].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(pickle.UnpicklingError, match="not allowed"):
        ArrayUnpickler(io.BytesIO(pickle.dumps(os.getcwd))).load()


# --- the real files; the numbers are those of the sets' own documentation ------------------------


def real(root, *paths):
    """`root`, or a skip if it lacks one of `paths`."""
    for path in paths:
        if not (root / path).exists():
            pytest.skip(f"{root} has no {path}")
    return root


@pytest.mark.parametrize(
    ("name", "folder", "train", "test", "classes"),
    [
        ("mnist", "MNIST/raw", 60_000, 10_000, 10),
        ("fashion_mnist", "FashionMNIST/raw", 60_000, 10_000, 10),
        ("emnist_letters", "EMNIST/raw/emnist-letters-train-images-idx3-ubyte", 124_800, 20_800, 26),
    ],
)
def test_mnist_family(data_root, name, folder, train, test, classes):
    fed = load(real(data_root, folder), name=name, partition="iid", num_clients=100, valid_fraction=0.0)
    assert (fed.num_train.sum(), fed.num_test.sum()) == (train, test)
    assert fed.num_classes == classes and fed.input_shape == (1, 28, 28)
    per_class = fed.label_counts.sum(axis=0)
    if name == "mnist":
        assert per_class[:3].tolist() == [5923, 6742, 5958]  # the published class sizes
    else:
        assert set(per_class) == {train // classes}


@pytest.mark.parametrize(
    ("name", "mean", "std"), [("mnist", 0.1307, 0.3081), ("fashion_mnist", 0.2860, 0.3530)]
)
def test_published_pixel_statistics(data_root, name, mean, std):
    folder = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}[name]
    fed = load(real(data_root, folder), name=name, partition="iid", num_clients=1, valid_fraction=0.0)
    x = fed.client(0).train.x
    assert float(x.mean()) == pytest.approx(mean, abs=5e-5)
    assert float(x.std()) == pytest.approx(std, abs=5e-5)


def test_letters_are_upright(data_root):
    """An L has its ink on the left and at the bottom; transposed it would be at the top."""
    root = real(data_root, "EMNIST/raw/emnist-letters-train-images-idx3-ubyte")
    fed = load(root, name="emnist_letters", partition="iid", num_clients=10)
    data = fed.client(0).train
    mean = data.x[data.y == 9].mean(dim=0)[0]  # J: hook at the lower left
    assert mean[20:, :14].sum() > mean[:8, :14].sum()
    mean = data.x[data.y == 19].mean(dim=0)[0]  # T: bar above, stem below
    spread = [(row > 0.15).sum() for row in mean]
    assert max(spread[4:13]) > 1.5 * max(spread[18:24])


def test_cifar10_with_one_batch_says_so(data_root):
    root = real(data_root, "cifar-10-batches-py/data_batch_1")
    fed = load(root, name="cifar10", partition="iid", num_clients=10, valid_fraction=0.0)
    if not (root / "cifar-10-batches-py/data_batch_2").exists():
        assert (fed.num_train.sum(), fed.num_test.sum()) == (10_000, 10_000)
        counts = [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981]
        assert fed.label_counts.sum(axis=0).tolist() == counts
        assert "1 of 5 training batches" in fed.notes[0]
    assert fed.client(0).train.x.shape[1:] == (3, 32, 32)


def test_a_damaged_cifar_batch(data_root, tmp_path):
    folder = "cifar-10-batches-py"
    source = real(data_root, folder) / folder
    (tmp_path / folder).mkdir()
    shutil.copy(source / "test_batch", tmp_path / folder)
    with (source / "data_batch_1").open("rb") as file:
        (tmp_path / folder / "data_batch_1").write_bytes(file.read(5000))
    with pytest.raises(DataError, match=r"md5 c99cafc152244af753f735de768cd75f, found .* 5000"):
        load(tmp_path, name="cifar10", num_clients=2)


@pytest.mark.parametrize("split", ["after_rotation", "before_rotation"])
def test_omniglot(data_root, split):
    """50 alphabets, 1,623 characters of 20 drawings; 60 + 20 of a character's 80 rotated copies."""
    fed = load(
        real(data_root, "omniglot-py"),
        name="omniglot",
        partition="natural",
        num_clients=None,
        label_space="local",
        valid_fraction=0.0,
        omniglot_split=split,
    )
    assert (fed.num_clients, fed.num_classes) == (50, 55)
    assert (fed.label_counts > 0).sum() == 1623
    assert set(fed.label_counts[fed.label_counts > 0]) == {60}
    assert fed.num_test.sum() == 1623 * 20
    data = fed.client(0)
    assert data.train.x.shape[1:] == (1, 28, 28) and data.train.x.mean() < 0.3  # ink is 1


def test_omniglot_copies_stay_together(data_root):
    root = real(data_root, "omniglot-py")
    fed = load(
        root,
        name="omniglot",
        partition="natural",
        num_clients=1,
        min_size=1,
        valid_fraction=0.2,
        omniglot_split="before_rotation",
    )
    data = fed.client(0)
    keys = [
        {min(torch.rot90(x, t, dims=(1, 2)).numpy().tobytes() for t in range(4)) for x in s.x}
        for s in (data.train, data.valid, data.test)
    ]
    assert all(keys) and not (keys[0] & keys[1] or keys[0] & keys[2] or keys[1] & keys[2])


def test_femnist_writers(data_root):
    fed = load(
        real(data_root, "femnist"), name="femnist", partition="natural", num_clients=None, valid_fraction=0.0
    )
    assert fed.num_clients == 105
    assert (fed.num_train.sum(), fed.num_test.sum()) == (14_708, 1_685)


def test_leaf_json(data_root):
    fed = load(
        real(data_root, "femnist/leaf_sample"),
        name="femnist",
        file="leaf_sample",
        partition="natural",
        num_clients=None,
    )
    assert fed.num_clients == 5
    assert sorted(fed.num_test.tolist()) == [16, 18, 18, 18, 19]  # LEAF's own num_samples


def leaf(root, train, test):
    """LEAF's json of users: {name: the labels of its samples}; each pixel is (label + 1) / 255."""
    for part, users in (("train", train), ("test", test)):
        data = {u: {"x": [[(c % 254 + 1) / 255] * 784 for c in y], "y": y} for u, y in users.items()}
        shard = root / "femnist" / part / "all_data_0.json"
        shard.parent.mkdir(parents=True, exist_ok=True)
        shard.write_text(json.dumps({"users": list(users), "user_data": data}))
    return root


LEAF = {"name": "femnist", "partition": "natural", "num_clients": None, "valid_fraction": 0.0}


def test_leaf_passes_over_users_without_samples(tmp_path):
    fed = load(leaf(tmp_path, {"a": [3, 61, 3], "b": [], "c": [5]}, {"a": [3], "b": [], "c": []}), **LEAF)
    assert (fed.num_clients, fed.num_train.tolist(), fed.num_test.tolist()) == (1, [3], [1])
    assert sorted(fed.client(0).train.y.tolist()) == [3, 3, 61]
    torch.testing.assert_close(fed.client(0).test.x, torch.full((1, 1, 28, 28), 4 / 255))
    assert any("1 in the training part, 2 in the test part" in note for note in fed.notes)


def test_leaf_split_by_user_is_told_and_can_be_pooled(tmp_path):
    leaf(tmp_path, {"a": [1] * 10, "b": [2] * 10}, {"c": [3] * 10})
    with pytest.raises(DataError, match=r"2 in the training part only, 1 in the test.*data.pool=true"):
        load(tmp_path, **LEAF)
    fed = load(tmp_path, **LEAF, pool=True, test_fraction=0.2)
    assert (fed.num_train.tolist(), fed.num_test.tolist()) == ([8, 8, 8], [2, 2, 2])


@pytest.mark.parametrize("label", [62, -1, 3.5])
def test_leaf_names_a_label_that_is_no_class(tmp_path, label):
    leaf(tmp_path, {"a": [1, 2], "f9": [1, label]}, {"a": [1], "f9": [1]})
    with pytest.raises(DataError, match=rf"all_data_0.json, user 'f9': has the label {label}; .*0 to 61"):
        load(tmp_path, **LEAF)


@pytest.mark.parametrize(
    ("file", "samples", "features", "positive", "tests"),
    [
        ("a1a", 1605, 123, 395, 0),
        ("a9a", 32_561, 123, 7841, 16_281),
        ("mushrooms", 8124, 112, 4208, 0),
        ("phishing", 11_055, 68, 6157, 0),
    ],
)
def test_libsvm(data_root, file, samples, features, positive, tests):
    fed = load(
        real(data_root, f"libsvm/{file}"),
        name="libsvm",
        file=file,
        partition="iid",
        num_clients=1,
        valid_fraction=0.0,
    )
    assert (fed.task, fed.num_classes, fed.input_shape) == ("binary", 1, (features,))
    total = sizes(fed) if tests else (sum(sizes(fed)), 0)
    assert total == (samples, tests)
    data = fed.client(0)
    assert int(data.train.y.sum()) + (0 if tests else int(data.test.y.sum())) == positive


@pytest.mark.parametrize(
    ("train", "test", "columns"),
    [  # one decision for both files; a part without entries decides nothing; all samples of a row are alike
        ("+1 1:5 3:7", "-1 1:5", [5, 0, 7]),
        ("+1 0:5 2:7", "-1 0:5", [5, 0, 7]),
        ("+1 1:5 3:7", "-1 0:5", [0, 5, 0, 7]),
        ("+1 0:5 2:7", "-1 3:5", [5, 0, 7, 0]),
        ("+1 1:5 3:7", "-1", [5, 0, 7]),
    ],
)
def test_libsvm_counts_features_from_0_or_1(tmp_path, train, test, columns):
    (tmp_path / "libsvm").mkdir()
    (tmp_path / "libsvm" / "own").write_text(f"{train}\n" * 4 + f"{train.replace('+1', '-1')}\n" * 4)
    (tmp_path / "libsvm" / "own.t").write_text(f"{test}\n" * 2)
    fed = load(tmp_path, name="libsvm", file="own", partition="iid", num_clients=1, valid_fraction=0.0)
    assert fed.client(0).train.x.tolist() == [columns] * 8
    assert fed.client(0).test.x.shape == (2, len(columns))


def test_libsvm_as_scikit_learn_writes_it(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32), np.arange(30) % 3
    (tmp_path / "libsvm").mkdir()
    dump_svmlight_file(x, y, str(tmp_path / "libsvm" / "own"))
    fed = load(tmp_path, name="libsvm", file="own", partition="iid", num_clients=1, valid_fraction=0.0)
    data = fed.client(0)
    read = torch.cat([data.train.x, data.test.x]).numpy()
    np.testing.assert_allclose(read[np.argsort(read[:, 0])], x[np.argsort(x[:, 0])], rtol=1e-6)


def test_libsvm_with_more_features_than_the_set_has(tmp_path):
    (tmp_path / "libsvm").mkdir()
    (tmp_path / "libsvm" / "ijcnn1").write_text("+1 1:1\n-1 23:1\n")
    with pytest.raises(DataError, match="found 23 features, the set has 22"):
        load(tmp_path, name="libsvm", file="ijcnn1", num_clients=1)


def test_libsvm_lines_that_make_no_sense(tmp_path):
    (tmp_path / "libsvm").mkdir()
    path = tmp_path / "libsvm" / "odd"
    path.write_text("+1 1:0.5\n-1 what\n")
    with pytest.raises(DataError, match="odd is damaged"):
        load(tmp_path, name="libsvm", file="odd", num_clients=1)
    path.write_text("1 1:0.5\n1 2:1\n")
    with pytest.raises(DataError, match="one label 1"):
        load(tmp_path, name="libsvm", file="odd", num_clients=1)


# --- the papers' set-ups -------------------------------------------------------------------------


def test_ppfl_mnist(data_root):
    """70,000 images in 4 groups of 3, 3, 2, 2 digits, 25 clients each, 80/20 in each client."""
    fed = load(
        real(data_root, "MNIST/raw"),
        name="mnist",
        partition="groups",
        num_groups=4,
        num_clients=100,
        pool=True,
        test_fraction=0.2,
        valid_fraction=0.0,
    )
    assert fed.num_train.sum() + fed.num_test.sum() == 70_000
    assert (fed.num_test == (fed.num_train + fed.num_test) // 5).all()
    kinds = np.unique(fed.label_counts > 0, axis=0)
    assert sorted(kinds.sum(axis=1)) == [2, 2, 3, 3] and (kinds.sum(axis=0) == 1).all()


def test_federico_cifar10(data_root):
    """5,000 training images, disjoint label groups, 8 clients, 80/20 in each client."""
    root = real(data_root, "cifar-10-batches-py/data_batch_1")
    fed = load(
        root,
        name="cifar10",
        partition="groups",
        num_groups=3,
        num_clients=8,
        limit=5000,
        random_groups=True,
        train_only=True,
        test_fraction=0.2,
        valid_fraction=0.0,
    )
    assert fed.num_train.sum() + fed.num_test.sum() == 5000
    assert set(fed.truth["group"]) == {0, 1, 2}


def test_unified_mnist(data_root):
    """20 devices, 100 training and 300 test samples of K = 2 digits each, rows of unit norm."""
    fed = load(
        real(data_root, "MNIST/raw"),
        name="mnist",
        partition="sampled",
        num_clients=20,
        classes_per_client=2,
        train_per_client=100,
        test_per_client=300,
        valid_fraction=0.0,
        standardise=True,
        unit_norm=True,
    )
    assert set(fed.num_train) == {100} and set(fed.num_test) == {300}
    assert ((fed.label_counts > 0).sum(axis=1) <= 2).all()
    norms = fed.client(7).test.x.flatten(1).norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(300))


def test_fedsoft_letters(data_root):
    """Lower and upper case, 0 and 90 degrees: four sources of 26 classes."""
    fed = load(
        real(data_root, "femnist"),
        name="femnist",
        partition="mixture",
        num_clients=10,
        sources=["lower@0", "upper@0", "lower@90", "upper@90"],
        mixture="random",
        holdout=50,
    )
    assert fed.num_classes == 26 and fed.label_counts.shape == (10, 26)
    assert list(fed.holdout) == ["source0", "source1", "source2", "source3"]
    assert all(int(d.y.max()) < 26 and len(d) == 50 for d in fed.holdout.values())


def test_omniglot_drawings_are_reduced_without_antialiasing():
    """A result lies between four neighbours of (i + 1/2) 105/28 - 1/2; all other pixels are left out."""
    drawing = np.random.default_rng(0).integers(0, 256, (105, 105)).astype(np.uint8)
    at = (np.arange(28) + 0.5) * 105 / 28 - 0.5
    low, share = np.floor(at).astype(int), at - np.floor(at)
    ink = 255.0 - drawing
    rows = ink[low] * (1 - share)[:, None] + ink[low + 1] * share[:, None]
    expected = rows[:, low] * (1 - share) + rows[:, low + 1] * share
    assert np.abs(omniglot.reduced(drawing) - expected).max() <= 0.5 + 1e-3
