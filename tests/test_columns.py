"""Names in tables mean what is written: columns, clients, classes, and what stands for no value."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from fedpers.core.errors import DataError
from fedpers.core.moments import Moments, scale_of
from fedpers.datasets.config import DataConfig
from fedpers.datasets.federation import load_federation
from fedpers.deploy.local_data import load_local

RNG = np.random.default_rng(0)
N = 60
TABLE = pd.DataFrame({"x10": RNG.normal(size=N) + 500, "x2": RNG.normal(size=N), "label": np.arange(N) % 2})
DEVICE = DataConfig(name="device", partition="natural", num_clients=None, input_shape=(2,), num_classes=2)


def load(path, **options):
    options = {"num_clients": None, "partition": "natural", **options}
    return load_federation(DataConfig(name="files", path=str(path), **options), 0)


def clients(path, ids, **options):
    text = ["client,a,label", *(f"{ids[i % len(ids)]},{i / 7},{i % 2}" for i in range(20 * len(ids)))]
    path.write_text("\n".join(text))
    return load(path, **options).clients


def test_a_device_has_the_tensors_of_a_simulation_whatever_the_order_of_columns(tmp_path):
    TABLE.to_csv(tmp_path / "anna.csv", index=False)
    TABLE[["label", "x2", "x10"]].to_csv(tmp_path / "ben.csv", index=False)
    federation = load(tmp_path)
    assert federation.pipeline.columns == ("x2", "x10")  # by value, not as text
    for k, name in enumerate(("anna", "ben")):
        device = load_local(str(tmp_path / f"{name}.csv"), "label", DEVICE, 0, torch.float32)
        for split in ("train", "valid", "test"):
            inside, outside = getattr(federation.client(k), split), getattr(device, split)
            assert torch.equal(inside.x, outside.x) and torch.equal(inside.y, outside.y)
        assert device.train.x[:, 1].min() > 400


@pytest.mark.parametrize(
    "ids", [["900719925474099267", "900719925474099268"], ["007", "7", "07"], ["1e5", "100000"], ["NA", "DE"]]
)
def test_clients_are_text(tmp_path, ids):
    assert clients(tmp_path / "all.csv", ids) == tuple(sorted(ids))


def test_a_column_of_clients_is_no_feature_of_a_client_of_its_own(tmp_path):
    """A folder with one table, or a table a client that was cut from one and kept the column."""
    file = tmp_path / "all.csv"
    TABLE.assign(client=np.arange(N) % 3).to_csv(file, index=False)
    for read in (
        lambda: load(tmp_path),
        lambda: load_local(str(file), "label", replace(DEVICE, input_shape=(3,)), 0, torch.float32),
    ):
        with pytest.raises(DataError, match=r"all.csv: .* its column 'client' names clients; .* data.path"):
            read()
    assert load(file).clients == ("0", "1", "2") and load(file).input_shape == (2,)
    assert load(tmp_path, client="hospital").input_shape == (3,)  # a feature that has this name


def test_a_table_with_tabs_may_be_called_tsv(tmp_path):
    TABLE.to_csv(tmp_path / "anna.tsv", index=False, sep="\t")
    TABLE.to_csv(tmp_path / "ben.csv", index=False)
    federation = load(tmp_path)
    assert federation.clients == ("anna", "ben") and not federation.notes
    assert torch.equal(federation.client(0).train.x, federation.client(1).train.x)


@pytest.mark.parametrize(
    ("cell", "remedy"),
    [
        ("1,234.5", "without marks of thousands"),
        ("1 234", "without marks of thousands"),
        ("2,5", "with a decimal point"),
        ("unknown", "missing value empty"),
        ("2025-01-01", "a date a number of days"),
    ],
)
def test_the_first_cell_that_is_no_number_is_named(tmp_path, cell, remedy):
    """The column's numbers before it are not what is wrong."""
    table = TABLE.astype({"x2": object})
    table.loc[4, "x2"] = cell
    table.to_csv(tmp_path / "anna.csv", index=False)
    with pytest.raises(DataError, match=rf"column x2 holds text .*\(x2, row 5: '{cell}'\); .*{remedy}"):
        load(tmp_path)


