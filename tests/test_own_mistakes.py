"""Mistakes in own data and own models: one message each, that names the thing and says what to do."""

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import fedpers
from fedpers.app.build import assemble
from fedpers.config import compose
from fedpers.core.errors import FedpersError

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(RNG.normal(size=(12, 2)), columns=["a", "b"]).assign(label=[0, 1] * 6)


def refused(*overrides):
    """The one message of a run that must not start."""
    with pytest.raises(FedpersError) as caught:
        assemble(compose.load(["method=fedavg", "device=cpu", *map(str, overrides)]))
    text = str(caught.value)
    assert "\n" not in text, text
    return text


def put(folder, **frames):
    for name, frame in frames.items():
        frame.to_csv(folder / f"{name}.csv", index=False)


def empty(folder):
    return []


def no_path(folder):
    return ["data.path=" + str(folder / "nothing")]


def no_target(folder):
    put(folder, anna=FRAME.rename(columns={"label": "y"}))


def words(folder):
    put(folder, anna=FRAME.assign(colour="red"))


def a_hole(folder):
    frame = FRAME.copy()
    frame.loc[4, "b"] = np.nan
    put(folder, anna=FRAME, ben=frame)


def no_target_in_a_row(folder):
    put(folder, anna=FRAME.assign(label=["x", None, "y"] * 4))


def infinite(folder):
    put(folder, anna=FRAME.assign(b=[np.inf if i in (4, 7) else i for i in range(len(FRAME))]))


def other_columns(folder):
    put(folder, anna=FRAME, ben=FRAME.rename(columns={"b": "c"}))


def other_shapes(folder):
    np.savez(folder / "anna.npz", x=np.zeros((4, 2)), y=[0, 1, 0, 1])
    np.savez(folder / "ben.npz", x=np.zeros((4, 3)), y=[0, 1, 0, 1])


def other_lengths(folder):
    np.savez(folder / "anna.npz", x=np.zeros((4, 2)), y=[0, 1, 0])


def one_hot(folder):
    np.savez(folder / "anna.npz", x=np.zeros((4, 2)), y=np.eye(4))


def half_text(folder):
    put(folder, anna=FRAME, ben=FRAME.assign(label="cat"))


def values_as_classes(folder):
    put(folder, anna=FRAME.assign(label=RNG.normal(size=12)))


def words_as_values(folder):
    put(folder, anna=FRAME.assign(label=["cat", "dog"] * 6))
    return ["data.task=regression", "model=linear"]


def one_class(folder):
    put(folder, anna=FRAME.assign(label=1))


def row_numbers(folder):
    put(folder, anna=FRAME.assign(label=range(12)), ben=FRAME.assign(label=range(12, 24)))


def three_for_binary(folder):
    put(folder, anna=FRAME.assign(label=[0, 1, 2] * 4))
    return ["data.task=binary"]


def one_sample(folder):
    put(folder, anna=FRAME, ben=FRAME[:1])


def one_cut_one_not(folder):
    put(folder, ben=FRAME)
    (folder / "anna").mkdir()
    put(folder / "anna", train=FRAME, test=FRAME)


def no_test(folder):
    (folder / "anna").mkdir()
    put(folder / "anna", train=FRAME)


def twice(folder):
    put(folder, anna=FRAME)
    np.savez(folder / "anna.npz", x=np.zeros((4, 2)), y=[0, 1, 0, 1])


def nobody(folder):
    put(folder, all=FRAME)
    return [f"data.path={folder / 'all.csv'}"]


def damaged(folder):
    (folder / "anna.npz").write_bytes(b"PK no zip")


def ragged(folder):
    (folder / "anna.csv").write_text("a,b,label\n1,2,0\n1,2\n")


def same_names(folder):
    (folder / "anna.csv").write_text("a,a,label\n1,2,0\n1,2,1\n")


