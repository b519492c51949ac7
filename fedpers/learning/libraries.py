"""Networks that are torch modules: your own by import path, torchvision's and timm's by name."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fedpers.core.errors import ConfigError, unknown
from fedpers.core.torchvision import import_torchvision
from fedpers.learning.layers import Shape
from fedpers.learning.module import ModuleNetwork
from fedpers.learning.recipes import Recipe, imported

Options = Mapping[str, Any]


def module(
    shape: Shape,
    *,
    num_outputs: int,
    path: str | None = None,
    head: str | None = None,
    kwargs: Options | None = None,
    trainable: Sequence[str] | None = None,
    weights: str | None = None,
    lora: Options | None = None,
    padding: int | None = None,
) -> ModuleNetwork:
    """Your own torch.nn.Module: path "package.module:Net", its last linear layer `head`, its arguments."""
    if not path:
        raise ConfigError("model=module needs model.path=package.module:Net, your nn.Module's import path")
    what = f"model.path={path}"
    given = _given(kwargs, what)
    return Recipe(
        what, imported, (path,), given, shape, num_outputs, head or "", trainable, weights, lora, padding
    ).network()


def _named(
    library: str,
    shape: Shape,
    *,
    num_outputs: int,
    name: str,
    head: str | None = None,
    kwargs: Options | None = None,
    trainable: Sequence[str] | None = None,
    weights: str | None = None,
    lora: Options | None = None,
    padding: int | None = None,
) -> ModuleNetwork:
    """A classifier of torchvision or timm by its name, not pretrained; timm's for the images' channels."""
    what, maker = f"model.name={name}", _of_timm if library == "timm" else _of_torchvision
    given = {"num_classes": num_outputs} | ({"in_chans": shape[0]} if library == "timm" else {})
    more = head or "", trainable, weights, lora, padding
    return Recipe(what, maker, (name,), given | _given(kwargs, what), shape, num_outputs, *more).network()


# what `model.library` may be: model.name is theirs
LIBRARIES: dict[str, Callable[..., ModuleNetwork]] = {
    library: partial(_named, library) for library in ("torchvision", "timm")
}


def _given(kwargs: Options | None, what: str) -> dict[str, Any]:
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ConfigError(f"{what}: model.kwargs is {kwargs!r}; it must be {{name: value, ...}}")
    return dict(kwargs or {})


def _of_torchvision(name: str) -> Callable[..., Any]:
    models = import_torchvision().models
    known = models.list_models(module=models)
    if name not in known:
        raise ConfigError(unknown("torchvision's model.name", name, known))
    function: Callable[..., Any] = models.get_model_builder(name)
    return function


def _of_timm(name: str) -> Callable[..., Any]:
    import_torchvision()  # timm imports it
    try:
        import timm
    except ImportError as error:
        raise ConfigError(f"model=timm needs: pip install timm ({error})") from error
    if not timm.is_model(name):
        raise ConfigError(unknown("timm's model.name", name, timm.list_models()).partition(" Known:")[0])

    def create(**kwargs: Any) -> Any:
        return timm.create_model(name, **kwargs)

    return create
