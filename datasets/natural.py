"""Tables whose clients are people or hospitals, read from the files as they are published."""

from pathlib import Path

import numpy as np
from numpy.random import Generator

from fedpers.core.errors import DataError
from fedpers.datasets.config import DataConfig
from fedpers.datasets.raw import Raw

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
KEPT = 10  # columns of the heart disease files that FLamby keeps: the next three are mostly missing
CATEGORIES = ((2, (2, 3, 4)), (6, (1, 2)))  # columns that are kinds: their values but the first, as in FLamby
# of the features: the set's own names, and those of CATEGORIES with their values
COLUMNS = (
    *("age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak"),
    *("cp_2", "cp_3", "cp_4", "restecg_1", "restecg_2"),
)
SPLIT = 43  # FLamby's seed
SUBJECTS, MOVEMENTS = 561, 6  # features of UCI HAR, and its classes
GENRES = 19


def absent(name: str, path: Path, how: str) -> DataError:
    """The error for a set that somebody must fetch himself."""
    return DataError(
        f"data set '{name}': {path} is missing; {how}, or say where it is: data.root=FOLDER or the "
        "environment variable FEDPERS_DATA"
    )


def table(path: Path, columns: int, separator: str | None = None) -> np.ndarray:
    """Numbers [n, columns] of a text file; "?" is NaN.

    Raises:
        DataError: the file holds something else.
    """
    try:
        read = np.genfromtxt(path, delimiter=separator, missing_values="?", encoding="latin-1", ndmin=2)
    except ValueError as error:
        raise DataError(f"{path} is damaged: {str(error).splitlines()[0]}; get it again") from error
    if read.shape[1] != columns:
        raise DataError(f"{path} is damaged: expected {columns} columns, found {read.shape[1]}; get it again")
    return read


# ---- UCI heart disease, by hospital ---------------------------------------------------------------


def heart(cfg: DataConfig, rng: Generator) -> Raw:
    """740 patients of four hospitals, 13 features, with FLamby's choice of rows, columns and test samples.

    Reads <data.root>/heart_disease/processed.{cleveland,hungarian,switzerland,va}.data.
    """
    folder = cfg.folder() / "heart_disease"
    parts = [_hospital(folder / f"processed.{name}.data") for name in HOSPITALS]
    tests = [_held_back(y) for _, y in parts]
    x, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    owner, test = np.repeat(np.arange(len(parts)), [len(t) for t in tests]), np.concatenate(tests)
    halves = (x[~test], y[~test], x[test], y[test])
    owners = owner[~test], owner[test]
    return Raw("heart_disease", *halves, 2, "binary", *owners, names=HOSPITALS, columns=COLUMNS)


def _hospital(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """(features [n, 13], whether there is a disease [n]) of the patients without gaps in them."""
    if not path.is_file():
        raise absent("heart_disease", path, "get it with `fedpers data fetch heart_disease`")
    rows = table(path, 14, ",")
    rows = rows[~np.isnan(rows[:, [*range(KEPT), 13]]).any(1)]
    kinds = [rows[:, [column]] == np.array(values) for column, values in CATEGORIES]
    plain = [i for i in range(KEPT) if i not in dict(CATEGORIES)]
    return np.hstack([rows[:, plain], *kinds]).astype(np.float32), (rows[:, 13] > 0).astype(np.int64)


def _held_back(y: np.ndarray) -> np.ndarray:
    """[n] whether a patient is for testing: a third, drawn and stratified as FLamby does."""
    from sklearn.model_selection import train_test_split

    sizes = np.bincount(y, minlength=2)
    by = y if (sizes > 2).all() else None
    _, test = train_test_split(
        np.arange(len(y)), test_size=1 - 0.66, train_size=0.66, random_state=SPLIT, stratify=by
    )
    return np.isin(np.arange(len(y)), test)


# ---- UCI HAR, by person -----------------------------------------------------------------------------


def har(cfg: DataConfig, rng: Generator) -> Raw:
    """10,299 windows of a telephone's sensors, 561 features, six activities; a person is a client.

    The set's own split is by person, so both parts are put together, and each client cuts its own.
    Reads <data.root>/UCI HAR Dataset/{train,test}/{X,y,subject}_{train,test}.txt.
    """
    folder = cfg.folder() / "UCI HAR Dataset"
    x, y, person = (
        np.concatenate([_sensors(folder / part / f"{kind}_{part}.txt", width) for part in ("train", "test")])
        for kind, width in (("X", SUBJECTS), ("y", 1), ("subject", 1))
    )
    if not len(x) == len(y) == len(person):
        raise DataError(f"{folder}: has {len(x)} windows, {len(y)} labels and {len(person)} persons")
    people, owner = np.unique(person[:, 0], return_inverse=True)
    x, y = x.astype(np.float32), y[:, 0].astype(np.int64) - 1
    names = tuple(f"{p:.0f}" for p in people)
    return Raw("uci_har", x, y, x[:0], y[:0], MOVEMENTS, owner=owner, test_owner=owner[:0], names=names)


def _sensors(path: Path, columns: int) -> np.ndarray:
    if not path.is_file():
        page = "https://archive.ics.uci.edu/dataset/240"
        raise absent("uci_har", path, f"get UCI HAR Dataset.zip at {page} and unpack it there")
    return table(path, columns)


# ---- MovieLens, by user -----------------------------------------------------------------------------


def movielens(cfg: DataConfig, rng: Generator) -> Raw:
    """100,000 ratings (1 to 5) by 943 users, to be told from a film's 19 genres.

    Reads <data.root>/ml-100k/{u.data,u.item}.
    """
    folder = cfg.folder() / "ml-100k"
    for name in ("u.data", "u.item"):
        if not (folder / name).is_file():
            page = "https://grouplens.org/datasets/movielens/100k"
            raise absent("movielens", folder / name, f"get ml-100k.zip at {page} and unpack it there")
    films = _films(folder / "u.item")
    user, film, rating, _ = table(folder / "u.data", 4).T
    unknown = sorted(set(film.tolist()) - films.keys())
    if unknown:
        raise DataError(f"{folder / 'u.data'}: rates the film {unknown[0]:.0f}, which is not in u.item")
    users, owner = np.unique(user, return_inverse=True)
    x, y = np.array([films[i] for i in film.tolist()], dtype=np.float32), rating[:, None]
    names = tuple(f"{u:.0f}" for u in users)
    return Raw("movielens", x, y, x[:0], y[:0], 1, "regression", owner, owner[:0], names=names)


def _films(path: Path) -> dict[float, list[float]]:
    """{number: genres [19]} of u.item: number|title|date|video|address|19 flags."""
    found = {}
    for line in path.read_text(encoding="latin-1").splitlines():
        cells = line.split("|")
        if len(cells) != 5 + GENRES:
            raise DataError(f"{path} is damaged: a line has {len(cells)} fields, expected {5 + GENRES}")
        found[float(cells[0])] = [float(flag) for flag in cells[5:]]
    return found