def picture(folder, *place, size=(4, 4)):
    path = folder.joinpath(*place)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size).save(path)


def sizes_of_images(folder):
    picture(folder, "anna", "cat", "1.png")
    picture(folder, "anna", "dog", "1.png", size=(5, 4))


def no_image(folder):
    picture(folder, "anna", "cat", "1.png")
    (folder / "anna" / "cat" / "2.png").write_text("no image")


def depths(folder):
    picture(folder, "anna", "cat", "1.png")
    picture(folder, "cat", "1.png")


def no_tokens(folder):
    put(folder, anna=FRAME)
    return ["data.tokens=true", "model=lstm"]


def classes_of_values(folder):
    put(folder, anna=FRAME.assign(label=RNG.normal(size=12)))
    return ["data.task=regression", "model=linear", "data.partition=classes", "data.num_clients=2"]


DATA = [
    (empty, ["data.path", "no images", "docs/own_data.md"]),
    (no_path, ["nothing", "no such file", "data.path=..."]),
    (no_target, ["anna.csv", "no target column 'label'", "a, b, y", "data.target="]),
    (words, ["anna.csv", "colour", "row 1", "get_dummies"]),
    (a_hole, ["ben.csv", "1 of 12 rows", "row 5", "'b'", "data.missing=drop"]),
    (no_target_in_a_row, ["anna.csv", "4 of 12 rows", "row 2 of these, its target", "data.missing=drop"]),
    (infinite, ["anna.csv", "infinite numbers (the first is row 5 of these, column 'b')"]),
    (other_columns, ["ben.csv", "anna.csv", "b, c"]),
    (other_shapes, ["ben.npz", "(3,)", "(2,)"]),
    (other_lengths, ["anna.npz", "(4, 2)", "(3,)", "one y for each row"]),
    (one_hot, ["(4, 4)", "argmax"]),
    (half_text, ["numbers for some clients and text for others"]),
    (values_as_classes, ["is no class", "data.task=regression"]),
    (words_as_values, ["'cat'", "data.task=classification"]),
    (one_class, ["every target is 1", "two classes"]),
    (row_numbers, ["24 different values in 24 rows", "data.target"]),
    (three_for_binary, ["3 classes", "data.task=classification"]),
    (one_sample, ["'ben'", "0 training", "data.min_size"]),
    (one_cut_one_not, ["anna", "ben.csv", "cut both or none"]),
    (no_test, ["anna", "has train", "train and test"]),
    (twice, ["anna.npz", "anna.csv", "keep one"]),
    (nobody, ["no column 'client'", "data.client=", "data.partition=iid"]),
    (damaged, ["anna.npz", "cannot be read"]),
    (ragged, ["anna.csv", "fields and the first line"]),
    (same_names, ["anna.csv", "two columns are called 'a'"]),
    (sizes_of_images, ["1.png", "5x4", "4x4", "data.image_size"]),
    (no_image, ["2.png", "no image"]),
    (depths, ["different depths"]),
    (no_tokens, ["data.tokens=true", "whole numbers"]),
    (classes_of_values, ["data.partition=classes", "use iid"]),
]


@pytest.mark.parametrize("make, parts", DATA, ids=[make.__name__ for make, _ in DATA])
def test_a_mistake_in_own_data_is_one_message(tmp_path, make, parts):
    extra = make(tmp_path) or []
    text = refused("data=files", f"data.path={tmp_path}", *extra)
    assert all(part in text for part in parts), text


@pytest.mark.parametrize(
    "overrides, parts",
    [
        (["data.missing=mean"], ["data.missing 'mean'", "drop, refuse"]),
        (["data.image_size=[4,4,4]"], ["data.image_size", "[height, width]"]),
        (["data.tokens=true", "data.standardise=true"], ["tokens are no measurements"]),
        (["data.features=[a]"], ["data.features", "huggingface would use it"]),
        (["data.options={a:1}"], ["data.options", "huggingface would use it"]),
    ],
)
def test_a_mistake_in_the_keys_of_own_data(overrides, parts):
    text = refused("data=files", *overrides)
    assert all(part in text for part in parts), text


