"""From a path or a function to the network of a module, tried before anything is trained."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedpers.core.errors import ConfigError, unknown
from fedpers.core.host import from_import_path
from fedpers.core.hub import asked_once
from fedpers.core.torchvision import with_torchvision
from fedpers.learning.calls import plainly
from fedpers.learning.cells import write_out
from fedpers.learning.draws import own_draws
from fedpers.learning.hidden_state import refuse_hidden_state
from fedpers.learning.layers import Shape
from fedpers.learning.lora import Lora, adapt, with_targets
from fedpers.learning.module import ModuleNetwork, cut_head
from fedpers.learning.pretrained import freeze, load_weights
from fedpers.learning.stackable import saved_bytes, why_alone
from fedpers.learning.starts import seeded

BASE_SEED = 0


@dataclass(frozen=True, eq=False)  # compared and hashed by identity: kwargs may be anything
class Recipe:
    """How a module is made; it can be sent to another process."""

    what: str  # in messages
    maker: Callable[..., Callable[..., Any]]  # of `args`: what makes the module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    shape: Shape  # of one input
    num_outputs: int
    head: str = ""  # name of the last linear layer; "": found
    trainable: Sequence[str] | None = None  # patterns of names; None: as the module's own requires_grad says
    weights: str | None = None  # a file of numbers that it starts from
    lora: Any = None  # adapters beside linear layers: what model.lora says, then a `Lora`; None: none
    padding: int | None = None  # the token that texts are filled up with; None: there is none

    def make(self) -> nn.Module:
        """A new module, with the numbers of the file of weights, adapters, and frozen where it is to be.

        Raises:
            ConfigError: its code raises, or gives no module; weights or patterns do not fit it.
        """
        return self.finished(self.made())

    def finished(self, module: nn.Module) -> nn.Module:
        """A module as it was made, with weights and adapters, frozen where it is to be."""
        if self.weights is not None:
            load_weights(module, self.weights, self.head, self.what)
        frozen = {name for name, p in module.named_parameters() if not p.requires_grad}
        if self.lora is not None:
            adapt(module, self.lora, self.head)
        freeze(module, self.trainable, self.head, self.what, frozen)
        return module

    def found(self, module: nn.Module) -> "Recipe":
        """The same with the names of the head and of the layers that get adapters.

        Raises:
            ConfigError: there is no such head, or no such layer.
        """
        found = replace(self, head=self.head or _last_linear(module, self))
        _head_of(module, found)
        if found.lora is None:
            return found
        x = probe(module, found.shape, found.what)[1]
        lora = with_targets(Lora.of(found.lora, found.what), module, found.head, x, found.what)
        return replace(found, lora=lora)

    def made(self) -> nn.Module:
        """The module as its own code makes it.

        Raises:
            ConfigError: its code raises, or gives no module.
        """
        return with_torchvision(self._made)

    def _made(self) -> nn.Module:
        function = self.maker(*self.args)
        with asked_once() as reach:
            try:
                module = function(**self.kwargs)
            except Exception as error:  # whatever somebody's code raises
                text = f"{type(error).__name__}: {error}; its arguments are model.kwargs={{name: value}}"
                if away := reach.hint(error):
                    text = f"{away}; without a network load its numbers from a file: model.weights=FILE"
                raise ConfigError(f"{self.what}: cannot be made: {text}") from error
        if not isinstance(module, nn.Module):
            raise ConfigError(f"{self.what}: gives a {type(module).__name__}; it must give a torch.nn.Module")
        if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters()):
            with torch.no_grad():  # lazy layers take their shapes from a first batch
                probe(module, self.shape, self.what)
        plainly(module, self.padding, self.what)
        return module

    def network(self) -> ModuleNetwork:
        """The network of such a module, after it was tried on made-up inputs.

        Raises:
            ConfigError: there is no such module, or it is not made of a body and a linear head.
        """
        with seeded(BASE_SEED):  # what is frozen is drawn alike in every process and every run
            return _tried(self)


def _tried(recipe: Recipe) -> ModuleNetwork:
    """The network of a module, after it was tried on made-up inputs.

    Raises:
        ConfigError: there is no such module, or it is not made of a body and a linear head.
    """
    bare = recipe.made()
    recipe = recipe.found(bare)
    module = recipe.finished(bare)
    _refuse_types(module, recipe.what)
    tokens, x, outputs = probe(module, recipe.shape, recipe.what)
    head = _head_of(module, recipe)
    refuse_hidden_state(module, x, recipe.what)
    draws = own_draws(module)
    write_out(module)
    alone, activations = why_alone(module, x), saved_bytes(module, x)
    cut_head(module, recipe.head)
    if not _ends_in(head, module, x, outputs):
        raise ConfigError(
            f"{recipe.what}: its outputs are not those of its layer '{recipe.head}'; the module must end in "
            "that layer and return it unchanged, logits without softmax; model.head=... names another layer"
        )
    return ModuleNetwork(
        recipe,
        without_numbers(module),
        head.in_features,
        head.out_features,
        head.bias is not None,
        tokens,
        alone,
        draws,
        activations,
        outputs.ndim == 3,
    )


def without_numbers(module: nn.Module) -> nn.Module:
    """The module whose trained parameters have no memory: others stand in for them in every call."""
    for p in module.parameters():
        if p.requires_grad:
            p.data = p.new_zeros(1).expand(p.shape)
    return module


def _ends_in(head: nn.Linear, body: nn.Module, x: Tensor, outputs: Tensor) -> bool:
    """Whether the outputs are the head's of what the body gives."""
    body.eval()
    with torch.no_grad():
        try:
            features = body(x)
        except Exception:  # somebody's code does something with the outputs of its head
            return False
        fits = isinstance(features, Tensor) and features.shape == (*outputs.shape[:-1], head.in_features)
        return fits and torch.allclose(head(features), outputs, atol=1e-5)


