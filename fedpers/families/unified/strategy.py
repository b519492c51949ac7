"""Server half of what the optimisers of the unified framework share: coins, constants, measurement.

A round of theirs ends at the next communication. The server draws the coins of one iteration after
the other until one asks for it; the iterations before are β-iterations, which every client makes
alone. How the shared variables move meanwhile is known to both sides (the functions of a method's
client half), so nothing is sent for it.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar

import numpy as np
import torch

from fedpers.core.params import Params, mean
from fedpers.core.pytree import record
from fedpers.families.unified.messages import (
    Anchor,
    BlockGradients,
    Counts,
    Describe,
    Iterate,
    Measure,
    Point,
    SharedBlock,
    spent,
)
from fedpers.families.unified.objective import Base, Constants, Objective
from fedpers.families.unified.objectives import make_objective
from fedpers.families.unified.step_sizes import Rates, coordinate_rates
from fedpers.flower.roster import Roster
from fedpers.flower.strategy import PersonalizedStrategy, Round
from fedpers.learning.model import initial_params

Steps = Generator[dict[int, Any], dict[int, Any], Any]


@record("unified.State")
class State:
    """The server's variables of the w-block, what the theory gives, and what was spent."""

    w: Any
    rates: Any  # None before round 1
    counts: Counts


class BlockStrategy(PersonalizedStrategy, ABC):
    """Server half of an optimiser of the unified framework. Takes every client in every round."""

    config: Any
    variables: ClassVar[Any] = Point  # record of a block's sequences, the main one called y
    per_step: ClassVar[int] = 1  # sample gradients of a step; 0: the whole gradient
    momentum: ClassVar[bool] = False
    takes_all = True

    # ---- what an optimiser writes ---------------------------------------------------------------

    @abstractmethod
    def iterate(self, s: State, rng: np.random.Generator) -> Steps:
        """The iterations of one round; ends with the new state."""

    def rates(self, c: Constants, n: float) -> Any:
        """Step sizes and probabilities for constants c and n samples a client: the theory's, or those set."""
        return chosen_rates(self.config, c, n, self.momentum)

    # ---- Flower's round -------------------------------------------------------------------------

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """All sequences start at the model's initial parameters."""
        return State(self.variables.start(self.objective.start(params)[0]), None, Counts())

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """Iterations up to the next communication; before the first round, the constants."""
        if s.rates is None:
            s = yield from self._prepare(s)
        s = yield from self.iterate(s, rng)
        self.note(**{f.name: getattr(s.counts, f.name) for f in fields(s.counts)})
        if self.config.report and self.evaluates(t):
            zero = self.roster.num_examples.new_zeros(())
            found = yield self.everyone(Measure(s.w.y, self.M, zero))
            self.note(objective=sum(float(v.value) for v in found.values()) / len(found))
        return s

    def evaluation_message(self, s: State, k: int) -> SharedBlock:
        """The shared block."""
        return SharedBlock(s.w.y, self.M)

    def models(self, s: State) -> dict[str, Params]:
        """The shared block as a model, u = s·w."""
        return {"shared": self.objective.shared(s.w.y)} if self.objective.has_w else {}

    # ---- helpers --------------------------------------------------------------------------------

    @property
    def M(self) -> int:
        """The number of clients."""
        return len(self.roster.ids)

    @property
    def objective(self) -> Objective:
        """f_m in this federation."""
        return make_objective(self.config, self.model, self.M)

    def everyone(self, order: Any) -> dict[int, Any]:
        """The same order for all clients."""
        return dict.fromkeys(self.roster.ids, order)

    def first_anchor(self, s: State) -> Anchor:
        """The order by which anchors are set before the first iteration."""
        w = s.w.y
        return Anchor(w, self.M, {}, w)

    def next_event(self, s: State, rng: np.random.Generator, p_w: float, rho: float = 0.0) -> Iterate:
        """Flip the coins of one iteration after the other until one of them asks to communicate.

        After `max_local` iterations the round ends without: coins have no state, so the law of the
        iterations is the same.
        """
        cap, T, zeta, refresh = self.config.max_local, 0, False, False
        while cap > T:
            zeta, refresh = rng.random() < p_w, rho > 0 and rng.random() < rho
            if zeta or refresh:
                break
            T += 1
        count = T + 1 if getattr(self.config, "shared_index", False) else 0
        draws, like = torch.from_numpy(rng.random(count)), s.w.y
        g, g_v = like if zeta else {}, like if refresh else {}
        return Iterate(s.w, T, bool(zeta), bool(refresh), s.rates, self.M, draws, g, g_v)

    def done(self, s: State, w: Any, order: Iterate | Anchor) -> State:
        """The state after an order was carried out."""
        cost = spent(order, round(self.mean_samples), self.per_step, self.objective)
        return State(w, s.rates, s.counts.plus(cost))

    @property
    def mean_samples(self) -> float:
        """n; the theory has the same n on every client."""
        return float(self.roster.num_examples.mean())

    def point(self, client: Any, states: Sequence[Any]) -> tuple[Params, list[Params]]:
        """(w, β of every client) where the method is evaluated (see optimality_gap.py)."""
        return self.state.w.y, [client.block(m) for m in states]

    def constants(self, told: Sequence[Base]) -> Constants:
        """The constants of F from those of the clients' losses, but for those that are set."""
        c = self.config
        given = [c.mu, c.L, c.L, c.cL, c.cL]
        if None in given:
            worst = [max(float(getattr(b, f.name)) for b in told) for f in fields(Base)[1:]]
            found = [min(float(b.mu) for b in told), *worst]
            given = [f if g is None else g for f, g in zip(found, given, strict=True)]
        constants = self.objective.constants(Base(*given))
        w, beta = self.objective.start(initial_params(self.model, self.plan))
        if not w:
            constants = replace(constants, L_w=0.0, cL_w=0.0)
        if not beta:
            constants = replace(constants, L_b=0.0, cL_b=0.0)
        if c.mu_F is not None:
            constants = replace(constants, mu=c.mu_F)
        return constants

    def _prepare(self, s: State) -> Steps:
        c, told = self.config, []
        if None in (c.mu, c.L, c.cL):
            zero = self.roster.num_examples.new_zeros(())
            replies = yield self.everyone(Describe(self.M, Base(*[zero] * 5)))
            told = [r.base for r in replies.values()]
        return replace(s, rates=self.rates(self.constants(told), self.mean_samples))


def average(replies: dict[int, BlockGradients], field: str = "g") -> Params:
    """The plain mean 1/M Σ_m, never weighted by samples."""
    return mean([getattr(r, field) for r in replies.values()])


def chosen_rates(config: Any, c: Constants, n: float, momentum: bool) -> Rates:
    """The theory's rates, with those that the configuration sets in their place."""
    rates = coordinate_rates(
        c,
        n,
        p_w=config.p_w,
        eta=config.eta,
        momentum=momentum,
        rho=getattr(config, "rho", None),
        refresh=getattr(config, "refresh", "w"),
    )
    late = ("theta_1", "theta_2", "gamma", "nu", "theta")
    own = {k: getattr(config, k) for k in late if getattr(config, k, None) is not None}
    return replace(rates, **own)