# ---- models -------------------------------------------------------------------------------------

MODELS = [
    ([], ["model.path=package.module:Net"]),
    (["model.path=Net"], ["model.path=Net", "package.module:Net"]),
    (["model.path=no_such_nets:Net"], ["there is no module no_such_nets", "nor installed"]),
    (["model.path=tests.own_nets:Nett"], ["has no Nett"]),
    (["model.path=tests.own_nets:not_a_module"], ["gives a int", "torch.nn.Module"]),
    (["model.path=tests.own_nets:Broken"], ["RuntimeError: no such layer", "model.kwargs"]),
    (["model.path=tests.own_nets:CNN", "model.kwargs={depth:3}"], ["depth", "model.kwargs"]),
    (["model.path=tests.own_nets:CNN", "model.kwargs=3"], ["model.kwargs is 3", "{name: value"]),
    (["model.path=tests.own_nets:CNN", "model.head=fcc"], ["model.head 'fcc'", "did you mean 'fc'"]),
    (["model.path=tests.own_nets:CNN", "model.head=conv"], ["a Conv2d", "nn.Linear"]),
    (["model.path=tests.own_nets:CNN", "model.kwargs={num_classes:4}"], ["4 outputs", "needs 3"]),
    (["model.path=tests.own_nets:Plain", "model.head=hidden"], ["'hidden' has 8 outputs", "needs 3"]),
    (["model.path=tests.own_nets:Softmax"], ["'out'", "logits without softmax"]),
    (["model.path=tests.own_nets:Tuple"], ["gives tuple", "(2, outputs)"]),
    (["model.path=tests.own_nets:Counting"], ["buffer 'seen'"]),
    (["model.path=tests.own_nets:Fading"], ["each pass changes its 'step'"]),
    (["model.path=tests.own_nets:Remembering"], ["asked again"]),
    (["model.path=tests.own_nets:Widest"], ["asked again"]),
    (["model.path=tests.own_nets:ByClass"], ["changes its 'ByClass.calls'"]),
    (["model.path=tests.own_nets:NumpyNoise"], ["draws random numbers of its own"]),
    (["model.path=tests.own_nets:RareDraw"], ["draws from random,"]),
    (["model.path=tests.own_nets:OwnGenerator"], ["changes its 'generator'"]),
    (["model.path=tests.own_nets:Clipped"], ["its own parameters: hidden.weight"]),
    (["model.path=tests.own_nets:InPlace"], ["writes into its inputs"]),
    (["model.path=tests.own_nets:Moody"], ["calls train() or eval()"]),
    (["model.path=tests.own_nets:Two"], ["gives tuple in training mode"]),
    (["model.path=tests.own_nets:Halves"], ["'hidden.weight' is bfloat16", ".float()"]),
    (["model.path=tests.own_nets:Halves", "model.kwargs={kind:float64}"], ["is float64"]),
    (["model.path=tests.own_nets:NoHead"], ["no linear layer"]),
    (["model=lstm"], ["model=lstm", "(1, 4, 4)"]),
    (["model=torchvision", "model.name=resnet19"], ["resnet19", "did you mean"]),
    (["model=torchvision"], ["model.name=resnet18", "cannot take samples of shape (1, 4, 4)"]),
    (["model=torchvision", "model.library=keras"], ["model.library 'keras'", "timm, torchvision"]),
    (["model.pat=x"], ["model.pat", "did you mean model.path"]),
]  # fmt: skip


@pytest.fixture(scope="module")
def squares(tmp_path_factory):
    folder = tmp_path_factory.mktemp("squares")
    np.savez(folder / "anna.npz", x=RNG.normal(size=(9, 1, 4, 4)), y=np.arange(9) % 3)
    return folder


