"""Modules as users write them, for the tests of own models and of the mistakes in them."""

import random

import numpy as np
import torch
from torch import nn


class CNN(nn.Module):
    """BatchNorm, Dropout, and a head called fc."""

    def __init__(self, num_classes=3, width=4, p=0.5):
        super().__init__()
        self.conv = nn.Conv2d(1, width, 3, padding=1)
        self.bn = nn.BatchNorm2d(width)
        self.drop = nn.Dropout(p)
        self.fc = nn.Linear(width * 16, num_classes)

    def forward(self, x):
        return self.fc(self.drop(torch.relu(self.bn(self.conv(x))).flatten(1)))


class Plain(nn.Module):
    """Nothing that depends on the mode: its clients may be stacked."""

    def __init__(self, num_classes=3):
        super().__init__()
        self.hidden = nn.Linear(16, 8)
        self.out = nn.Linear(8, num_classes)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x.flatten(1))))


class Functional(Plain):
    """Dropout that no layer tells of."""

    def forward(self, x):
        hidden = nn.functional.dropout(torch.tanh(self.hidden(x.flatten(1))), 0.5, self.training)
        return self.out(hidden)


class Softmax(Plain):
    def forward(self, x):
        return super().forward(x).log_softmax(1)


class Tuple(Plain):
    def forward(self, x):
        return super().forward(x), x


class Counting(Plain):
    """Keeps a state that is neither a parameter nor BatchNorm's."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.seen += 1
        return super().forward(x)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(3, 4)
        self.fc = nn.Linear(4, 3, bias=False)
        self.fc.weight = self.embedding.weight

    def forward(self, x):
        return self.fc(self.embedding(x).mean(1))


class NoHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 4)

    def forward(self, x):
        return self.conv(x).flatten(1)


class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        raise RuntimeError("no such layer")


def not_a_module():
    return 3


class Fading(Plain):
    """Counts its passes while it trains."""

    def __init__(self):
        super().__init__()
        self.step = 0

    def forward(self, x):
        self.step += self.training
        return super().forward(x / (1 + self.step))


class Remembering(Plain):
    """Goes on from where the last batch of this size ended."""

    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, x):
        x = x.flatten(1)
        before, self.last = self.last, x.detach()
        return super().forward(x + before if before is not None and len(before) == len(x) else x)


class Widest(Plain):
    """Divides by the largest number it has ever seen: the same for the same inputs, but not after others."""

    def __init__(self):
        super().__init__()
        self.seen = {"largest": 0.0}

    def forward(self, x):
        self.seen["largest"] = max(self.seen["largest"], float(x.abs().max()))
        return super().forward(x / self.seen["largest"])


class ByClass(Plain):
    """Counts on its class."""

    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return super().forward(x)


class NumpyNoise(Plain):
    def forward(self, x):
        return super().forward(x + float(np.random.default_rng().normal()))


class RareDraw(Plain):
    """Draws rarely, from Python's own generator."""

    def forward(self, x):
        return super().forward(x * 0 if random.random() < 1e-9 else x)


class OwnGenerator(Plain):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x):
        return super().forward(x + 1e-9 * torch.rand(1, generator=self.generator))


class Clipped(Plain):
    """Holds its weights in a box, which they leave in training only."""

    def forward(self, x):
        self.hidden.weight.data.clamp_(-1, 1)
        return super().forward(x)


class Renormed(nn.Module):
    def __init__(self, num_classes=3):
        super().__init__()
        self.embedding = nn.Embedding(9, 4, padding_idx=0, max_norm=1.0)
        self.fc = nn.Linear(4, num_classes)

    def forward(self, x):
        return self.fc(self.embedding(x).mean(1))


class InPlace(Plain):
    def forward(self, x):
        return super().forward(x.sub_(0.5))


class Moody(Plain):
    def forward(self, x):
        self.hidden.eval()
        return super().forward(x)


class Caching(Plain):
    """Keeps what depends on the shape alone: that is no memory."""

    def __init__(self):
        super().__init__()
        self.places = None

    def forward(self, x):
        if self.places is None:
            self.places = torch.linspace(-1, 1, x[0].numel())
        return super().forward(x.flatten(1) + self.places)


class Two(Plain):
    """Another output while it trains."""

    def forward(self, x):
        found = super().forward(x)
        return (found, found) if self.training else found


class Halves(Plain):
    """Trains in bfloat16."""

    def __init__(self, kind="bfloat16"):
        super().__init__()
        self.to(getattr(torch, kind))

    def forward(self, x):
        return super().forward(x.to(self.out.weight.dtype)).float()


class Unnamed(nn.Module):
    """Layers that normalise and are called 1, 3 and squeeze; a linear one that is called norm."""

    def __init__(self, num_classes=3):
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.GroupNorm(2, 4)
        )
        self.squeeze, self.norm = ScaleNorm(64), nn.Linear(64, 8)
        self.fc = nn.Linear(8, num_classes)

    def forward(self, x):
        return self.fc(self.norm(self.squeeze(self.block(x).flatten(1))))


