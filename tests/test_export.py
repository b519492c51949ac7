"""An exported model loads back and predicts the same."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fedpers.app.cli import main
from fedpers.app.export import export
from fedpers.app.exported import load_exported
from fedpers.core.errors import CheckpointError, ConfigError
from fedpers.results import checkpoint

SMALL = ["data.num_clients=4", "data.limit=200", "rounds=1", "model.hidden=[5]"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of FedSoft on the embedded digits."""
    out = tmp_path_factory.mktemp("run") / "soft"
    overrides = ["method=fedsoft", "method.local.epochs=1", *SMALL, f"out={out}"]
    assert main(["run", *overrides]) == 0
    return out


def test_it_loads_back_and_predicts_the_same(run: Path, tmp_path: Path) -> None:
    assert main(["export", str(run), "--model", "center_1", "--out", str(tmp_path)]) == 0
    _, state = checkpoint.load(run, None)
    for suffix in ("safetensors", "json"):
        loaded = load_exported(tmp_path / f"center_1.{suffix}")
        model = loaded.model
        assert (model.name, model.num_outputs, model.task) == ("mlp", 10, "classification")
        x = torch.rand(3, 1, 8, 8)
        assert torch.equal(loaded(x), model(state.centers[1], x))
    about = json.loads((tmp_path / "center_1.json").read_text())
    assert (about["options"]["hidden"], about["input_shape"]) == ([5], [1, 8, 8])


def test_mistakes_are_named(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="did you mean 'center_1'"):
        export(run, "centre_1")
    with pytest.raises(ConfigError, match="center_0, center_1"):
        export(run)
    assert main(["export", str(tmp_path)]) == 2
    assert "no run directory" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match=r"nothing\.safetensors: there is no such file"):
        load_exported(tmp_path / "nothing.json")


def test_a_method_without_whole_models_says_so(tmp_path: Path) -> None:
    out = tmp_path / "alone"
    assert main(["run", "method=local", *SMALL, f"out={out}"]) == 0
    with pytest.raises(ConfigError, match="local has no shared model"):
        export(out)


def test_onnx_predicts_the_same_or_says_what_it_needs(run, tmp_path, capsys):
    status = main(["export", str(run), "--client", "0", "--onnx", "--out", str(tmp_path)])
    if importlib.util.find_spec("onnxscript") is None:
        assert status == 2
        assert "pip install onnx onnxruntime onnxscript" in capsys.readouterr().err
        pytest.skip("the extra onnx is not installed")
    assert status == 0
    onnx, evaluator = pytest.importorskip("onnx"), pytest.importorskip("onnx.reference").ReferenceEvaluator
    reference = evaluator(onnx.load(tmp_path / "client_0.onnx"))
    x = torch.rand(3, 1, 8, 8)
    (theirs,) = reference.run(None, {reference.input_names[0]: x.numpy()})
    assert np.allclose(theirs, load_exported(tmp_path / "client_0.json")(x), rtol=1e-4, atol=1e-5)
