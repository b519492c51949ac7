"""A vision transformer for 8x8 images, and its pretraining on letters: the base of +experiment=adapters.

    python benchmarks/small_vit.py small_vit.safetensors     (EMNIST letters under $FEDPERS_DATA)

The letters are cut to 24x24 and averaged over 3x3 pixels; training is AdamW on the 26 classes, seed 0.
"""

import argparse

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from fedpers.datasets.config import DataConfig
from fedpers.datasets.federation import load_federation


class Block(nn.Module):
    """Attention and two layers, each after a normalisation and beside its input."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.proj = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[n, tokens, width] to the same."""
        h = self.norm1(x)
        q, k, v = (
            layer(h).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2)
        x = x + self.proj(mixed)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class SmallViT(nn.Module):
    """16 patches of 2x2 pixels, two blocks of width 32: 17 thousand numbers before the head."""

    def __init__(self, num_classes: int = 10, width: int = 32, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.place = nn.Parameter(0.02 * torch.randn(16, width))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(blocks)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 1, 8, 8] or [n, 64] to logits [n, num_classes]."""
        tiles = x.reshape(-1, 4, 2, 4, 2).permute(0, 1, 3, 2, 4).flatten(1, 2).flatten(2)
        return self.head(self.norm(self.blocks(self.embed(tiles) + self.place)).mean(1))


def letters(count: int) -> tuple[Tensor, Tensor]:
    """So many letters [count, 1, 8, 8] and their classes."""
    cfg = DataConfig(name="emnist_letters", partition="iid", num_clients=1, limit=2 * count)
    data = load_federation(cfg, seed=0).client(0).train
    x = F.avg_pool2d(data.x[:count].reshape(-1, 1, 28, 28)[:, :, 2:26, 2:26], 3)
    return x / x.amax((1, 2, 3), keepdim=True).clamp(min=1e-6), data.y[: len(x)]


def pretrain(count: int, epochs: int) -> tuple[SmallViT, float]:
    """The network after training, and its accuracy on letters that it did not see."""
    torch.manual_seed(0)
    x, y = letters(count)
    held, count = len(x) // 10, len(x)
    net = SmallViT(int(y.max()) + 1)
    steps = epochs * ((count - held) // 128)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(epochs):
        for rows in (held + torch.randperm(count - held)).split(128):
            if len(rows) == 128:
                optimizer.zero_grad()
                F.cross_entropy(net(x[rows]), y[rows]).backward()
                optimizer.step()
                schedule.step()
    with torch.no_grad():
        return net, float((net.eval()(x[:held]).argmax(1) == y[:held]).float().mean())


def main() -> None:
    """Write the file of weights, without the head of letters."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--letters", type=int, default=12_000)
    parser.add_argument("--epochs", type=int, default=6)
    given = parser.parse_args()
    net, accuracy = pretrain(given.letters, given.epochs)
    save_file({k: v for k, v in net.state_dict().items() if not k.startswith("head.")}, given.file)
    print(f"{given.file}: accuracy on {given.letters // 10} letters held out {100 * accuracy:.2f} %")


if __name__ == "__main__":
    main()
