"""Go to definition works in an editor: asked of pyright's language server, as an editor asks it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SERVER = shutil.which("basedpyright-langserver", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")

pytestmark = pytest.mark.skipif(SERVER is None, reason="needs basedpyright: make editor")


class Editor:
    """Speaks the language server protocol over a process's pipes."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([str(SERVER), "--stdio"], stdin=pipe, stdout=pipe, cwd=ROOT)
        self.number = 0
        folder = {"uri": ROOT.as_uri(), "name": "fedpers"}
        options = {"processId": None, "rootUri": ROOT.as_uri(), "capabilities": {}}
        self.ask("initialize", {**options, "workspaceFolders": [folder]})
        self._send({"method": "initialized", "params": {}})

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        """The result of a request; what the server asks meanwhile gets an empty answer."""
        self.number += 1
        self._send({"id": self.number, "method": method, "params": params})
        while True:
            message = self._receive()
            if "method" in message and "id" in message:
                items = message["params"].get("items", []) if isinstance(message["params"], dict) else []
                self._send({"id": message["id"], "result": [{} for _ in items] or None})
            elif message.get("id") == self.number:
                return message["result"]

    def definition(self, path: Path, word: str) -> set[Path]:
        """The files in which `word`, where it first stands in a file, is defined."""
        text = path.read_text(encoding="utf-8")
        document = {"uri": path.as_uri(), "languageId": "python", "version": 1, "text": text}
        self._send({"method": "textDocument/didOpen", "params": {"textDocument": document}})
        before = text[: text.index(word)]
        place = {"line": before.count("\n"), "character": len(before) - before.rfind("\n") - 1}
        asked = {"textDocument": {"uri": path.as_uri()}, "position": place}
        found = self.ask("textDocument/definition", asked) or []
        return {Path(f["uri"].removeprefix("file://")).resolve() for f in found}

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.process.stdin.flush()

    def _receive(self) -> Any:
        assert self.process.stdout is not None
        length = 0
        while line := self.process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        return json.loads(self.process.stdout.read(length))


@pytest.fixture(scope="module")
def editor() -> Iterator[Editor]:
    made = Editor()
    yield made
    made.process.kill()


WORDS = [
    ("strategies/pflego.py", "PFLEGOConfig", "clients/pflego.py"),
    ("strategies/fedsoft.py", "PersonalizedStrategy", "fedpers/flower/strategy.py"),
    ("clients/fedavg.py", "LocalConfig", "fedpers/learning/optimizers.py"),
    ("fedpers/app/build.py", "load_federation", "datasets/federation.py"),
    ("docs/template/strategies_apfl_fixed.py", "PersonalizedStrategy", "fedpers/flower/strategy.py"),
]


@pytest.mark.parametrize(("file", "word", "where"), WORDS)
def test_go_to_definition(editor: Editor, file: str, word: str, where: str) -> None:
    assert editor.definition(ROOT / file, word) == {ROOT / where}
