"""Fifteen architectures of today at the size of a test: for benchmarks/architectures.py and plain_loop.py."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.small_vit import SmallViT
from fedpers.core.data import Federation
from fedpers.core.torchvision import import_torchvision
from fedpers.learning.model import Model, build_model
from fedpers.learning.recipes import Recipe

VOCABULARY, LENGTH, CLASSES = 20, 16, 4
TEXT, IMAGE = (LENGTH,), (1, 8, 8)


class Residual(nn.Module):
    """Two convolutions beside their input."""

    def __init__(self, width: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = norm(width), norm(width)

    def forward(self, x: Tensor) -> Tensor:
        """[n, width, h, w] to the same."""
        y = F.relu(self.norm1(self.first(x)))
        return F.relu(x + self.norm2(self.second(y)))


class ResNet(nn.Module):
    """A stem, three residual blocks, and the mean over places under a linear head."""

    def __init__(self, norm: Callable[[int], nn.Module], width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.norm = norm(width)
        self.blocks = nn.Sequential(*[Residual(width, norm) for _ in range(3)])
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 1, h, w] to [n, CLASSES]."""
        y = self.blocks(F.relu(self.norm(self.stem(x))))
        return self.head(y.mean((2, 3)))


class Recurrent(nn.Module):
    """An embedding, a recurrent layer, and its last state under a linear head."""

    def __init__(self, kind: type[nn.RNNBase], width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.rnn = kind(8, width, batch_first=True)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [n, length] to [n, CLASSES]."""
        return self.head(self.rnn(self.embedding(x))[0][:, -1])


class Block(nn.Module):
    """Causal attention and two layers, each after a normalisation and beside its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[n, length, width] to the same."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.proj(mixed)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Embeddings, causal blocks, and the last token, or each, under a linear head."""

    def __init__(
        self, outputs: int = CLASSES, each: bool = False, width: int = 32, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.each = each
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        self.blocks = nn.Sequential(Block(width, 4), Block(width, 4))
        self.drop = nn.Dropout(dropout)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [n, length] to [n, outputs], or [n, length, outputs]."""
        y = self.drop(self.norm(self.blocks(self.embedding(x) + self.places)))
        return self.head(y if self.each else y[:, -1])


def bert(lora: bool = False) -> nn.Module:
    """A small one of transformers; with peft's adapters on its frozen base."""
    import_torchvision()  # which transformers imports, whatever its build
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    drops = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(
        vocab_size=VOCABULARY, num_labels=CLASSES, max_position_embeddings=32, **sizes, **drops
    )
    module = BertForSequenceClassification(config)
    if not lora:
        return module
    from peft import LoraConfig, get_peft_model

    given = {"r": 4, "lora_alpha": 8, "target_modules": ["query", "value"], "lora_dropout": 0.0}
    return get_peft_model(module, LoraConfig(task_type="SEQ_CLS", **given))


class Frozen(nn.Module):
    """A frozen first layer, an adapter and a head."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.base, self.adapter = nn.Linear(64, width).requires_grad_(False), nn.Linear(width, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 1, 8, 8] to [n, CLASSES]."""
        return self.head(F.relu(self.adapter(F.relu(self.base(x.flatten(1))))))


class Odd(nn.Module):
    """Two layers that share one weight, a normalised weight, and a buffer of whole numbers."""

    order: Tensor

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(64, width))
        self.second, self.third = nn.Linear(width, width), nn.Linear(width, width)
        self.third.weight = self.second.weight
        self.register_buffer("order", torch.arange(width).flip(0))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 1, 8, 8] to [n, CLASSES]."""
        y = F.relu(self.first(x.flatten(1)))[:, self.order]
        return self.head(F.relu(self.third(F.relu(self.second(y)))))


@dataclass(frozen=True)
class Architecture:
    """A module, or a network by name, and what it takes."""

    make: Any
    shape: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    task: str = "classification"

    @property
    def outputs(self) -> int:
        """Outputs that its data needs."""
        return VOCABULARY if self.task == "tokens" else CLASSES

    def model(self) -> Model:
        """As a run builds it."""
        given = {"input_shape": self.shape, "num_outputs": self.outputs, "task": self.task}
        if isinstance(self.make, str):
            return build_model(self.make, **given, **self.options)
        recipe = Recipe(
            "model=module", lambda: self.make, (), {}, self.shape, self.outputs, "", **self.options
        )
        network = recipe.network()
        return Model("module", self.task, network.num_features, self.outputs, network, network.head_bias)

    def federation(self, clients: int, train: int, test: int) -> Federation:
        """Made-up samples, the same ones each time; the first client's test samples are public."""
        rng, found = torch.Generator().manual_seed(0), []
        for _ in range(clients):
            n = train + test
            x = torch.rand(n, *self.shape, generator=rng)
            x = (x * VOCABULARY).floor() if self.shape == TEXT else x
            y = torch.randint(CLASSES, (n,), generator=rng)
            y = (x + 1) % VOCABULARY if self.task == "tokens" else y
            found.append({"train": (x[:train], y[:train]), "test": (x[train:], y[train:])})
        made = Federation.from_arrays(found, task=self.task, tokens=self.shape == TEXT)
        return replace(made, public=made.client(0).test)


LORA = {"lora": {"rank": 4, "alpha": 8}}
ARCHITECTURES = {
    "MLP": Architecture("mlp", IMAGE, {"hidden": [32]}),
    "LeNet": Architecture("lenet", (1, 16, 16)),
    "ResNet, GroupNorm": Architecture(partial(ResNet, partial(nn.GroupNorm, 4)), IMAGE),
    "ResNet, BatchNorm": Architecture(partial(ResNet, nn.BatchNorm2d), IMAGE),
    "ViT": Architecture(partial(SmallViT, CLASSES), IMAGE),
    "ViT, LoRA": Architecture(partial(SmallViT, CLASSES), IMAGE, LORA),
    "LSTM": Architecture(partial(Recurrent, nn.LSTM), TEXT),
    "GRU": Architecture(partial(Recurrent, nn.GRU), TEXT),
    "GPT": Architecture(GPT, TEXT),
    "GPT, tokens": Architecture(partial(GPT, VOCABULARY, True), TEXT, task="tokens"),
    "GPT, LoRA": Architecture(GPT, TEXT, LORA),
    "BERT": Architecture(bert, TEXT),
    "BERT, peft": Architecture(partial(bert, True), TEXT),
    "frozen base": Architecture(Frozen, IMAGE),
    "shared weights, buffers": Architecture(Odd, IMAGE),
}
