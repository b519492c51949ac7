"""What a user of the unified framework should know before the first round; logged as warnings."""

from collections.abc import Iterator

from fedpers.families.unified.objective import Constants, Settings
from fedpers.families.unified.step_sizes import Rates

SURROGATE = 0.01  # the paper's μ' where a loss is not strongly convex
FAR = 10.0  # L_w over L_β beyond which β_m is seldom moved, or little
FEW = 3.0  # anchors below which control variates have hardly begun


def on_convexity(h: Settings, own: float) -> Iterator[str]:
    """For methods with momentum; `own` is what a client's loss has of μ', its ridge included."""
    if h.mu is None and h.mu_F is None and not own > 0:
        yield (
            f"the loss is not strongly convex (l2={h.l2:g}): momentum counts with mu={SURROGATE:g}, the "
            "paper's surrogate; give method.objective.l2, or another method.objective.mu"
        )
    elif h.mu is not None and h.mu_F is None and h.mu > own:
        yield (
            f"method.objective.mu={h.mu:g} is above {own:g}, which the loss is known to have (l2={h.l2:g}): "
            "momentum may stop short of the optimum; mu=null takes what it has"
        )


def on_blocks(c: Constants) -> Iterator[str]:
    """Where the private block is hardly trained."""
    if c.cL_b and c.cL_w > FAR * c.cL_b:
        yield (
            f"L_w is {c.cL_w / c.cL_b:.0f} times L_β: the private block is seldom drawn, or moves by small "
            "steps, and is far from trained when the shared one is; give more rounds, or less weight to "
            "the shared model (Lambda, reparametrise=true)"
        )


def on_anchors(h: Rates, rounds: int) -> Iterator[str]:
    """Where a run is too short for control variates: a round has 1/(1 - (1-p_w)(1-ρ)) iterations."""
    anchors = rounds * h.rho / (1 - (1 - h.p_w) * (1 - h.rho))
    if anchors < FEW:
        yield (
            f"{rounds} rounds have about {anchors:.1f} new anchors (rho={h.rho:.2g}): control variates help "
            "only after a few; ascd is faster at first (method=asvrcd method.ascd=50 starts with it), or set "
            "rounds or method.rho higher"
        )
