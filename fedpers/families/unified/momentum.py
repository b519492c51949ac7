"""A block with momentum: what accelerated methods without control variates (ACD, ASCD) share."""

from fedpers.core.params import Params, blend
from fedpers.core.pytree import record
from fedpers.families.unified.step_sizes import ACDRates, Rates


@record("unified.Sequences")
class Sequences:
    """Main and momentum sequence of one block: w's on the server, β_m's on client m."""

    y: Params
    z: Params

    @classmethod
    def start(cls, block: Params) -> "Sequences":
        """Both at the same point."""
        return cls(block, block)


def middle(a: Sequences, h: ACDRates | Rates) -> Params:
    """x = (1-θ) y + θ z, the point at which gradients are taken."""
    return blend(a.y, a.z, h.theta)
