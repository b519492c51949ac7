"""Download a data set: resumable, checked, and unpacked into torchvision's layout."""

import gzip
import hashlib
import http.client
import os
import shlex
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpers.core.errors import DataError, unknown
from fedpers.core.torchvision import import_torchvision
from fedpers.datasets.idx import SETS
from fedpers.datasets.omniglot import SUBSETS
from fedpers.datasets.registry import DATASETS

Progress = Callable[[int, int], None]  # bytes so far, bytes in all (0: unknown)
Opener = Callable[[Path, Path], AbstractContextManager[Any]]  # (archive, file) -> its content
LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"
HEART = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease"
HEART_FILES = {  # md5 as FLamby (commit edacf54) has them
    "processed.cleveland.data": "2d91a8ff69cfd9616aa47b59d6f843db",
    "processed.hungarian.data": "22e96bee155b5973568101c93b3705f6",
    "processed.switzerland.data": "9a87f7577310b3917730d06ba9349e20",
    "processed.va.data": "4249d03ca7711e84f4444768c9426170",
}
LIBSVM_FILES = ("a9a", "a9a.t", "w8a", "mushrooms", "phishing")
TIMEOUT = 30.0  # seconds without an answer
BLOCK = 1 << 16


@dataclass(frozen=True)
class Resource:
    """One download and the files that come out of it."""

    urls: tuple[str, ...]  # the same file in several places
    archive: Path  # where it is put
    md5: str | None  # None: none is published
    files: tuple[Path, ...]  # what it holds for us
    open: Opener | None = None  # None: the archive is the file
    keep: bool = False  # the archive, for the other sets in it


def fetch(name: str, root: Path, progress: Progress | None = None) -> list[Path]:
    """Make the set `name` complete under `root`; what is there already is left alone.

    Args:
        progress: called with (bytes so far, bytes in all) of the present download.

    Returns:
        The files of the set; an empty list for sets that need none.

    Raises:
        DataError: unknown name, no network, wrong checksum, or a set that cannot be downloaded.
    """
    if name not in DATASETS:
        raise DataError(unknown("data set", name, DATASETS))
    done: list[Path] = []
    for item in resources(name, root):
        if not all(path.is_file() for path in item.files):
            download(name, item, progress)
            _unpack(name, item, root)
        done += item.files
    return done


def resources(name: str, root: Path) -> list[Resource]:
    """The downloads that make up a set."""
    if name in SETS:
        return _idx(name, root)
    if name in ("cifar10", "cifar100"):
        return [_cifar(name, root)]
    if name == "omniglot":
        kind = import_torchvision().datasets.Omniglot
        paths = {s: root / "omniglot-py" / f"{s}.zip" for s in SUBSETS}
        return [
            Resource((f"{kind.download_url_prefix}/{s}.zip",), path, kind.zips_md5[s], (path,))
            for s, path in paths.items()
        ]
    if name == "libsvm":
        places = [root / "libsvm" / file for file in LIBSVM_FILES]
        return [Resource((f"{LIBSVM}/{p.name}",), p, None, (p,)) for p in places]
    if name == "heart_disease":
        folder = root / "heart_disease"
        return [Resource((f"{HEART}/{f}",), folder / f, md5, (folder / f,)) for f, md5 in HEART_FILES.items()]
    if name == "femnist":
        raise DataError(
            "femnist cannot be downloaded ready for use: make it with LEAF (github.com/"
            "TalwalkarLab/leaf, data/femnist: ./preprocess.sh -s niid --sf 0.05 -k 0 -t sample) "
            f"and put its data/train and data/test folders into {root / 'femnist'}"
        )
    return []


def _idx(name: str, root: Path) -> list[Resource]:
    spec = SETS[name]
    kind, files = getattr(import_torchvision().datasets, spec.kind), tuple(spec.files(root))
    if spec.split:  # one archive for all splits of EMNIST
        archive = files[0].with_name("gzip.zip")
        return [Resource((kind.url,), archive, kind.md5, files, _in_zip, keep=True)]
    by_name = {f"{path.name}.gz": path for path in files}
    return [
        Resource(
            tuple(f"{mirror}{gz}" for mirror in kind.mirrors),
            by_name[gz].with_name(gz),
            md5,
            (by_name[gz],),
            _in_gz,
        )
        for gz, md5 in kind.resources
    ]


