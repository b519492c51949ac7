"""The server half: a Flower Strategy whose round is a generator of exchanges with clients."""

import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedpers.core.aggregation import aggregate
from fedpers.core.data import Data
from fedpers.core.memory import gc_frozen
from fedpers.core.metrics import tabulate
from fedpers.core.params import Params
from fedpers.core.plan import Plan
from fedpers.core.rng import server_rng
from fedpers.flower.clock import Clock
from fedpers.flower.evaluation import measure_centers
from fedpers.flower.messages import Header
from fedpers.flower.observer import Observer, RoundLog
from fedpers.flower.privacy import NoisedMean
from fedpers.flower.roster import Roster, rows_of
from fedpers.flower.sampling import drawn, reachable
from fedpers.flower.transport import Orders, Replies, connect
from fedpers.flower.unseen_clients import UnseenClientOrder
from fedpers.learning.model import Model, initial_params

log = logging.getLogger("fedpers")

Round = Generator[Orders, Replies, Any]


class PersonalizedStrategy(Strategy, ABC):
    """Base of every method's server half.

    A method gives `init`, `round` and `evaluation_message`. Everything else (messages, failures, evaluation,
    counting) is here, once. `state` is replaced only when a round is complete.
    """

    takes_all: ClassVar[bool] = False  # True: every client is in every round, none is drawn
    not_robust: ClassVar[str] = (  # why no other mean can stand in for `average`; "": it can
        "its server does more with replies than to take their mean"
    )
    one_mean: ClassVar[bool] = True  # False: a round takes several means of what one client sent
    weighs_by_samples: ClassVar[bool] = False  # True: means over clients count by samples; it is checked

    def __init__(self, config: Any, model: Model, plan: Plan = Plan()) -> None:  # noqa: B008
        self.config, self.model, self.plan = config, model, plan
        self.state: Any = None
        self.run_id = uuid.uuid4().hex  # clients that keep their own states keep them under it
        self.rounds_done = 0
        self.clock: Clock | None = None  # of simulated devices
        self.roster = Roster((), torch.zeros(0), {})
        self.row: Mapping[int, int] = {}  # partition id -> place in the roster
        self.unseen: Sequence[int] = ()
        self.round_log = RoundLog()
        self.client_metrics: dict[str, np.ndarray] = {}
        self.holdout: Mapping[str, Data] = {}  # the server's own test samples, by source
        self.public: Data | None = None  # samples that all know and no client has
        self._noised = NoisedMean(plan.privacy, plan.seed)
        self.last_round: int | None = None  # of `start`; the one in which it ended early, once it has
        self._exchange = 0

    # ---- what a method writes -------------------------------------------------------------------

    @abstractmethod
    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> Any:
        """The state before round 1; `params` are the model's initial parameters."""

    @abstractmethod
    def round(self, s: Any, t: int, rng: np.random.Generator) -> Round:
        """One round: yields {client: order}, receives {client: reply}, returns the next state.

        A round whose first exchange has no orders (nobody was drawn) ends there and leaves the state
        as it is. An exchange with orders brings at least one reply, or the run fails.
        """

    @abstractmethod
    def evaluation_message(self, s: Any, k: int) -> Any:
        """What client k needs in order to predict (or None); k may be an unseen client."""

    def explain(self, s: Any) -> dict[str, np.ndarray]:
        """Arrays that explain the state to a human (memberships, collaboration weights, ...)."""
        return {}

    def models(self, s: Any) -> dict[str, Params]:
        """Whole models that can be handed to new users, by name."""
        return {}

    def facts(self, s: Any) -> dict[str, Any]:
        """What the method has chosen by itself (step sizes, ...), for summary.json."""
        return {}

    @property
    def needs(self) -> tuple[str, ...]:
        """Properties that clients are asked for at the start: label_counts."""
        return ()

    @property
    def draws_itself(self) -> str:
        """How the method chooses its clients, where that is not by `sample`: a verb and an object."""
        return ""

    # ---- helpers for methods --------------------------------------------------------------------

    def sample(self, rng: np.random.Generator) -> list[int]:
        """The clients of this round, sorted; see `drawn`."""
        there = reachable(self.roster.ids, self.clock, self.rounds_done + 1)
        return drawn(self.roster.ids, self.num_sampled, self.plan, rng, there)

    def average(
        self, items: Sequence[Params], weights: Sequence[float] | None = None, start: Params | None = None
    ) -> Params:
        """The weighted mean (None: all alike) of what clients sent, or the robust one that the run asks for;
        `start` is what they started from, None for changes."""
        weights = weights or [1.0] * len(items)
        if self.plan.privacy.by_server:
            return self._noised(items, weights, start, self.rounds_done + 1)
        return aggregate(items, weights, start, self.plan.aggregation)

    @property
    def num_sampled(self) -> int:
        """r: clients a round (in expectation, if participation is Bernoulli; at most, if it is a range)."""
        return min(self.plan.clients_per_round or len(self.roster.ids), len(self.roster.ids))

    def num_examples(self, k: int) -> float:
        """n_k, the training samples of client k."""
        return float(self.roster.counts[self.row[k]])

    @property
    def exchanges(self) -> int:
        """Exchanges that the last round had; evaluation counts as the next one."""
        return self._exchange

    def evaluates(self, t: int) -> bool:
        """Whether clients are evaluated after round t."""
        return t == self.last_round or (self.plan.eval_every > 0 and t % self.plan.eval_every == 0)

    def note(self, **values: float) -> None:
        """Add the method's own columns to this round's row of metrics.csv."""
        self.round_log.extra.update({k: float(v) for k, v in values.items()})

    # ---- Flower's interface ---------------------------------------------------------------------

    def start(  # type: ignore[override]
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Any = None,
        should_stop: Callable[[int, Result], bool] | None = None,
        *,
        observer: Observer | None = None,
    ) -> Result:
        """Run rounds up to `num_rounds`, going on from `state` if there is one.

        Arguments are Flower's; `initial_arrays` (a state dict) replaces the model's own initialisation.
        `should_stop(round, result)` or the `observer` may end the run, with an evaluation as in a last round.

        Raises:
            ReplyError: a client failed or answered nonsense (with failures="raise").
        """
        self.last_round = num_rounds
        observer = observer or Observer()
        self.connect(grid, initial_arrays)
        result, arrays, none, self.transport.timeout = Result(), ArrayRecord(), ConfigRecord(), timeout
        if self.rounds_done and observer.should_stop(self.rounds_done):  # it had ended, and was resumed
            self.last_round = self.rounds_done
        with gc_frozen():
            while (t := self.rounds_done + 1) <= self.last_round:
                # messages without names, which would keep them until the next round's replies are there
                arrays, train_metrics = self.aggregate_train(
                    t, self.transport.send(self.configure_train(t, arrays, train_config or none, grid))
                )
                result.train_metrics_clientapp[t] = train_metrics
                observer.on_round(t, self.round_log)
                self._evaluate(t, result, observer)
                if evaluate_fn is not None and (value := evaluate_fn(t, arrays)) is not None:
                    result.evaluate_metrics_serverapp[t] = value
                if observer.should_stop(t) or (should_stop is not None and should_stop(t, result)):
                    before, self.last_round = self.evaluates(t), t
                    if not before:
                        self._evaluate(t, result, observer)
                observer.after_round(t)
        result.arrays = self._exported()
        return result

    def _evaluate(self, t: int, result: Result, observer: Observer) -> None:
        orders = self.configure_evaluate(t, result.arrays, ConfigRecord(), self.transport.grid)
        if orders or self.transport.assessed:
            found = self.aggregate_evaluate(t, self.transport.send(orders)) or MetricRecord()
            result.evaluate_metrics_clientapp[t] = found
            observer.on_evaluation(t, self.client_metrics, self.arrays())

    def connect(self, grid: Grid, initial_arrays: ArrayRecord | None = None) -> None:
        """Take in the roster of `grid`, and make the initial state if there is none."""
        self.transport, everybody = connect(grid, self.plan, self.needs)
        self.roster, self.unseen = everybody.part(self.plan.new_clients)
        self.row = rows_of(self.roster.ids)
        self.transport.clock, self.transport.most = self.clock, self.num_sampled if self.plan.extra else 0
        if self.state is None:
            params = initial_params(self.model, self.plan)
            if initial_arrays:
                params = {k: v.to(params[k]) for k, v in initial_arrays.to_torch_state_dict().items()}
            self.state = self.init(self.roster, params, server_rng(self.plan.seed, 0))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Sequence[Message]:
        """Start round `server_round` and address its first exchange."""
        if self.state is None:
            self.connect(grid, arrays or None)
        self._began, self.round_log, self._exchange = time.perf_counter(), RoundLog(), 0
        self.transport.assessed, self.transport.orders = {}, {}
        rng = server_rng(self.plan.seed, server_round)
        self._generator: Round | None = self.round(self.state, server_round, rng)
        return self._advance(server_round, None)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Send the replies into the round, make its further exchanges, and take its new state."""
        while self._generator is not None:
            answers = self.transport.open(server_round, replies, self.round_log)
            self._exchange += 1
            replies = self.transport.send(self._advance(server_round, answers))
        self.rounds_done = server_round
        self.round_log.seconds = time.perf_counter() - self._began
        return ArrayRecord(), MetricRecord({"seconds": self.round_log.seconds})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Sequence[Message]:
        """Ask the clients to evaluate their personal models, if this round is to be evaluated."""
        self.transport.orders = {}
        if not self.evaluates(server_round) or self.plan.eval_protocol != "all_after":
            return []
        ids: Sequence[int] = self.roster.ids
        if self.plan.eval_clients is not None and self.plan.eval_clients < len(self.roster.ids):
            rng = server_rng(self.plan.seed, 0)
            ids = sorted(ids[i] for i in rng.choice(len(ids), self.plan.eval_clients, False))
        asked = (*ids, *self.unseen)
        return self._address("evaluate", server_round, {k: self.order_to_predict(k) for k in asked})

    def order_to_predict(self, k: int) -> Any:
        """What client k is sent to predict with; a new one may have to train on its own data before."""
        order, epochs = self.evaluation_message(self.state, k), self.plan.new_epochs
        return UnseenClientOrder(order, epochs, self.plan.new_lr) if epochs and k in self.unseen else order

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Collect the clients' metrics, a row a client, in `client_metrics`."""
        rows = self.transport.assessed
        if self.transport.orders:
            rows = self.transport.open(server_round, replies, self.round_log)
        if not rows:
            return None
        self.client_metrics = table = tabulate(rows, self.unseen)
        weights, names = table["test_num"], ("test_loss", "test_accuracy")
        total = max(float(weights.sum()), 1.0)
        return MetricRecord({n: float(np.nansum(weights * table[n]) / total) for n in names})

    def arrays(self) -> dict[str, np.ndarray]:
        """What `explain` gives, and how good each of `models` is on the hold-out of each source."""
        return self.explain(self.state) | measure_centers(self.model, self.models(self.state), self.holdout)

    def summary(self) -> None:
        """Log what this strategy is."""
        log.info("%s %s", type(self).__name__, self.config)

    def _advance(self, t: int, replies: Replies | None) -> Sequence[Message]:
        """Resume the round up to its next exchange, or take the state that it returns."""
        assert self._generator is not None
        try:
            orders = self._generator.send(replies)  # type: ignore[arg-type]  # first None
        except StopIteration as done:
            return self._end_round(done.value)
        if not orders and self._exchange == 0:  # nobody was drawn: the round is over, nothing changed
            return self._end_round(self.state)
        return self._address("train", t, orders)

    def _end_round(self, state: Any) -> Sequence[Message]:
        self.state, self._generator, self.transport.orders = state, None, {}
        return []

    def _address(self, kind: str, t: int, orders: Orders) -> Sequence[Message]:
        assess = self.plan.eval_protocol == "participants_local" and self.evaluates(t)
        header = Header(kind, t, self._exchange, assess, self.run_id, self.model.network.digest)
        return self.transport.address(header, orders, self.round_log)

    def _exported(self) -> ArrayRecord:
        return ArrayRecord({f"{m}.{k}": v for m, p in self.models(self.state).items() for k, v in p.items()})
