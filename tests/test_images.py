"""Images in files: as viewers show them, the same tensors in every form, on a device as in a simulation."""

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from fedpers.core.data import Federation
from fedpers.core.errors import DataError
from fedpers.datasets.config import DataConfig
from fedpers.datasets.federation import load_federation
from fedpers.deploy.local_data import load_local

RNG = np.random.default_rng(0)
N, CLASSES = 20, ("cat", "dog", "eel")
PICTURES = {name: RNG.integers(0, 256, (N, 3, 5, 4), dtype=np.uint8) for name in ("anna", "ben")}
LABELS = {"anna": np.arange(N) % 3, "ben": np.arange(N) % 2}  # ben has no third class


def simulated(path, **options):
    options = {"num_clients": None, "partition": "natural", **options}
    return load_federation(DataConfig(name="files", path=str(path), **options), 7)


def on_device(path, shape=(3, 5, 4), target="label", dtype=torch.float32, **options):
    options = {"class_names": CLASSES, "num_classes": len(CLASSES), **options}
    cfg = DataConfig(name="device", partition="natural", num_clients=None, input_shape=shape, **options)
    assert cfg.check() == []
    return load_local(str(path), target, cfg, 7, dtype)


def save(x, path):
    """[C, H, W] as an image file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(x[0] if len(x) == 1 else x.transpose(1, 2, 0)).save(path)


def folders(root, kind, names=CLASSES, cast=lambda x: x):
    for client, x in PICTURES.items():
        for i, y in enumerate(LABELS[client]):
            save(cast(x[i]), root / client / names[y] / f"{i:02d}{kind}")


def words(client):
    return np.array([CLASSES[y] for y in LABELS[client]])


def npz(root, cast=lambda x: x):
    for client, x in PICTURES.items():
        np.savez(root / f"{client}.npz", x=cast(x), y=words(client))


def flat(root, suffix, cast):
    for client, x in PICTURES.items():
        table = pd.DataFrame(cast(x.reshape(N, -1)), columns=[f"p{i}" for i in range(60)])
        table = table.assign(label=words(client))
        path = root / f"{client}{suffix}"
        table.to_csv(path, index=False) if suffix == ".csv" else table.to_parquet(path)


FORMS = {
    "png": (lambda r: folders(r, ".png"), {}),
    "tif": (lambda r: folders(r, ".tif"), {}),
    "bmp": (lambda r: folders(r, ".BMP"), {}),
    "ppm": (lambda r: folders(r, ".ppm"), {}),
    "npz": (npz, {}),
    "npz, channels last": (lambda r: npz(r, lambda x: x.transpose(0, 2, 3, 1)), {}),
    "npz, fractions": (lambda r: npz(r, lambda x: (x / 255).astype(np.float32)), {}),
    "npz, 16 bits": (lambda r: npz(r, lambda x: x.astype(np.uint16) * 257), {}),
    "csv": (lambda r: flat(r, ".csv", lambda x: x / 255), {"flat": True}),
    "parquet": (lambda r: flat(r, ".parquet", lambda x: x / 255), {"flat": True}),
}


def equal(ours, theirs):
    """All bits of all splits; one may hold its samples flat."""
    pairs = [(getattr(ours, s), getattr(theirs, s)) for s in ("train", "valid", "test")]
    return all(torch.equal(a.x.flatten(1), b.x.flatten(1)) and torch.equal(a.y, b.y) for a, b in pairs)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_tensors_in_a_simulation_and_on_a_device(tmp_path, form):
    make, about = FORMS[form]
    make(tmp_path)
    federation = simulated(tmp_path)
    assert federation.pipeline.classes == CLASSES
    for k, name in enumerate(PICTURES):
        source = next(p for p in tmp_path.iterdir() if p.name.split(".")[0] == name)
        ours = federation.client(k)
        assert equal(ours, on_device(source, (60,) if about.get("flat") else (3, 5, 4)))
        assert len(ours.train) + len(ours.valid) + len(ours.test) == N
        for part in (ours.train, ours.valid, ours.test):
            shown = np.rint(part.x.reshape(-1, 3, 5, 4).numpy() * 255).astype(np.uint8)
            assert np.array_equal(part.x.reshape(shown.shape), shown.astype(np.float32) / np.float32(255))
            for image, y in zip(shown, part.y.tolist(), strict=True):
                i = next(i for i in range(N) if np.array_equal(PICTURES[name][i], image))
                assert LABELS[name][i] == y


def test_given_splits_and_a_given_validation_part_are_alike_too(tmp_path):
    for client, x in PICTURES.items():
        for i, y in enumerate(LABELS[client]):
            save(x[i], tmp_path / client / ("test" if i % 4 == 0 else "train") / CLASSES[y] / f"{i}.png")
    federation = simulated(tmp_path, valid_fraction=0.2)
    for k, client in enumerate(PICTURES):
        ours = federation.client(k)
        assert [len(p) for p in (ours.train, ours.valid, ours.test)] == [12, 3, 5]
        assert equal(ours, on_device(tmp_path / client, valid_fraction=0.2))


def grey(root, depth, kind):
    for i in range(8):
        x = np.full((6, 6), 60 + 20 * i, np.uint8)
        x[0] = 0
        x = x if depth == 8 else x.astype(np.uint16) * 257
        save(x[None], root / "anna" / ("a" if i % 2 else "b") / f"{i}{kind}")


@pytest.mark.parametrize("size", [(), (3, 3)])
def test_sixteen_bits_are_the_same_pictures_as_eight(tmp_path, size):
    for depth, kind in ((8, ".png"), (16, ".png"), (16, ".tif")):
        grey(tmp_path / f"{depth}{kind}", depth, kind)
    eight, png, tif = (
        simulated(tmp_path / f, image_size=size).client(0).train.x for f in ("8.png", "16.png", "16.tif")
    )
    assert torch.equal(png, tif) and len(png.unique()) > 4
    torch.testing.assert_close(png, eight, atol=0 if not size else 1 / 255, rtol=0)


def test_eight_and_sixteen_bits_side_by_side_have_one_scale(tmp_path):
    grey(tmp_path, 8, ".png")
    for i in range(8):
        save(np.full((1, 6, 6), 65535, np.uint16), tmp_path / "ben" / ("a" if i % 2 else "b") / f"{i}.png")
    federation = simulated(tmp_path)
    assert float(federation.client(1).train.x.min()) == 1
    x = federation.client(0).train.x
    assert torch.equal(
        x, on_device(tmp_path / "anna", (1, 6, 6), class_names=("a", "b"), num_classes=2).train.x
    )
    assert float(x.max()) <= torch.tensor(200.0).div(255)


def test_a_phones_picture_is_turned_as_viewers_turn_it(tmp_path):
    x = np.zeros((8, 6), np.uint8)
    x[:2] = 255  # a bright top
    for turn, stored in ((6, np.rot90(x, 1)), (3, np.rot90(x, 2)), (8, np.rot90(x, 3)), (2, x[:, ::-1])):
        exif = Image.Exif()
        exif[0x0112] = turn
        for label in "ab":
            path = tmp_path / str(turn) / "anna" / label
            path.mkdir(parents=True)
            for i in range(3):
                Image.fromarray(np.ascontiguousarray(stored)).save(path / f"{i}.png", exif=exif)
        found = simulated(tmp_path / str(turn)).client(0).train.x[0, 0]
        assert torch.equal(found, torch.from_numpy(x / np.float32(255))), turn


def test_numbered_classes_are_in_the_order_of_their_numbers(tmp_path):
    for y in range(12):
        for i in range(3):
            save(np.full((1, 2, 2), 20 * y, np.uint8), tmp_path / "anna" / str(y) / f"{i}.png")
    federation = simulated(tmp_path)
    part = federation.client(0).train
    assert torch.equal((part.x[:, 0, 0, 0] * 255 / 20).round().long(), part.y)
    assert federation.pipeline.classes == tuple(map(str, range(12))) and not federation.notes
    assert equal(
        federation.client(0), on_device(tmp_path / "anna", (1, 2, 2), class_names=(), num_classes=12)
    )


def test_numbers_as_words_keep_their_spelling(tmp_path):
    y = np.array(["10", "9", "07", "7"] * 3)
    federation = Federation.from_arrays([(np.arange(24.0).reshape(12, 2), y)])
    assert set(federation.pipeline.classes) == {"07", "7", "9", "10"}
    assert federation.pipeline.classes[2:] == ("9", "10")


def test_what_is_hidden_is_no_class_and_what_is_not_read_is_named(tmp_path):
    folders(tmp_path, ".png")
    for hidden in (
        ".ipynb_checkpoints/1.png",
        "anna/.cache/1.png",
        "anna/cat/._00.png",
        "__MACOSX/cat/1.png",
    ):
        (tmp_path / hidden).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / hidden).write_bytes(b"no image")
    (tmp_path / "anna" / "cat" / "Thumbs.db").write_bytes(b"")
    (tmp_path / "anna" / "cat" / "scan.dcm").write_bytes(b"")
    federation = simulated(tmp_path)
    assert (federation.num_clients, federation.num_classes) == (2, 3)
    assert federation.notes[0] == "files that were not read, because their kind is unknown: anna/cat/scan.dcm"


def test_hidden_tables_are_no_clients_and_names_in_capitals_are_read(tmp_path):
    npz(tmp_path)
    (tmp_path / "._anna.npz").write_bytes(b"")
    (tmp_path / "ben.npz").rename(tmp_path / "ben.NPZ")
    assert simulated(tmp_path).num_clients == 2


def test_links_to_folders_are_followed_and_circles_end(tmp_path):
    folders(tmp_path / "far", ".png")
    (tmp_path / "near" / "carl").mkdir(parents=True)
    for name in CLASSES[:2]:
        (tmp_path / "near" / "carl" / name).symlink_to(tmp_path / "far" / "anna" / name)
    (tmp_path / "near" / "dora").symlink_to(tmp_path / "far" / "anna")
    assert simulated(tmp_path / "near").num_clients == 2
    (tmp_path / "near" / "carl" / "cat2").symlink_to(tmp_path / "near")
    with pytest.raises(DataError, match="lies too deep"):
        simulated(tmp_path / "near")


def frames(path):
    images = [Image.new("L", (4, 4), 40 * i) for i in range(3)]
    images[0].save(path, save_all=True, append_images=images[1:])


WRONG = {
    "several images in one": ("1.tif", frames, "holds 3 images"),
    "no image": ("1.png", lambda p: p.write_bytes(b"none"), "is no image"),
    "cut short": ("1.png", lambda p: cut_short(p), "is no image"),
    "floats": ("1.tif", lambda p: Image.fromarray(np.eye(4, dtype=np.float32)).save(p), "32 bits"),
    "whole numbers of 32 bits": (
        "1.tif",
        lambda p: Image.fromarray(np.eye(4, dtype=np.int32)).save(p),
        "32 bits",
    ),
    "another size": ("1.png", lambda p: Image.new("RGB", (9, 9)).save(p), "image_size"),
}


def cut_short(path):
    Image.fromarray(RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:3000])


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_with_a_file_is_said_by_name(tmp_path, what):
    name, make, message = WRONG[what]
    folders(tmp_path, ".png")
    make(tmp_path / "ben" / "dog" / name)
    for load in (simulated, lambda path: on_device(path / "ben")):
        with pytest.raises(DataError, match=message) as caught:
            load(tmp_path)
        assert name in str(caught.value) and "\n" not in str(caught.value)


def test_a_device_refuses_what_is_not_the_runs(tmp_path):
    folders(tmp_path / "colour", ".png")
    folders(tmp_path / "grey", ".png", cast=lambda x: x[:1])
    with pytest.raises(DataError, match="is in colour"):
        on_device(tmp_path / "colour" / "anna", (1, 5, 4))
    with pytest.raises(DataError, match=r"label eel is none of cat, dog; .*class_names"):
        on_device(tmp_path / "colour" / "anna", class_names=("cat", "dog"), num_classes=2)
    with pytest.raises(DataError, match=r"label cat is none of 0\.\.2"):
        on_device(tmp_path / "colour" / "anna", class_names=())
    with pytest.raises(DataError, match="folders of clients"):
        on_device(tmp_path / "colour")
    np.savez(tmp_path / "last.npz", x=np.zeros((6, 5, 4, 3), np.float32), y=words("anna")[:6])
    with pytest.raises(DataError, match=r"shape \(5, 4, 3\).*input_shape=\[3, 5, 4\]"):
        on_device(tmp_path / "last.npz")
    assert on_device(tmp_path / "grey" / "anna").train.x.shape[1:] == (3, 5, 4)  # grey among coloured ones


def test_images_of_one_size_on_a_device_as_in_a_simulation(tmp_path):
    folders(tmp_path, ".png")
    ours = simulated(tmp_path, image_size=[3, 7]).client(1)
    assert equal(ours, on_device(tmp_path / "ben", (3, 3, 7), image_size=[3, 7]))


def test_bytes_beside_fractions_are_fractions(tmp_path):
    x, y = PICTURES["anna"], words("anna")
    np.savez(tmp_path / "a.npz", x=x, y=y)
    np.savez(tmp_path / "b.npz", x=(x / 255).astype(np.float32), y=y)
    files = simulated(tmp_path)
    held = Federation.from_arrays([(x, y), ((x / 255).astype(np.float32), y)])
    for federation in (files, held):
        assert 0.9 < float(federation.client(0).train.x.max()) <= 1
    assert equal(files.client(0), files.client(1))


def test_columns_of_small_numbers_are_no_pixels(tmp_path):
    table = pd.DataFrame({"age": np.arange(20, dtype=np.uint8), "label": np.arange(20) % 2})
    table.to_parquet(tmp_path / "a.parquet")
    for federation in (simulated(tmp_path), Federation.from_arrays([table])):
        assert float(federation.client(0).train.x.max()) > 1


def test_tokens_of_one_byte_are_no_pixels(tmp_path):
    x = RNG.integers(0, 50, (20, 6), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(20) % 2)
    for federation in (
        simulated(tmp_path, tokens=True),
        Federation.from_arrays([(x, np.arange(20) % 2)], tokens=True),
    ):
        assert float(federation.client(0).train.x.max()) == x.max()