def test_arrays_that_nobody_reads_are_named(tmp_path):
    x, y = TABLE[["x2", "x10"]].to_numpy(), TABLE["label"].to_numpy()
    np.savez(tmp_path / "anna.npz", x=x, y=y, z=y)
    np.savez(tmp_path / "ben.npz", x=x, y=y)
    (note,) = load(tmp_path).notes
    assert note == f"{tmp_path / 'anna.npz'}: the array 'z' is not read"


def test_rows_without_a_client_are_refused_or_counted(tmp_path):
    with pytest.raises(DataError, match="20 rows name no client"):
        clients(tmp_path / "all.csv", ["anna", "ben", ""])
    federation = load(tmp_path / "all.csv", missing="drop")
    assert federation.clients == ("anna", "ben")
    assert "20 rows name no client" in federation.notes[0]


@pytest.mark.parametrize("holes", [["x", "y", None], [900719925474099267, 900719925474099268, None]])
def test_clients_of_parquet_with_gaps(tmp_path, holes):
    pytest.importorskip("pyarrow")
    ids = pd.Series(holes * 20, dtype="Int64" if isinstance(holes[0], int) else object)
    TABLE.assign(client=ids).to_parquet(tmp_path / "all.parquet")
    with pytest.raises(DataError, match="20 rows name no client"):
        load(tmp_path / "all.parquet")
    assert load(tmp_path / "all.parquet", missing="drop").clients == tuple(map(str, holes[:2]))


@pytest.mark.parametrize("form", ["csv", "again", "parquet"])
def test_an_index_without_a_name_is_no_column(tmp_path, form):
    if form == "parquet":
        pytest.importorskip("pyarrow")
        TABLE.set_index(np.arange(N) % 5).to_parquet(tmp_path / "anna.parquet")
    else:
        TABLE.to_csv(tmp_path / "anna.csv")
    if form == "again":
        pd.read_csv(tmp_path / "anna.csv").to_csv(tmp_path / "anna.csv", index=False)
    with pytest.raises(DataError, match=r"column without a name.*index=False"):
        load(tmp_path)


@pytest.mark.parametrize(
    "labels, classes",
    [
        (["01", "1", "2"], ("01", "1", "2")),
        (["1.0", "1", "2"], ("1", "2")),
        (["none", "mild", "severe"], ("mild", "none", "severe")),
        (["10", "9"], ("9", "10")),
        (["1e5", "100000"], ("100000", "1e5")),
    ],
)
def test_classes_are_called_what_is_written(tmp_path, labels, classes):
    rows = [f"{i},{labels[i % len(labels)]}" for i in range(30)]
    (tmp_path / "anna.csv").write_text("\n".join(["a,label", *rows]))
    federation = load(tmp_path, missing="drop")
    assert federation.pipeline.classes == classes
    parts = federation.client(0)
    assert sum(len(p) for p in (parts.train, parts.valid, parts.test)) == 30  # no class is a missing value


def test_a_word_for_no_value_among_numbers_is_asked_about(tmp_path):
    (tmp_path / "anna.csv").write_text(
        "\n".join(["a,label", *(f"{i},{[0, 1, 'NA'][i % 3]}" for i in range(30))])
    )
    with pytest.raises(DataError, match="numbers and 'NA'"):
        load(tmp_path, missing="drop")


def test_rows_left_out_are_counted_by_client(tmp_path):
    for name, holes in (("anna", 7), ("ben", 0)):
        TABLE.assign(x2=TABLE["x2"].mask(TABLE.index < holes)).to_csv(tmp_path / f"{name}.csv", index=False)
    (note,) = load(tmp_path, missing="drop").notes
    assert note == "7 of 120 rows lack a value and are left out (data.missing=drop): anna 7 of 60"


