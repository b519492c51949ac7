"""An optimiser from outside the package: Lion (Chen et al. 2023), with an instruction of its own."""

from dataclasses import dataclass

from fedpers.learning.optimizers import LocalConfig
from fedpers.learning.step import Instruction, Mix, Moments, Now, Params, Rate, Rule, Vectors


@dataclass(frozen=True)
class Sign(Instruction):
    """dst = sign(src)."""

    dst: str
    src: str

    def run(self, v: Vectors, now: Now) -> Params:
        return {k: x.sign() for k, x in v[self.src].items()}

    def __str__(self) -> str:
        return f"{self.dst} = sign({self.src})"


def lion(cfg: LocalConfig) -> Rule:
    """w -= lr (sign(β₁ m + (1 - β₁) g) + λ w), m = β₂ m + (1 - β₂) g."""
    b1, b2 = cfg.betas
    way = (
        Mix("u", ((b1, "m"), (1 - b1, "g"))),
        Sign("u", "u"),
        Mix("u", ((1.0, "u"), (cfg.weight_decay, "w"))),
    )
    return Rule((*way, Mix("w", ((1.0, "w"), (Rate(), "u"))), Moments("m", b2, 1)), ("m",))


def nothing(cfg: LocalConfig) -> Rule:
    """Keeps a vector that nobody would keep."""
    return Rule((), ("h",))
