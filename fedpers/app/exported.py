"""Models that left a run: NAME.safetensors for the numbers, NAME.json for what they are. No pickle."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedpers.config import registry, schema
from fedpers.core.errors import CheckpointError, DataError, FedpersError
from fedpers.core.params import Params
from fedpers.core.pipeline import Pipeline
from fedpers.core.pytree import flatten, rebuild
from fedpers.core.serialization import pack, unpack
from fedpers.core.tasks import base_of
from fedpers.deploy.local_data import Expected
from fedpers.flower.client import PersonalizedClient
from fedpers.learning.model import Model, build_model
from fedpers.results.files import replace_json

FORMAT = 3  # of both files; 1 knew whole models alone, 2 nothing of the rows that inputs are made of
KINDS = ("model", "mixture", "body", "head")  # what a file may hold


class ExportedModel(nn.Module):
    """A model outside a run; a torch module, so that torch.export, ONNX and torch.jit.trace accept it.

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
        self.about, self.model, self.client = about, model, client
        self.pipeline = Pipeline.of(about["pipeline"])
        leaves, self._structure = flatten(content)
        self._plain = {i: v for i, v in enumerate(leaves) if not isinstance(v, Tensor)}
        frozen = {} if about["kind"] == "head" else model.constants  # the file holds them, too
        mixed = {f"mixture.{i}": leaf for i, leaf in enumerate(leaves)}
        named = frozen | content if client is None else mixed
        self._names = list(named)
        for name, value in named.items():
            if isinstance(value, Tensor):
                _hold(self, name, value)
        self.eval()

    @property
    def content(self) -> Any:
        """Parameters by name, frozen ones included, or (shared, state) of a mixture."""
        held = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        if self.client is None:
            return {name: held[name] for name in self._names}
        leaves = [self._plain.get(i, held.get(name)) for i, name in enumerate(self._names)]
        return rebuild(self._structure, leaves)

    @property
    def params(self) -> Params | None:
        """The parameters by name, frozen ones included; None for a mixture of several models."""
        return None if self.about["kind"] == "mixture" else self.content

    @property
    def expected(self) -> Expected:
        """The shape and columns of the rows that it takes, and the meaning of its outputs."""
        about = self.about
        names = self.pipeline.classes
        return Expected(
            tuple(about["input_shape"]), base_of(about["task"]), about["classes"], names, self.pipeline.kind,
            tuple(about["image_size"]),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [n, K] of inputs x [n, ...]: logits, or values; of a shared body its features [n, M]."""
        with torch.no_grad():
            if self.client is not None:
                shared, state = self.content
                return self.client.predict(shared, state, x)
            kind = {"body": self.model.body, "head": self.model.head}.get(self.about["kind"], self.model)
            return kind(self.content, x)

    def inputs(self, rows: np.ndarray) -> Tensor:
        """The inputs of `forward` for rows [n, *input_shape] in the form of the run's data.

        Columns must be in the order of `pipeline.columns`; scaling and turns are those of the run.

        Raises:
            DataError: the run showed its samples in several ways, so a row does not say which.
        """
        turns = self.about["turns"]
        if turns is None:
            raise DataError(
                f"{self.about['name']}: the run turned or renamed each sample its own way (data.partition), "
                "which rows do not tell; call the model with inputs from Python"
            )
        x = self.pipeline.inputs(rows, getattr(torch, self.about["dtype"]))
        return torch.rot90(x, turns, dims=(2, 3)) if turns else x

    def accuracy(self, x: Tensor, y: Tensor) -> float:
        """The share in [0, 1] of samples x [n, ...] whose label y [n] is predicted; nan for regression."""
        return float(self.model.correct(self(x), y).mean())

    def write(self, folder: Path) -> Path:
        """Write both files under the model's name; returns the path of the numbers.

        Raises:
            CheckpointError: the file system refuses.
        """
        from safetensors.torch import save_file

        content = self.content
        if self.client is None:
            skeleton, tensors = "", {k: v.detach().cpu().contiguous() for k, v in content.items()}
        else:
            skeleton, arrays = pack(content)
            tensors = {str(i): torch.from_numpy(a) for i, a in enumerate(arrays)}
        path = folder / f"{self.about['name']}.safetensors"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            save_file(tensors, path)
            replace_json(path.with_suffix(".json"), self.about | ({"skeleton": skeleton} if skeleton else {}))
        except OSError as error:
            raise CheckpointError(f"cannot write into {folder}: {error}; choose another --out") from error
        return path

    def write_onnx(self, folder: Path) -> list[Path]:
        """Write NAME.onnx, see `fedpers.app.onnx_file`; returns the files."""
        from fedpers.app.onnx_file import write

        return write(self, self.about, self.model.num_features, folder)


def _hold(module: nn.Module, name: str, value: Tensor) -> None:
    """Have `module` own the tensor under its name, so that state_dict, to() and torch.export know it."""
    *above, last = name.split(".")
    for part in above:  # not add_module, which refuses names of methods
        module = module._modules.setdefault(part, nn.Module())  # type: ignore[assignment]
    if value.is_floating_point():
        module._parameters[last] = nn.Parameter(value, requires_grad=False)
    else:
        module._buffers[last] = value


def load_exported(path: Path | str) -> ExportedModel:
    """The model from either of the two files that `fedpers export` wrote; model(x) predicts.

    Raises:
        CheckpointError: a file is missing or damaged, or of another format.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    numbers, text = (_beside(Path(path), suffix) for suffix in (".safetensors", ".json"))
    for file in (numbers, text):
        if not file.is_file():
            raise CheckpointError(
                f"{file}: there is no such file; an exported model is two, NAME.safetensors and NAME.json, "
                "side by side, which `fedpers export RUN --client NAME` writes"
            )
    try:
        about: dict[str, Any] = json.loads(text.read_text(encoding="utf-8"))
        if about["format"] != FORMAT:
            raise CheckpointError(
                f"{path} is of format {about['format']}, this fedpers reads {FORMAT}: export it again"
            )
        return _put_together(about, load_file(numbers))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise CheckpointError(f"{path} is damaged or no exported model: {error!r}") from error


def _beside(path: Path, suffix: str) -> Path:
    """The file of the model with this suffix; a name may hold points."""
    known = path.suffix in (".safetensors", ".json", ".onnx")
    return path.with_suffix(suffix) if known else path.with_name(path.name + suffix)


def _put_together(about: dict[str, Any], tensors: Params) -> ExportedModel:
    if about["kind"] not in KINDS:
        raise ValueError(f"kind {about['kind']}")
    options = dict(about["options"])
    if "weights" in options and about["kind"] != "mixture":
        options["weights"] = None  # the file holds all numbers
    model = build_model(
        about["model"],
        input_shape=tuple(about["input_shape"]),
        num_outputs=about["classes"],
        task=about["task"],
        **options,
    )
    if about["kind"] != "mixture":
        _check_names(about["kind"], model, tensors)
        return ExportedModel(about, model, tensors)
    model.check_base(about["base"])  # a mixture's file holds what is trained alone
    row = registry.method(about["method"])
    row.strategy_class()  # the records that a mixture is made of
    problems: list[str] = []
    settings = schema.build(row.config_class(), about["settings"], "method", problems)
    if settings is None:
        raise FedpersError("; ".join(problems))
    content = unpack(about["skeleton"], [tensors[str(i)] for i in range(len(tensors))])
    return ExportedModel(about, model, content, row.client_class()(settings, model))


def _check_names(kind: str, model: Model, tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError if a parameter is missing, or of another shape than that of the named model."""
    wanted = {
        name: value.shape
        for name, value in model.init(0).items()
        if kind == "model" or model.is_head(name) == (kind == "head")
    }
    wrong = [n for n, shape in wanted.items() if n not in tensors or tensors[n].shape != shape]
    if wrong:
        raise ValueError(f"{wrong[0]} is missing or has another shape than NAME.json says")


def settings_of(config: Any) -> dict[str, Any]:
    """A method's hyper-parameters as NAME.json holds them."""
    return asdict(config)