def _cifar(name: str, root: Path) -> Resource:
    kind = getattr(import_torchvision().datasets, name.upper())
    names = [n for n, _ in kind.train_list + kind.test_list]
    files = tuple(root / kind.base_folder / n for n in (*names, kind.meta["filename"]))
    return Resource((kind.url,), root / kind.filename, kind.tgz_md5, files, _in_tar)


def _in_gz(archive: Path, file: Path) -> AbstractContextManager[Any]:
    return gzip.open(archive)


@contextmanager
def _in_zip(archive: Path, file: Path) -> Iterator[Any]:
    with (
        zipfile.ZipFile(archive) as whole,
        whole.open(f"gzip/{file.name}.gz") as member,
        gzip.open(member) as content,
    ):
        yield content


@contextmanager
def _in_tar(archive: Path, file: Path) -> Iterator[Any]:
    with tarfile.open(archive) as whole:
        yield whole.extractfile(f"{file.parent.name}/{file.name}")


def _unpack(name: str, item: Resource, root: Path) -> None:
    """Take the files out of the archive, each through a temporary name; delete the archive."""
    if item.open is None:
        return
    for path in item.files:
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            with item.open(item.archive, path) as source, part.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            part.replace(path)
        except (OSError, KeyError, EOFError, zipfile.BadZipFile, tarfile.TarError) as error:
            part.unlink(missing_ok=True)
            raise DataError(
                f"{item.archive} cannot be unpacked to {path} ({error}); delete it and "
                f"run again: fedpers data fetch {name} --root {shlex.quote(str(root))}"
            ) from error
    if not item.keep:
        item.archive.unlink()


def download(name: str, item: Resource, progress: Progress | None = None) -> None:
    """Get the archive from the first place that answers, check it, and give it its name.

    An interrupted download is kept beside it as *.part and continued by the next call.
    """
    if item.archive.is_file() and _good(item.archive, item.md5):
        return
    part = item.archive.with_name(f"{item.archive.name}.part")
    failures = []
    _make_room(part)
    for url in item.urls:
        try:
            _receive(url, part, progress)
        except (OSError, http.client.HTTPException) as error:
            failures.append(f"  {url}: {getattr(error, 'reason', None) or error}")
            continue
        if _good(part, item.md5):
            part.replace(item.archive)
            return
        failures.append(f"  {url}: md5 {_md5(part)} in {part.stat().st_size} bytes, expected {item.md5}")
        part.unlink()
    raise DataError(
        f"{item.archive.name} of data set '{name}' could not be downloaded:\n"
        + "\n".join(failures)
        + "\ncheck the network and run the same command again "
        f"(it continues), or put that file at {item.archive} by other means"
    )


def _make_room(part: Path) -> None:
    """Find out that a file can be written before a server is asked: a path is not the network's fault."""
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.open("ab").close()
    except OSError as error:
        raise DataError(
            f"{part.parent} cannot be written ({error.strerror}); choose another folder with --root"
        ) from error


def _receive(url: str, part: Path, progress: Progress | None) -> None:
    """Append to `part` what it lacks; from the start if the server cannot continue."""
    have = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        error.close()
        part.unlink()  # nothing is left to send, or the file has changed
        _receive(url, part, progress)
        return
    with answer:
        have = have if answer.status == http.HTTPStatus.PARTIAL_CONTENT else 0
        length = int(answer.headers.get("Content-Length") or 0)
        total = have + length if length else 0
        with part.open("ab" if have else "wb") as file:
            while block := answer.read(BLOCK):
                file.write(block)
                have += len(block)
                if progress:
                    progress(have, total)
    if total and have < total:
        raise http.client.IncompleteRead(b"", total - have)


def _good(path: Path, md5: str | None) -> bool:
    return md5 is None or _md5(path) == md5


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
