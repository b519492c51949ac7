"""Downloads, against a server on this machine."""

import gzip
import hashlib
import http.server
import io
import shlex
import tarfile
import threading
import zipfile
from functools import partial

import pytest

from fedpers.app.cli import main
from fedpers.core.errors import DataError
from fedpers.datasets import fetch as module
from fedpers.datasets.fetch import Resource, _in_gz, _in_tar, _in_zip, fetch
from fedpers.datasets.raw import missing

CONTENT = bytes(range(256)) * 1000


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `server.files`, honours Range, and breaks off after `server.cut` bytes."""

    def do_GET(self):
        body = self.server.files.get(self.path)
        self.server.ranges.append(self.headers.get("Range"))
        if body is None:
            self.send_error(404)
            return
        begin = int((self.headers.get("Range") or "bytes=0-")[6:-1])
        if begin >= len(body):
            self.send_error(416)
            return
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(body) - begin))
        self.end_headers()
        self.wfile.write(body[begin : self.server.cut])

    def log_message(self, *args):
        """Nothing on the screen."""


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.files, running.ranges, running.cut = {}, [], None
        running.url = f"http://127.0.0.1:{running.server_port}"
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()


def md5(data):
    return hashlib.md5(data).hexdigest()


def plain(server, root, checksum=None):
    path = root / "mnist" / "file.bin"
    server.files["/file.bin"] = CONTENT
    return Resource((f"{server.url}/file.bin",), path, checksum or md5(CONTENT), (path,))


def use(monkeypatch, *items):
    monkeypatch.setattr(module, "resources", lambda name, root: list(items))


def test_fetches_checks_and_reports_progress(server, tmp_path, monkeypatch):
    use(monkeypatch, item := plain(server, tmp_path))
    seen = []
    assert fetch("mnist", tmp_path, lambda *at: seen.append(at)) == [item.archive]
    assert item.archive.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [at[0] for at in seen] == sorted(at[0] for at in seen)
    assert fetch("mnist", tmp_path) == [item.archive] and len(server.ranges) == 1


def test_an_interrupted_download_goes_on(server, tmp_path, monkeypatch):
    use(monkeypatch, item := plain(server, tmp_path))
    server.cut = 100_000
    with pytest.raises(DataError, match="it continues"):
        fetch("mnist", tmp_path)
    assert not item.archive.exists()
    server.cut = None
    fetch("mnist", tmp_path)
    assert server.ranges == [None, "bytes=100000-"]
    assert item.archive.read_bytes() == CONTENT
    assert [p.name for p in item.archive.parent.iterdir()] == ["file.bin"]


def test_a_part_longer_than_the_file_starts_again(server, tmp_path, monkeypatch):
    use(monkeypatch, item := plain(server, tmp_path))
    item.archive.parent.mkdir()
    item.archive.with_name("file.bin.part").write_bytes(b"0" * (len(CONTENT) + 1))
    fetch("mnist", tmp_path)
    assert item.archive.read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing_behind(server, tmp_path, monkeypatch):
    use(monkeypatch, item := plain(server, tmp_path, checksum="0" * 32))
    with pytest.raises(DataError) as error:
        fetch("mnist", tmp_path)
    for part in (server.url, md5(CONTENT), "0" * 32, f"{len(CONTENT)} bytes", str(item.archive)):
        assert part in str(error.value)
    assert list(item.archive.parent.iterdir()) == []


def test_the_second_mirror_helps(server, tmp_path, monkeypatch):
    item = plain(server, tmp_path)
    use(monkeypatch, Resource((f"{server.url}/absent", *item.urls), item.archive, item.md5, item.files))
    fetch("mnist", tmp_path)
    assert item.archive.read_bytes() == CONTENT


def test_no_server_names_the_url_and_the_remedy(tmp_path, monkeypatch):
    path = tmp_path / "x.gz"
    use(monkeypatch, Resource(("http://127.0.0.1:9/x.gz",), path, None, (path,)))
    with pytest.raises(DataError) as error:
        fetch("mnist", tmp_path)
    for part in ("http://127.0.0.1:9/x.gz", "check the network", str(path)):
        assert part in str(error.value)


def archive_gz(names):
    return gzip.compress(CONTENT)


def archive_zip(names):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name in names:
            file.writestr(f"gzip/{name}.gz", gzip.compress(CONTENT))
    return out.getvalue()


def archive_tar(names):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as file:
        for name in names:
            info = tarfile.TarInfo(f"raw/{name}")
            info.size = len(CONTENT)
            file.addfile(info, io.BytesIO(CONTENT))
    return out.getvalue()


@pytest.mark.parametrize(
    ("make", "opener", "names"),
    [(archive_gz, _in_gz, ["a"]), (archive_zip, _in_zip, ["a", "b"]), (archive_tar, _in_tar, ["a", "b"])],
)
def test_unpacks(server, tmp_path, monkeypatch, make, opener, names):
    server.files["/archive"] = make(names)
    files = tuple(tmp_path / "raw" / name for name in names)
    item = partial(
        Resource,
        (f"{server.url}/archive",),
        tmp_path / "raw" / "archive",
        md5(server.files["/archive"]),
        open=opener,
    )
    use(monkeypatch, item(files=files))
    assert fetch("mnist", tmp_path) == list(files)
    assert all(path.read_bytes() == CONTENT for path in files)
    assert sorted(p.name for p in files[0].parent.iterdir()) == names  # no archive, no parts
    if opener is _in_zip:  # kept for the other sets in it
        files[0].unlink()
        use(monkeypatch, item(files=files[:1], keep=True))
        fetch("mnist", tmp_path)
        assert (tmp_path / "raw" / "archive").is_file() and files[0].is_file()
    if len(names) > 1:
        use(monkeypatch, item(files=(tmp_path / "raw" / "missing",)))
        with pytest.raises(DataError, match="cannot be unpacked"):
            fetch("mnist", tmp_path)


@pytest.mark.parametrize(
    ("name", "count", "files"),
    [
        ("mnist", 4, 4),
        ("fashion_mnist", 4, 4),
        ("kmnist", 4, 4),
        ("emnist_letters", 1, 4),
        ("emnist_byclass", 1, 4),
        ("cifar10", 1, 7),
        ("cifar100", 1, 3),
        ("omniglot", 2, 2),
        ("libsvm", 5, 5),
        ("digits", 0, 0),
    ],
)
def test_every_set_has_its_downloads(tmp_path, name, count, files):
    items = module.resources(name, tmp_path)
    assert len(items) == count and sum(len(i.files) for i in items) == files
    assert all(url.startswith("http") for i in items for url in i.urls)
    assert all(i.md5 for i in items) or name == "libsvm"


def test_names_that_cannot_be_fetched(tmp_path):
    with pytest.raises(DataError, match="did you mean 'mnist'"):
        fetch("mnits", tmp_path)
    with pytest.raises(DataError, match="LEAF"):
        fetch("femnist", tmp_path)


def test_a_name_that_is_nearly_right_is_guessed(tmp_path, capsys):
    assert main(["data", "fetch", "mnits", "--root", str(tmp_path)]) == 2
    assert "did you mean 'mnist'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_path_is_not_blamed_on_the_network(server, tmp_path, monkeypatch, capsys):
    (tmp_path / "a file").write_text("")
    monkeypatch.setattr(module, "resources", lambda name, root: [plain(server, root)])
    assert main(["data", "fetch", "mnist", "--root", str(tmp_path / "a file")]) == 2
    text = capsys.readouterr().err
    assert "cannot be written (Not a directory); choose another folder with --root" in text
    assert "network" not in text
    assert server.ranges == []  # nobody was asked


def test_hints_keep_the_root_and_quote_it(tmp_path):
    root = tmp_path / "two words"
    text = str(missing("mnist", root, root / "x"))
    assert shlex.split(next(x for x in text.splitlines() if "data fetch" in x)) == [
        *("fedpers", "data", "fetch", "mnist", "--root"), str(root),
    ]  # fmt: skip
    broken = root / "mnist" / "x.gz"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"no archive")
    item = Resource(("",), broken, None, (broken.with_name("x"),), _in_gz)
    with pytest.raises(DataError) as caught:
        module._unpack("mnist", item, root)
    assert shlex.split(str(caught.value).partition("again: ")[2])[-1] == str(root)
