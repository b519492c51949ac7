"""Server half of what the optimisers of the unified framework share: coins, constants, measurement.

A round of theirs ends at the next communication. The server draws the coins of one iteration after
the other until one asks for it; the iterations before are β-iterations, which every client makes
alone. How the shared variables move meanwhile is known to both sides (the functions of a method's
client half), so nothing is sent for it.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, astuple, fields, replace
from typing import Any, ClassVar

import numpy as np

from fedpers.core.errors import ConfigError
from fedpers.core.params import Params, mean
from fedpers.core.pytree import record
from fedpers.core.rng import first_success
from fedpers.families.unified.advice import SURROGATE, on_anchors, on_blocks, on_convexity
from fedpers.families.unified.messages import (
    Anchor,
    Block,
    BlockGradients,
    Counts,
    Describe,
    Iterate,
    Measure,
    SharedBlock,
    spent,
)
from fedpers.families.unified.objective import Base, Constants, Objective, Settings, make_objective
from fedpers.families.unified.step_sizes import Rates, coordinate_rates
from fedpers.flower.roster import Roster
from fedpers.flower.strategy import PersonalizedStrategy, Round
from fedpers.learning.model import initial_params

log = logging.getLogger("fedpers")
Steps = Generator[dict[int, Any], dict[int, Any], Any]


@record("unified.State")
class State:
    """The server's variables of the w-block, what the theory gives, and what was spent."""

    w: Block
    constants: Constants | None  # of F; None before round 1
    rates: Any  # None before round 1
    counts: Counts