class ScaleNorm(nn.Module):
    """A normalisation that torch does not have, as large language models bring their own."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * x / x.norm(dim=1, keepdim=True)


class FrozenBase(nn.Module):
    """A base that is not trained, drawn or of a file, and a buffer that nothing changes."""

    def __init__(self, num_classes=3, width=8, out=8):
        super().__init__()
        self.base = nn.Linear(16, width).requires_grad_(False)
        self.register_buffer("shift", torch.full((1,), 0.5))
        self.middle, self.fc = nn.Linear(8, out), nn.Linear(out, num_classes)

    def forward(self, x):
        features = torch.relu(self.base(x.flatten(1)) + self.shift)
        return self.fc(torch.tanh(self.middle(features[:, :8])))


class FrozenHead(FrozenBase):
    def __init__(self):
        super().__init__()
        self.fc.requires_grad_(False)


class FrozenDigits(nn.Module):
    """All but the head is frozen."""

    def __init__(self):
        super().__init__()
        self.base, self.fc = nn.Linear(64, 4).requires_grad_(False), nn.Linear(4, 10)

    def forward(self, x):
        return self.fc(torch.relu(self.base(x.flatten(1))))


class Pretrained(Plain):
    """The same numbers, head too, whatever torch's generator says."""

    def __init__(self, num_classes=3):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            super().__init__(num_classes)


class PretrainedLora(Pretrained):
    """Adapters, named as others name them, beside a frozen layer."""

    def __init__(self, num_classes=3):
        super().__init__(num_classes)
        self.hidden.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.full((2, 16), 0.1))
        self.lora_B = nn.Parameter(torch.zeros(8, 2))

    def forward(self, x):
        x = x.flatten(1)
        return self.out(torch.tanh(self.hidden(x) + x @ self.lora_A.T @ self.lora_B.T))


class Dropping(Plain):
    """Dropout twice, the second time of fewer numbers."""

    def __init__(self, num_classes=3, p=0.5):
        super().__init__(num_classes)
        self.first, self.second = nn.Dropout(p), nn.Dropout(p)

    def forward(self, x):
        return self.out(self.second(torch.tanh(self.hidden(self.first(x.flatten(1))))))


class Branching(Plain):
    """Looks at values to choose its way."""

    def forward(self, x):
        return super().forward(x if float(x.sum()) > 0 else -x)


class Encoder(nn.Module):
    """Torch's own layer of a transformer, rows of pixels for tokens."""

    def __init__(self, num_classes=3):
        super().__init__()
        self.embed = nn.Linear(4, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.fc = nn.Linear(8, num_classes)

    def forward(self, x):
        return self.fc(self.encoder(self.embed(x[:, 0])).mean(1))


class NormedDigits(nn.Module):
    """BatchNorm and Dropout, of images [1, 16, 16]."""

    def __init__(self, num_classes=3):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4)
        self.drop, self.fc = nn.Dropout(0.2), nn.Linear(256, num_classes)

    def forward(self, x):
        return self.fc(self.drop(torch.relu(self.bn(self.conv(x))).flatten(1)))


class OddTypes(nn.Module):
    """Frozen parameters and buffers of whole numbers, bfloat16, float64 and truth values."""

    def __init__(self, num_classes=3):
        super().__init__()
        self.order = nn.Parameter(torch.arange(255, -1, -1), requires_grad=False)
        self.coarse = nn.Parameter(torch.randn(256, 16).to(torch.bfloat16), requires_grad=False)
        self.exact = nn.Parameter(torch.randn(16, dtype=torch.float64), requires_grad=False)
        self.register_buffer("seen", torch.arange(16) % 3 != 0)
        self.register_buffer("shift", torch.full((16,), 1e-9, dtype=torch.float64))
        self.hidden, self.out = nn.Linear(16, 12), nn.Linear(12, num_classes)

    def forward(self, x):
        x = x.flatten(1)[:, self.order] @ self.coarse.to(x.dtype)
        x = (x.double() * self.exact + self.shift).to(x.dtype) * self.seen
        return self.out(torch.tanh(self.hidden(x)))


class Rows(nn.Module):
    """Rows of pixels in turn."""

    def __init__(self, num_classes=3, between=0.0):
        super().__init__()
        self.rnn = nn.LSTM(4, 8, 1 + (between > 0), batch_first=True, dropout=between)
        self.fc = nn.Linear(8, num_classes)

    def forward(self, x):
        return self.fc(self.rnn(x[:, 0])[0][:, -1])


class Wide(nn.Module):
    """Three layers, the later two of width x width."""

    def __init__(self, num_classes=3, width=1200):
        super().__init__()
        self.one, self.two, self.three = (
            nn.Linear(16, width),
            nn.Linear(width, width),
            nn.Linear(width, width),
        )
        self.fc = nn.Linear(width, num_classes)

    def forward(self, x):
        h = torch.relu(self.one(x.flatten(1)))
        return self.fc(torch.relu(self.three(torch.relu(self.two(h)))))


def missing_operators():
    """As transformers imports a torchvision of another build; a second time it is there."""
    missing_operators.asked = asked = getattr(missing_operators, "asked", 0) + 1
    if asked % 2:
        try:
            raise RuntimeError("operator torchvision::nms does not exist")
        except RuntimeError as error:
            raise ModuleNotFoundError("Could not import module 'Bert'") from error
    return Plain()
