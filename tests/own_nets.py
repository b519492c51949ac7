"""Modules as users write them, for the tests of own models and of the mistakes in them."""

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
