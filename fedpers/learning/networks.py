"""The networks by name, without the head: each a function of the shape of one input.

To add a network, write such a function and list it in NETWORKS; `fedpers.learning.model` adds the head.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence

from fedpers.core.errors import ConfigError, unknown
from fedpers.learning.layers import (
    Conv,
    Dense,
    Flatten,
    Layer,
    MaxPool,
    Network,
    Relu,
    Shape,
    SquashedStack,
    image,
    stack,
)
from fedpers.learning.libraries import LIBRARIES, module
from fedpers.learning.resnet import STEMS, ResNet18
from fedpers.learning.text import factors, lstm, transformer


def logistic(shape: Shape) -> Network:
    """Logistic regression, multinomial or binary."""
    return stack(shape, Flatten())


def linear(shape: Shape) -> Network:
    """Linear regression."""
    return stack(shape, Flatten())


def mlp(shape: Shape, *, hidden: Sequence[int] = (200,)) -> Network:
    """Dense layers of `hidden` units with ReLU; the default is PFLEGO's 784-200."""
    listed = isinstance(hidden, Sequence) and not isinstance(hidden, str)
    if not listed or not all(isinstance(h, int) and h > 0 for h in hidden):
        raise ConfigError(f"model.hidden is {hidden}; it must be a list of positive whole numbers")
    return stack(shape, Flatten(), *(layer for h in hidden for layer in (Dense(h), Relu())))


def cnn_pflego(shape: Shape) -> Network:
    """PFLEGO's CNN for CIFAR-10: 1,754,496 parameters before the head."""
    block = (Relu(), MaxPool(3, 2, padding=1))
    convs = (Conv(64, 5, padding=2), *block, Conv(64, 5, padding=2), *block)
    return stack(shape, *convs, Flatten(), Dense(384), Relu(), Dense(192), Relu())


def cnn_omniglot(shape: Shape) -> Network:
    """PFLEGO's CNN for Omniglot: 28-14-7-3-1 pixels, 111,424 parameters before the head."""
    block = (Conv(64, 3, padding=1), Relu(), MaxPool(2, 2))
    return stack(shape, *block, *block, *block, *block, Flatten())


def cnn_fedsoft_letters(shape: Shape, *, head: str = "logits") -> Network:
    """FedSoft's CNN for letters, without ReLU after its convolutions; head=released: as its code ends."""
    if head not in ("logits", "released"):
        raise ConfigError(unknown("model.head", str(head), ("logits", "released")))
    convs = (Conv(32, 5, padding=2), MaxPool(2, 2), Conv(64, 5, padding=2), MaxPool(2, 2))
    body = stack(shape, *convs, Flatten(), Dense(512), Relu())
    return body if head == "logits" else SquashedStack(body.steps, body.num_features)


def cnn_fedsoft_cifar(shape: Shape) -> Network:
    """FedSoft's CNN for CIFAR-10: six convolutions, pooled after every second."""
    convs: list[Layer] = []
    for first, second in ((32, 64), (128, 128), (256, 256)):
        convs += [Conv(first, 3, padding=1), Relu(), Conv(second, 3, padding=1), Relu()]
        convs += [MaxPool(2, 2)]
    return stack(shape, *convs, Flatten(), Dense(1024), Relu(), Dense(512), Relu())


def cnn2_federico(shape: Shape) -> Network:
    """FedeRiCo's CNN2: three convolutions of 128 channels, each pooled, then ReLU."""
    block = (Conv(128, 3, padding=1), MaxPool(2, 2), Relu())
    return stack(shape, *block, *block, *block, Flatten())


def lenet(shape: Shape, *, padding: int = 2) -> Network:
    """LeNet-5 with ReLU and max pooling; padding 2 for 28x28 images, 0 for 32x32."""
    if not isinstance(padding, int) or padding < 0:
        raise ConfigError(f"model.padding is {padding}; it must be a whole number, 0 or more")
    first = (Conv(6, 5, padding=padding), Relu(), MaxPool(2, 2))
    second = (Conv(16, 5, padding=0), Relu(), MaxPool(2, 2))
    return stack(shape, *first, *second, Flatten(), Dense(120), Relu(), Dense(84), Relu())


def cnn_mcmahan(shape: Shape) -> Network:
    """The CNN of the FedAvg paper: 1,663,370 parameters on MNIST, its head included."""
    first = (Conv(32, 5, padding=2), Relu(), MaxPool(2, 2))
    second = (Conv(64, 5, padding=2), Relu(), MaxPool(2, 2))
    return stack(shape, *first, *second, Flatten(), Dense(512), Relu())


def resnet18_gn(shape: Shape, *, stem: str = "small", groups: int = 2) -> ResNet18:
    """ResNet-18 with group normalisation; stem small (3x3, for up to 64 pixels) or imagenet."""
    if stem not in STEMS:
        raise ConfigError(unknown("model.stem", str(stem), STEMS))
    if not isinstance(groups, int) or groups < 1 or 64 % groups:
        raise ConfigError(f"model.groups is {groups}; it must divide the 64 channels")
    return ResNet18(image(shape)[0], stem, groups)


_CNNS = (cnn2_federico, cnn_fedsoft_cifar, cnn_fedsoft_letters, cnn_mcmahan, cnn_omniglot, cnn_pflego)
NETWORKS: dict[str, Callable[..., Network]] = {
    network.__name__: network
    for network in (*_CNNS, factors, lenet, linear, logistic, lstm, mlp, module, resnet18_gn, transformer)
}


def builder(name: str, library: str | None = None) -> Callable[..., Network]:
    """What makes the network: of our own name, or of a name in one of LIBRARIES.

    Raises:
        ConfigError: there is none of this name.
    """
    known: Mapping[str, Callable[..., Network]] = NETWORKS if library is None else LIBRARIES
    key, what = (name, "model") if library is None else (library, "model.library")
    if key not in known:
        raise ConfigError(unknown(what, str(key), known))
    return known[key]


def options_of(name: str, library: str | None = None) -> list[str]:
    """The keys that the model may be given, beside the name; a module's head is its own, with bias or not."""
    given = list(inspect.signature(builder(name, library)).parameters)[1:]
    own = [key for key in given if key not in ("num_outputs", "name", "each_token")]
    return [*own, *(["library"] if library else []), *([] if "num_outputs" in given else ["bias"]), "init"]