@pytest.mark.parametrize("told", [False, True])  # whether Excel's first line names it
@pytest.mark.parametrize("separator", [";", "\t"])
def test_files_of_spreadsheets(tmp_path, separator, told):
    rows = ["a", "label"], *([f"{i},5".replace(",", ","), str(i % 2)] for i in range(20))
    text = "\r\n".join(separator.join(row) for row in rows)
    text = f"sep={separator}\r\n{text}" if told else text
    (tmp_path / "anna.csv").write_text("\ufeff" + text, encoding="utf-8", newline="")
    x = load(tmp_path).client(0).train.x
    assert {float(v) for v in x.flatten()} <= {i + 0.5 for i in range(20)}


def test_blank_lines_are_no_rows(tmp_path):
    (tmp_path / "anna.csv").write_text(
        "\n\na,label\n\n" + "\n\n".join(f"{i},{i % 2}" for i in range(20)) + "\n\n"
    )
    assert load(tmp_path).label_counts.sum() + load(tmp_path).num_test.sum() == 20 - len(
        load(tmp_path).client(0).valid
    )


@pytest.mark.parametrize(
    "text, message",
    [
        ("a,label\n", "has no rows"),
        ("a;label\n1,5;0\n1.5;1\n", "decimal comma and '1.5' a decimal point"),
        ("a;label\n1.234,5;0\n", "'1.234,5'"),
        ("a,label\n1_000,0\n", "'1_000'"),
        ("", "it is empty: not even a line with the names"),
        ("a,label\n\n1,0\n1,0,3\n", "row 2 has 3 fields and the first line 2 names"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, text, message):
    (tmp_path / "anna.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        load(tmp_path)


def test_a_file_that_is_not_utf_8_is_named(tmp_path):
    (tmp_path / "anna.csv").write_bytes("ä,label\n1,0\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"anna.csv.*save it as CSV UTF-8"):
        load(tmp_path)


def test_parquet_booleans_with_gaps_and_decimals(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from decimal import Decimal

    from pyarrow import parquet

    flags, prices = [True, False, None] * 10, [Decimal("1.25"), Decimal("2.50"), Decimal("0.75")] * 10
    columns = {"flag": pa.array(flags), "price": pa.array(prices), "label": pa.array([0, 1, 0] * 10)}
    parquet.write_table(pa.table(columns), tmp_path / "anna.parquet")
    federation = load(tmp_path, missing="drop")
    x = torch.cat([getattr(federation.client(0), s).x for s in ("train", "valid", "test")])
    assert {tuple(row) for row in x.tolist()} == {(1.0, 1.25), (0.0, 2.5)} and len(x) == 20


def test_the_scale_is_that_of_all_training_rows_and_of_no_other(tmp_path):
    """Against NumPy on the rows themselves; the test rows are far away."""
    for name, n in (("anna", 40), ("ben", 15)):
        (tmp_path / name).mkdir()
        TABLE[:n].to_csv(tmp_path / name / "train.csv", index=False)
        TABLE[n:].assign(x2=1e9).to_csv(tmp_path / name / "test.csv", index=False)
    federation = load(tmp_path, standardise=True, valid_fraction=0.0)
    rows = pd.concat([TABLE[:40], TABLE[:15]])[["x2", "x10"]]
    assert np.allclose(federation.pipeline.mean, rows.mean(), rtol=1e-12)
    assert np.allclose(federation.pipeline.factor, 1 / rows.std(ddof=0), rtol=1e-9)
    pooled = load(tmp_path, standardise="pooled", valid_fraction=0.0).pipeline
    assert np.allclose(pooled.factor, federation.pipeline.factor, rtol=1e-9)


def test_sums_depend_on_no_order():
    x = RNG.normal(size=(200, 3)) * [1e-9, 1, 1e9]
    halves = scale_of([Moments.of(x[100:][::-1]), Moments.of(x[:100])])
    for found, again in zip(scale_of([Moments.of(x[:100]), Moments.of(x[100:])]), halves, strict=True):
        assert np.array_equal(found, again)
    assert scale_of([Moments.of(np.full((5, 1), 0.1))])[1].tolist() == [1.0]
