"""Models that left a run: NAME.safetensors for the numbers, NAME.json for what they are. No pickle."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedpers.config import registry, schema
from fedpers.core.errors import CheckpointError, ConfigError, FedpersError
from fedpers.core.params import Params
from fedpers.core.serialization import pack, unpack
from fedpers.flower.client import PersonalizedClient
from fedpers.learning.model import Model, build_model
from fedpers.results.files import replace_json

FORMAT = 2  # of both files; 1 knew whole models alone
KINDS = ("model", "mixture", "body", "head")  # what a file may hold


class ExportedModel(nn.Module):
    """What predicts outside a run; a module, so that torch.export, ONNX and torch.jit.trace take it.

    Args:
        about: what NAME.json holds.
        model: the network and its loss.
        content: parameters, or (shared, state) of a mixture: what the method's client half predicts with.
        client: that client half, where `content` is a mixture.
    """

    def __init__(
        self, about: dict[str, Any], model: Model, content: Any, client: PersonalizedClient | None = None
    ) -> None:
        super().__init__()
        self.about, self.model, self.content, self.client = about, model, content, client
        self.eval()

    @property
    def params(self) -> Params | None:
        """The parameters by name, frozen ones too; None of a mixture of several models."""
        if self.about["kind"] == "mixture":
            return None
        return self.content if self.about["kind"] == "head" else self.model.constants | self.content

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [n, K] of inputs x [n, ...]: logits, or values; of a shared body its features [n, M]."""
        with torch.no_grad():
            if self.client is not None:
                shared, state = self.content
                return self.client.predict(shared, state, x)
            kind = {"body": self.model.body, "head": self.model.head}.get(self.about["kind"], self.model)
            return kind(self.content, x)

    def accuracy(self, x: Tensor, y: Tensor) -> float:
        """The share of samples that are predicted rightly; nan for regression."""
        return float(self.model.correct(self(x), y).mean())

    def write(self, folder: Path) -> Path:
        """Write both files under the model's name; returns the path of the numbers.

        Raises:
            CheckpointError: the file system refuses.
        """
        from safetensors.torch import save_file

        skeleton, arrays = pack(self.content)
        tensors = {str(i): torch.from_numpy(a) for i, a in enumerate(arrays)}
        if self.params is not None:
            skeleton, tensors = "", {k: v.detach().cpu().contiguous() for k, v in self.content.items()}
        path = folder / f"{self.about['name']}.safetensors"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            save_file(tensors, path)
            replace_json(path.with_suffix(".json"), self.about | ({"skeleton": skeleton} if skeleton else {}))
        except OSError as error:
            raise CheckpointError(f"cannot write into {folder}: {error}; choose another --out") from error
        return path

    def write_onnx(self, folder: Path) -> Path:
        """Write NAME.onnx, for any number of samples; needs the extra `onnx`.

        Raises:
            ConfigError: the extra is not installed, or ONNX has no word for something in the model.
        """
        path = folder / f"{self.about['name']}.onnx"
        try:
            import onnxscript  # noqa: F401  (what torch exports with)
        except ImportError as error:
            raise ConfigError(f"--onnx needs the extra: pip install 'fedpers[onnx]' ({error})") from error
        x = torch.zeros(2, *self.about["input_shape"])
        any_number = ({0: torch.export.Dim("n")},)
        try:
            torch.onnx.export(self, (x,), path, dynamo=True, dynamic_shapes=any_number, verbose=False)
        except RuntimeError as error:
            raise ConfigError(f"{path.name}: ONNX cannot hold this model: {error}") from error
        return path


def load_exported(path: Path | str) -> ExportedModel:
    """The model from either of the two files that `fedpers export` wrote; model(x) predicts.

    Raises:
        CheckpointError: a file is missing or damaged, or of another format.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(path)
    try:
        about: dict[str, Any] = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        if about["format"] != FORMAT:
            raise CheckpointError(
                f"{path} is of format {about['format']}, this fedpers reads {FORMAT}: export it again"
            )
        return _put_together(about, load_file(path.with_suffix(".safetensors")))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError(f"{path} is missing, damaged or no exported model: {error!r}") from error


def _put_together(about: dict[str, Any], tensors: Params) -> ExportedModel:
    model = build_model(
        about["model"],
        input_shape=tuple(about["input_shape"]),
        num_outputs=about["classes"],
        task=about["task"],
        **about["options"],
    )
    model.check_base(about.get("base", ""))
    if about["kind"] not in KINDS:
        raise ValueError(f"kind {about['kind']}")
    if about["kind"] != "mixture":
        return ExportedModel(about, model, tensors)
    row = registry.method(about["method"])
    row.strategy_class()  # the records that a mixture is made of
    problems: list[str] = []
    settings = schema.build(row.config_class(), about["settings"], "method", problems)
    if settings is None:
        raise FedpersError("; ".join(problems))
    content = unpack(about["skeleton"], [tensors[str(i)] for i in range(len(tensors))])
    return ExportedModel(about, model, content, row.client_class()(settings, model))


def settings_of(config: Any) -> dict[str, Any]:
    """A method's hyper-parameters as NAME.json holds them."""
    return asdict(config)
