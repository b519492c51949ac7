"""The notebook in docs/ runs from its first cell to its last."""

import json
import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "docs" / "quickstart.ipynb"


def executed(python: Path, root: Path) -> dict[str, nbformat.NotebookNode]:
    """The executed cells, by id; the kernel is `python`, and works in `root`."""
    kernel = root / "share" / "jupyter" / "kernels" / "ours"
    kernel.mkdir(parents=True)
    argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(
        json.dumps({"argv": argv, "display_name": "ours", "language": "python"})
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(root / "share" / "jupyter"))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(root / "runtime"))
        patch.setenv("IPYTHONDIR", str(root / "ipython"))
        notebook = nbformat.read(NOTEBOOK, as_version=4)
        client = NotebookClient(notebook, timeout=300, kernel_name="ours", startup_timeout=300)
        client.execute(cwd=str(root), env={**os.environ})
    return {cell.id: cell for cell in notebook.cells}


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[str, nbformat.NotebookNode]:
    return executed(Path(sys.executable), tmp_path_factory.mktemp("notebook"))


def test_tables_and_pictures_are_shown(cells):
    assert [o.output_type for o in cells["run"].outputs][-1] == "execute_result"
    for name in ("plot", "compare-plot"):
        assert "image/png" in cells[name].outputs[-1].data
    assert "fedavg" in cells["compare"].outputs[-1].data["text/plain"]


def test_it_is_stored_without_outputs():
    """Outputs would be numbers that nothing compares."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not c.outputs and c.execution_count is None for c in notebook.cells if c.cell_type == "code")
