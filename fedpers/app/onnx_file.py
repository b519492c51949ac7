"""NAME.onnx: an exported model for machines without torch, tried with several numbers of samples."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedpers.core.errors import CheckpointError, ConfigError

SIZES = (1, 2, 7, 70)  # numbers of samples that it is tried with
MOST = 2**31 - 2**27  # bytes of parameters in one file; protobuf's limit is 2 GiB, the graph has room
EXTRA = "pip install onnx onnxruntime onnxscript"


def write(model: nn.Module, about: dict[str, Any], features: int, folder: Path) -> list[Path]:
    """Write NAME.onnx, for any number of samples; what NAME.json says stands in its metadata.

    Args:
        model: an exported model.
        about: what its NAME.json holds.
        features: numbers that its head takes.
        folder: where to.

    Returns:
        NAME.onnx, and NAME.onnx.data with the numbers where they are more than a file of ONNX can hold.

    Raises:
        ConfigError: the extra is not installed, ONNX has no word for something in the model, or the file
            does not predict as torch does.
        CheckpointError: the file system refuses.
    """
    path = folder / f"{about['name']}.onnx"
    data = path.with_name(path.name + ".data")
    size = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    try:
        import onnxruntime  # noqa: F401  (what tries the file)
        import onnxscript  # noqa: F401  (what torch exports with)
    except ImportError as error:
        raise ConfigError(f"--onnx needs the extra: {EXTRA} ({error})") from error
    try:
        batches = {n: samples(about, features, n) for n in (*SIZES, 3)}
        _export(model, about, batches.pop(3), path, size > MOST)
        _compare(model, batches, path)
    except OSError as error:
        raise CheckpointError(f"cannot write into {folder}: {error}; choose another --out") from error
    except Exception as error:  # torch, ONNX and its runtime raise of all kinds
        for file in (path, data):
            file.unlink(missing_ok=True)
        text = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(f"{path.name}: ONNX cannot hold this model: {text[0]}") from error
    return [path, data] if data.exists() else [path]


def _export(model: nn.Module, about: dict[str, Any], x: Tensor, path: Path, apart: bool) -> None:
    n = torch.export.Dim("n", min=1)
    program = torch.onnx.export(
        model, (x,), dynamo=True, dynamic_shapes=({0: n},), verbose=False,
        input_names=["x"], output_names=["outputs"],
    )  # fmt: skip
    assert program is not None  # of dynamo=True
    for key, value in about.items():
        program.model.metadata_props[f"fedpers.{key}"] = json.dumps(value)
    path.with_name(path.name + ".data").unlink(missing_ok=True)  # of an earlier export
    program.save(path, external_data=apart)


def samples(about: dict[str, Any], features: int, n: int) -> Tensor:
    """[n, *input_shape] of made-up inputs; of a head features, of a text tokens."""
    shape = (features,) if about["kind"] == "head" else tuple(about["input_shape"])
    draw = np.random.default_rng([n]).standard_normal((n, *shape))
    if about["tokens"]:
        draw = np.floor(np.abs(draw) / 10 % 1 * about["tokens"])
    return torch.from_numpy(draw).to(getattr(torch, about["dtype"]))


def _compare(model: nn.Module, batches: dict[int, Tensor], path: Path) -> None:
    """Run the file; raise ValueError where it says something else than torch."""
    from onnxruntime import InferenceSession

    session: Any = InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for n, x in batches.items():
        ours, theirs = model(x).detach().numpy(), session.run(None, {"x": x.numpy()})[0]
        if ours.shape != theirs.shape or not np.allclose(ours, theirs, rtol=1e-3, atol=1e-4, equal_nan=True):
            raise ValueError(f"of {n} samples it predicts otherwise than torch does")
