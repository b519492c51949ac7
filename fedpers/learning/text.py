"""Networks for numbers of tokens [n, length]: an LSTM, a small transformer, and factors for things."""

from typing import Any

import torch
from torch import Tensor, nn

from fedpers.core.bounds import show
from fedpers.core.errors import ConfigError
from fedpers.learning.layers import Shape
from fedpers.learning.module import ModuleNetwork
from fedpers.learning.recipes import Recipe


class LSTM(nn.Module):
    """Embedding, LSTM layers, and the last step's state, or each one's, under a linear head."""

    def __init__(
        self, vocabulary: int, outputs: int, each: bool, embedding: int, hidden: int, layers: int
    ) -> None:
        super().__init__()
        self.each = each
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [n, K], or [n, length, K], of tokens x [n, length]."""
        states: Tensor = self.lstm(self.embedding(x))[0]
        logits: Tensor = self.head(states if self.each else states[:, -1])
        return logits


class Transformer(nn.Module):
    """Embeddings of tokens and places, encoder layers, and the mean over places under a linear head.

    With outputs for each token a token sees those before it alone, and there is no mean.
    """

    mask: Tensor | None

    def __init__(
        self, vocabulary: int, outputs: int, each: bool, length: int, width: int, heads: int, layers: int,
        dropout: float,
    ) -> None:  # fmt: skip
        super().__init__()
        later = torch.full((length, length), -torch.inf).triu(1) if each else None
        self.register_buffer("mask", later, persistent=False)
        self.embedding = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [n, K], or [n, length, K], of tokens x [n, length]."""
        states: Tensor = self.encoder(self.embedding(x) + self.places, mask=self.mask)
        logits: Tensor = self.head(states.mean(1) if self.mask is None else states)
        return logits


class Factors(nn.Module):
    """A vector a thing, under a linear head with one output: a person's vector."""

    def __init__(self, vocabulary: int, outputs: int, width: int) -> None:
        super().__init__()
        self.things = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.things.weight, std=width**-0.5)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [n, 1] of things by number x [n, 1]."""
        logits: Tensor = self.head(self.things(x[:, 0]))
        return logits


def lstm(
    shape: Shape,
    *,
    num_outputs: int,
    each_token: bool = False,
    vocabulary: int = 80,
    embedding: int = 8,
    hidden: int = 256,
    layers: int = 2,
) -> ModuleNetwork:
    """LEAF's LSTM for Shakespeare: 80 characters, embedding 8, two layers of 256."""
    _check_sizes(vocabulary=vocabulary, embedding=embedding, hidden=hidden, layers=layers)
    args = (vocabulary, num_outputs, each_token, embedding, hidden, layers)
    return _network("lstm", LSTM, shape, num_outputs, args)


def transformer(
    shape: Shape,
    *,
    num_outputs: int,
    each_token: bool = False,
    vocabulary: int = 80,
    width: int = 64,
    heads: int = 4,
    layers: int = 2,
    dropout: float = 0.1,
) -> ModuleNetwork:
    """A small encoder with learned places; `width` must be a multiple of `heads`."""
    _check_sizes(vocabulary=vocabulary, width=width, heads=heads, layers=layers)
    if width % heads:
        raise ConfigError(f"model.heads is {heads}; it must divide model.width={width}")
    if not 0 <= dropout < 1:
        raise ConfigError(f"model.dropout is {dropout}; it must be in [0, 1)")
    args = (vocabulary, num_outputs, each_token, shape[0], width, heads, layers, dropout)
    return _network("transformer", Transformer, shape, num_outputs, args)


def factors(shape: Shape, *, num_outputs: int, vocabulary: int = 1000, width: int = 16) -> ModuleNetwork:
    """Matrix factorisation: a vector a thing, and the head is the person's."""
    _check_sizes(vocabulary=vocabulary, width=width)
    if tuple(shape) != (1,):
        raise ConfigError(
            f"model=factors takes the number of one item for each sample; the data has {tuple(shape)}"
        )
    return _network("factors", Factors, shape, num_outputs, (vocabulary, num_outputs, width))


def _check_sizes(**sizes: Any) -> None:
    for name, value in sizes.items():
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"model.{name} is {show(value)}; it must be a whole number, 1 or more")


def _network(name: str, kind: Any, shape: Shape, outputs: int, args: tuple[Any, ...]) -> ModuleNetwork:
    if len(shape) != 1:
        raise ConfigError(f"model={name} takes texts, [length] tokens a sample; the data has {tuple(shape)}")
    return Recipe(f"model={name}", _with, (kind, *args), {}, shape, outputs, "head").network()


class _with:
    def __init__(self, kind: Any, *args: Any) -> None:
        self.kind, self.args = kind, args

    def __call__(self) -> Any:
        return self.kind(*self.args)