def probe(module: nn.Module, shape: Shape, what: str) -> tuple[bool, Tensor, Tensor]:
    """(inputs are tokens, two made-up inputs, their outputs) in evaluation mode.

    Raises:
        ConfigError: the module takes neither numbers nor tokens of this shape, or returns no rows of outputs.
    """
    module.eval()
    generator = torch.Generator().manual_seed(0)
    numbers = torch.rand(2, *shape, generator=generator)
    embeds = any(isinstance(m, nn.Embedding | nn.EmbeddingBag) for m in module.modules())
    problem: Exception | None = None
    for tokens in (True, False) if embeds else (False,):
        x = torch.zeros(2, *shape, dtype=torch.long) if tokens else numbers
        try:
            with torch.no_grad():
                outputs = module(x)
        except Exception as error:  # whatever somebody's code raises
            problem = problem or error
            continue
        if not isinstance(outputs, Tensor) or outputs.ndim not in (2, 3) or len(outputs) != 2:
            kind = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ConfigError(
                f"{what}: gives {kind} for 2 samples; it must return a tensor (2, outputs), of each token "
                "(2, length, outputs)"
            )
        return tokens, x, outputs
    text = (str(problem).splitlines() or [""])[0]
    raise ConfigError(
        f"{what}: cannot take samples of shape {tuple(shape)}: {type(problem).__name__}: {text}"
    ) from problem


def _last_linear(module: nn.Module, recipe: Recipe) -> str:
    names = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    fitting = [n for n in names if module.get_submodule(n).out_features == recipe.num_outputs]
    if not names:
        raise ConfigError(f"{recipe.what}: has no linear layer; it must end in one, its head")
    return (fitting or names)[-1]


def _head_of(module: nn.Module, recipe: Recipe) -> nn.Linear:
    names = [name for name, _ in module.named_modules() if name]
    if recipe.head not in names:
        raise ConfigError(f"{recipe.what}: {unknown('model.head', recipe.head, names)}")
    head = module.get_submodule(recipe.head)
    if not isinstance(head, nn.Linear):
        raise ConfigError(
            f"{recipe.what}: model.head={recipe.head} is a {type(head).__name__}; "
            "it must be the last nn.Linear, which makes the outputs"
        )
    if head.out_features != recipe.num_outputs:
        why = " (a regression, or two classes that one output tells apart)" if recipe.num_outputs == 1 else ""
        raise ConfigError(
            f"{recipe.what}: its head '{recipe.head}' has {head.out_features} outputs, the data needs "
            f"{recipe.num_outputs}{why}; set that number in the module, or by "
            f"'model.kwargs={{NAME: {recipe.num_outputs}}}', where NAME is the argument that sets it"
        )
    inside = {id(p) for p in head.parameters()}
    cut = [n for n, p in module.named_parameters(remove_duplicate=False) if id(p) in inside]
    if len(cut) > len(inside):
        raise ConfigError(
            f"{recipe.what}: its head '{recipe.head}' shares its weight with '{cut[0]}'; "
            "body and head are trained apart, so give each its own"
        )
    return head


def _refuse_types(module: nn.Module, what: str) -> None:
    """What is trained must be of the type that everything is computed in."""
    odd = [(n, p.dtype) for n, p in module.named_parameters() if p.requires_grad and p.dtype != torch.float32]
    if odd:
        kind = str(odd[0][1]).removeprefix("torch.")
        raise ConfigError(
            f"{what}: its parameter '{odd[0][0]}' is {kind}; what is trained must be float32: call .float() "
            "on the module, or freeze it with requires_grad=False (frozen ones keep their type)"
        )


def imported(path: str) -> Callable[..., Any]:
    """What "package.module:Name" names; modules of the working folder are found too.

    Raises:
        ConfigError: there is no such thing, or importing it fails.
    """
    what = f"model.path={path}"
    module, colon, name = path.partition(":")
    if not colon or not name:
        raise ConfigError(f"{what}: expected package.module:Net, the import path and the name of your class")
    try:
        found: Callable[..., Any] = from_import_path(path)
    except AttributeError as error:
        raise ConfigError(f"{what}: {module} has no {name}") from error
    except Exception as error:  # whatever somebody's code raises while it is imported
        if isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]:
            text = f"there is no module {error.name} in {Path.cwd()}, where you are, nor installed"
            raise ConfigError(f"{what}: {text}") from error
        raise ConfigError(f"{what}: cannot be imported: {type(error).__name__}: {error}") from error
    return found