@pytest.mark.parametrize("overrides, parts", MODELS, ids=[" ".join(o) for o, _ in MODELS])
def test_a_mistake_in_an_own_model_is_one_message(squares, overrides, parts):
    text = refused("model=module", "data=files", f"data.path={squares}", *overrides)
    assert all(part in text for part in parts), text


def test_what_depends_on_shapes_alone_may_be_kept(squares):
    assemble(compose.load(["method=fedavg", "model=module", "model.path=tests.own_nets:Caching",
                           "data=files", f"data.path={squares}"]))  # fmt: skip


def tokens(folder, **options):
    np.savez(folder / "anna.npz", x=np.arange(50).reshape(10, 5) % 9, y=np.arange(10) % 2)
    return ["data=files", f"data.path={folder}", *(f"data.{k}={v}" for k, v in options.items())]


@pytest.mark.parametrize(
    "model, options, parts",
    [
        ("mlp", {"tokens": "true"}, ["model=mlp takes measurements", "model=lstm"]),
        ("lstm", {}, ["model=lstm embeds tokens", "data.tokens=true"]),
        ("lstm model.vocabulary=5", {"tokens": "true"}, ["too small a vocabulary", "model.vocabulary=9"]),
        (
            "module model.path=tests.own_nets:Renormed model.kwargs={num_classes:2}",
            {"tokens": "true"},
            ["embedding.weight (max_norm=1.0)", "its own parameters"],
        ),
        ("transformer model.heads=3", {"tokens": "true"}, ["model.heads is 3", "model.width=64"]),
    ],
)
def test_a_mistake_with_texts_is_one_message(tmp_path, model, options, parts):
    text = refused(f"model={model.split()[0]}", *model.split()[1:], *tokens(tmp_path, **options))
    assert all(part in text for part in parts), text


def test_a_head_that_shares_its_weight():
    from fedpers.learning.model import build_model

    with pytest.raises(FedpersError, match="shares its weight with"):
        build_model(
            "module", input_shape=(5,), num_outputs=3, task="classification", path="tests.own_nets:Tied"
        )


X, Y = np.zeros((6, 2)), np.array([0, 1] * 3)


@pytest.mark.parametrize(
    "clients, parts",
    [
        ([], ["no clients"]),
        ([X], ["client '0'", "give a pair (x, y)"]),
        ({"anna": {"train": (X, Y)}}, ["client 'anna'", "has train"]),
        ([(X, Y), (X[:, :1], Y)], ["client '1'", "(1,)", "(2,)"]),
        ([(X, Y), (torch.full((6, 2), torch.nan), Y)], ["client '1'", "6 of 6 rows"]),
        ([(X[:1], Y[:1]), (X, Y)], ["client '0'", "at least two"]),
        ([([[1.0], [2.0, 3.0]], [0, 1])], ["client '0'", "different lengths"]),
        ([(X[:0], Y[:0])], ["client '0'", "no rows"]),
        ([(X.astype(str), Y)], ["client '0'", "no number"]),
        ([(np.ma.masked_array(X, mask=X == 0), Y)], ["client '0'", "6 of 6 rows lack a value"]),
        ([(X, np.ma.masked_array(Y, mask=Y > 0))], ["client '0'", "3 of 6 rows lack a value", "its target"]),
        ([(torch.zeros(6, 2).to_sparse(), Y)], ["client '0'", "dense tensor"]),
        ({1: (X, Y), "1": (X, Y)}, ["two clients are called '1'"]),
        ([(pd.DataFrame(X), pd.Series(Y)[::-1])], ["client '0'", "same index in another order"]),
    ],
)
def test_a_mistake_in_arrays_is_one_message(clients, parts):
    with pytest.raises(FedpersError) as caught:
        fedpers.Federation.from_arrays(clients)
    text = str(caught.value)
    assert all(part in text for part in parts) and "\n" not in text, text
