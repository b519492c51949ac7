"""A small language model of characters, pretrained on Shakespeare: the base of +experiment=adapters_text.

    python -m benchmarks.small_gpt small_gpt.safetensors     (LEAF's Shakespeare under $FEDPERS_DATA)

It reads the roles that have too few lines for the experiment's federation (data.min_size there, at twice the
stride), so that no client's text was seen before, whatever the seed; training is AdamW on every next
character, seed 0.
"""

import argparse

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.small_vit import Block
from fedpers.datasets import shakespeare
from fedpers.datasets.config import DataConfig

ENOUGH = 40  # training samples of a role from which on it may be a client


class SmallGPT(nn.Module):
    """Two causal blocks of width 32 over 80 characters: 22 thousand numbers below the head."""

    def __init__(self, num_classes: int = 80, width: int = 32, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(80, width)
        self.place = nn.Parameter(0.02 * torch.randn(shakespeare.LENGTH, width))
        self.blocks = nn.Sequential(*[Block(width, heads, causal=True) for _ in range(blocks)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Characters [n, 80] to logits [n, 80, num_classes] of what follows each."""
        return self.head(self.norm(self.blocks(self.embed(x) + self.place)))


def few_lines() -> tuple[Tensor, Tensor, int]:
    """(x, y) [n, 80] of roles with fewer than ENOUGH training samples, shuffled; and how many roles."""
    cfg = DataConfig(name="shakespeare", task="tokens", stride=shakespeare.LENGTH)
    raw, rng = shakespeare.load(cfg, np.random.default_rng(0)), np.random.default_rng(0)
    owner = np.concatenate([raw.owner, raw.test_owner])
    few = np.flatnonzero(np.bincount(raw.owner) < ENOUGH)
    rows = rng.permutation(np.flatnonzero(np.isin(owner, few)))
    x, y = (np.concatenate(parts)[rows] for parts in ((raw.x, raw.test_x), (raw.y, raw.test_y)))
    return torch.from_numpy(x).long(), torch.from_numpy(y).long(), len(np.unique(owner[rows]))


def pretrain(x: Tensor, y: Tensor, epochs: int) -> tuple[SmallGPT, float]:
    """The network after training, and its perplexity on a tenth of the samples that it did not see."""
    torch.manual_seed(0)
    net, held, batch = SmallGPT(), len(x) // 10, 32
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=0.01)
    steps = epochs * ((len(x) - held) // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(epochs):
        for rows in (held + torch.randperm(len(x) - held)).split(batch):
            if len(rows) == batch:
                optimizer.zero_grad()
                F.cross_entropy(net(x[rows]).flatten(0, 1), y[rows].flatten()).backward()
                optimizer.step()
                schedule.step()
    with torch.no_grad():
        return net, float(F.cross_entropy(net(x[:held]).flatten(0, 1), y[:held].flatten()).exp())


def main() -> None:
    """Write the file of weights, without the head: all clients of the experiment start with a new one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--epochs", type=int, default=8)
    given = parser.parse_args()
    x, y, roles = few_lines()
    net, perplexity = pretrain(x, y, given.epochs)
    save_file({k: v for k, v in net.state_dict().items() if not k.startswith("head.")}, given.file)
    print(f"{given.file}: {roles} roles, {len(x)} samples, perplexity {perplexity:.2f} on those held out")


if __name__ == "__main__":
    main()