class BlockStrategy(PersonalizedStrategy, ABC):
    """Server half of an optimiser of the unified framework. Takes every client in every round."""

    config: Any
    keeps: ClassVar[str] = "y"  # as the client half has it
    per_step: ClassVar[int] = 1
    momentum: ClassVar[bool] = False  # its rates need μ > 0
    takes_all = True
    not_robust = "its theory needs the exact mean of gradients and control variates"

    # ---- what an optimiser writes ---------------------------------------------------------------

    @abstractmethod
    def iterate(self, s: State, rng: np.random.Generator) -> Steps:
        """The iterations of one round; ends with the new state."""

    def rates(self, c: Constants, n: float) -> Any:
        """Step sizes and probabilities for constants c and n samples a client: the theory's, or those set."""
        return chosen_rates(self.config, c, n, self.momentum)

    def own_rates(self) -> Any:
        """Rates that no constant of F goes into, so that clients need not be asked for theirs; or None."""
        return None

    # ---- Flower's round -------------------------------------------------------------------------

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """All sequences start at the model's initial parameters."""
        self._check_count(roster)
        w = self.objective.start(params)[0]
        return State(Block(**dict.fromkeys(set(self.keeps) - {"G"}, w)), None, None, Counts())

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """Iterations up to the next communication; before the first round, the constants."""
        if s.rates is None:
            s = yield from self._prepare(s)
        s = yield from self.iterate(s, rng)
        self.note(**{f.name: getattr(s.counts, f.name) for f in fields(s.counts)})
        if self.config.report and self.evaluates(t):
            zero = self.roster.num_examples.new_zeros(())
            found = yield self.everyone(Measure(self.at(s), self.M, zero))
            self.note(objective=sum(float(v.value) for v in found.values()) / len(found))
        return s

    def at(self, s: State) -> Params:
        """w where the method is evaluated."""
        return s.w.y

    def evaluation_message(self, s: State, k: int) -> SharedBlock:
        """The shared block."""
        return self.to([k], SharedBlock(self.at(s), self.M))[k]  # type: ignore[no-any-return]

    def models(self, s: State) -> dict[str, Params]:
        """The shared block as a model, u = s·w."""
        return {"shared": self.objective.shared(self.at(s))} if self.objective.has_w else {}

    # ---- helpers --------------------------------------------------------------------------------

    @property
    def M(self) -> int:
        """The number of clients."""
        return len(self.roster.ids)

    @property
    def objective(self) -> Objective:
        """f_m in this federation."""
        return make_objective(self.config.objective, self.model, self.M)

    def everyone(self, order: Any) -> dict[int, Any]:
        """The same order for all clients."""
        return self.to(self.roster.ids, order)

    def to(self, ids: Sequence[int], order: Any) -> dict[int, Any]:
        """The same order for these clients, who are told their m where each has settings of its own."""
        if not self.config.objective.count:
            return dict.fromkeys(ids, order)
        return {k: replace(order, m=self.row[k]) for k in ids}

    def _check_count(self, roster: Roster) -> None:
        count, M = self.config.objective.count, len(roster.ids)
        if count and (count != M or self.unseen):
            raise ConfigError(
                f"method.objective.alpha: has {count} numbers, and {M} clients train"
                + f" beside {len(self.unseen)} new ones" * bool(self.unseen)
                + "; give one for each that trains and set new_clients=0, or give one number for all"
            )

    def first_anchor(self, s: State) -> Steps:
        """The anchor, where all are, and F's gradient there; once, as only anchors take whole ones."""
        if s.counts.beta_grads:
            return s
        order = Anchor(s.w.y, self.M, {}, s.w.y)
        replies = yield self.everyone(order)
        start = dict.fromkeys(set(self.keeps) - {"G"}, s.w.y)
        return self.done(s, Block(**start, G=average(replies, "g_v")), order)

    def next_event(self, s: State, rng: np.random.Generator, p_w: float, rho: float = 0.0) -> Iterate:
        """Flip the coins of one iteration after the other until one of them asks to communicate.

        After `max_local` iterations the round ends without: coins have no state, so the law of the
        iterations is the same.
        """
        odds = (p_w, rho) if rho > 0 else (p_w,)
        T, (zeta, *others) = first_success(rng, odds, self.config.max_local)
        refresh = any(others)
        shared = getattr(self.config, "shared_index", False)
        seed = int(rng.integers(2**31)) if shared else None
        g, g_v = s.w.y if zeta else {}, s.w.y if refresh else {}
        return Iterate(s.w, T, zeta, refresh, s.rates, self.M, seed, g, g_v)

    def done(self, s: State, w: Block, order: Iterate | Anchor) -> State:
        """The state after an order was carried out."""
        cost = spent(order, round(self.mean_samples), self.per_step, self.objective)
        return State(w, s.constants, s.rates, s.counts.plus(cost))

    @property
    def mean_samples(self) -> float:
        """Samples of a client, for what was spent; the theory's n is the largest client's."""
        return float(self.roster.num_examples.mean())

    def point(self, client: Any, states: Sequence[Any]) -> tuple[Params, list[Params]]:
        """(w, β of every client) where the method is evaluated (see optimality_gap.py)."""
        return self.at(self.state), [client.block(m) for m in states]

    def constants(self, told: Sequence[Base]) -> Constants:
        """The constants of F from those of the clients' losses, but for those that are set."""
        h = self.config.objective
        mu = _own_mu(h, told) if h.mu is None else h.mu
        L_w, L_b = (_largest(told, k) if h.L is None else h.L for k in ("L_w", "L_b"))
        cL_w, cL_b = (_largest(told, k) if h.cL is None else h.cL for k in ("cL_w", "cL_b"))
        c = self._worst(Base(mu or SURROGATE * self.momentum, L_w, L_b, cL_w, cL_b))
        w, beta = self.objective.start(initial_params(self.model, self.plan))
        if not w:
            c = replace(c, L_w=0.0, cL_w=0.0)
        if not beta:
            c = replace(c, L_b=0.0, cL_b=0.0)
        return c if h.mu_F is None else replace(c, mu=h.mu_F)

    def _worst(self, base: Base) -> Constants:
        f = self.objective
        each = [f.of(m).constants(base) for m in range(self.config.objective.count or 1)]
        least, *largest = zip(*(astuple(c) for c in each), strict=True)
        return Constants(min(least), *map(max, largest))

    def facts(self, s: State) -> dict[str, Any]:
        """Constants of F, and what the theory made of them."""
        known = [asdict(v) for v in (s.constants, s.rates) if v is not None]
        given = {k: v for values in known for k, v in values.items() if v is not None}
        return {"theory": given} if given else {}

    def _prepare(self, s: State) -> Steps:
        if (own := self.own_rates()) is not None:
            return replace(s, rates=own)
        h, told = self.config.objective, []
        if None in (h.mu, h.L, h.cL):
            zero = self.roster.num_examples.new_zeros(())
            replies = yield self.everyone(Describe(self.M, Base(*[zero] * 5)))
            told = [r.base for r in replies.values()]
        c = self.constants(told)
        rates = self.rates(c, float(self.roster.num_examples.max()))
        for text in self._advice(_own_mu(h, told), c, rates):
            log.warning(text)
        return replace(s, constants=c, rates=rates)

    def _advice(self, own_mu: float, c: Constants, rates: Any) -> Iterator[str]:
        yield from on_convexity(self.config.objective, own_mu) if self.momentum else ()
        yield from on_blocks(c)
        yield from on_anchors(rates, self.anchored(self.last_round or 0)) if "v" in self.keeps else ()

    def anchored(self, rounds: int) -> int:
        """How many of a run's rounds have control variates, where a method has any."""
        return rounds


def _own_mu(h: Settings, told: Sequence[Base]) -> float:
    """The least μ' of the clients' losses; their ridge, where they were not asked."""
    return min((float(b.mu) for b in told), default=h.l2)


def _largest(told: Sequence[Base], name: str) -> float:
    return max(float(getattr(b, name)) for b in told)


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
