"""Small problems for the unified framework, and coins that fall as a test wants."""

import importlib
from dataclasses import fields, replace

import numpy as np
import torch

from fedpers.core.data import ClientData, Data, Federation
from fedpers.core.plan import Plan
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.client_store import RamStore
from fedpers.families.unified.objective import make_objective, objective_class
from fedpers.learning.model import build_model

CLASSES = {"lsgd": "LSGD", "acd": "ACD", "asvrcd": "ASVRCD", "ascd": "ASCD", "scd": "SCD", "svrcd": "SVRCD"}
COORDINATE = ("scd", "ascd", "svrcd", "asvrcd")
W = "head.weight"


def federation(xs, ys, task="regression", dtype=torch.float64):
    """Clients with the given samples, which are also their test samples."""

    def data(x, y):
        y = torch.as_tensor(np.asarray(y))
        x = torch.as_tensor(np.asarray(x)).to(dtype)
        return Data(x, y.to(dtype) if task == "regression" else y.long(), torch.ones(len(x)).to(x))

    parts = [ClientData(*[data(x, y)] * 3) for x, y in zip(xs, ys, strict=True)]
    sizes = np.array([len(x) for x in xs])
    classes = int(max(np.max(y) for y in ys)) + 1 if task == "classification" else 1
    return Federation(
        "arrays",
        len(xs),
        np.shape(xs[0])[1:],
        classes,
        task,
        parts.__getitem__,
        sizes,
        sizes,
        np.zeros((len(xs), 0)),
    )


def linear_model(fed, **options):
    """A model without hidden layers and bias that starts at 0."""
    name = "linear" if fed.task == "regression" else "logistic"
    options = {"init": "zeros", "bias": False, **options}
    return build_model(
        name, input_shape=fed.input_shape, num_outputs=fed.num_classes, task=fed.task, **options
    )


def quadratics(targets, curvatures=1.0):
    """f'_m(b) = 1/2 Σ_i a_i (b_i - t_mi)², one sample a coordinate."""
    targets = np.asarray(targets, dtype=float)
    d = targets.shape[1]
    root = np.sqrt(np.broadcast_to(curvatures, (d,)) * d / 2)
    return federation([np.diag(root)] * len(targets), [t * root for t in targets])


def golden():
    """f'_m(b) = 1/2 (b - b_m)², b = (0, 2)."""
    return quadratics([[0.0], [2.0]])


def ridge(M=4, n=6, d=3, seed=0, shift=1.0):
    """Linear regressions around different coefficients."""
    rng = np.random.default_rng(seed)
    xs = rng.normal(size=(M, n, d))
    b = rng.normal(size=d) + shift * rng.normal(size=(M, d))
    return federation(xs, [x @ c + 0.3 * rng.normal(size=n) for x, c in zip(xs, b, strict=True)])


def logistic(M=4, n=8, d=3, seed=0, shift=1.0):
    """Binary logistic regressions around different coefficients."""
    rng = np.random.default_rng(seed)
    xs = rng.normal(size=(M, n, d))
    b = rng.normal(size=d) + shift * rng.normal(size=(M, d))
    odds = [1 / (1 + np.exp(-x @ c)) for x, c in zip(xs, b, strict=True)]
    return federation(xs, [rng.random(n) < p for p in odds], task="binary")


def uneven(sizes=(3, 9, 6), d=2, seed=0):
    """Linear regressions of clients with unequal numbers of samples."""
    rng = np.random.default_rng(seed)
    xs = [rng.normal(size=(n, d)) for n in sizes]
    return federation(xs, [x @ rng.normal(size=d) + 0.3 * rng.normal(size=len(x)) for x in xs])


class Script:
    """A generator whose coins are given: 0 falls on heads, 1 on tails; sample positions too."""

    def __init__(self, coins, positions=()):
        self.coins, self.positions = list(coins), list(positions)

    @property
    def bit_generator(self):
        return self

    def random(self, count=None):
        if count is None:
            return self.coins.pop(0)
        if isinstance(count, tuple):
            self.ahead = np.ones(count)  # tails, where no coin is given
            given = self.coins[: self.ahead.size]
            self.ahead.flat[: len(given)], self.coins = given, self.coins[len(given) :]
            self.missing = self.ahead.size - len(given)
            return self.ahead
        return np.array([self.positions.pop(0) for _ in range(count)])

    def advance(self, steps):
        """Coins that were not needed are put back."""
        assert -self.ahead.size <= steps <= -self.missing, "a coin was needed that is not given"
        used, given = self.ahead.size + steps, self.ahead.size - self.missing
        self.coins = self.ahead.ravel()[used:given].tolist() + self.coins


KEYS = ("l2", "mu", "mu_F", "L", "cL", "reparametrise", "lam", "Lambda", "alpha", "predict", "private")
KEYS += ("shared_features", "private_features", "prox_steps", "prox_lr", "center")


def settings(name="mx2", **options):
    """The settings of an objective, from those of the options that it reads."""
    cls = objective_class(name).settings
    found = cls(name=name, **{k: v for k, v in options.items() if k in {f.name for f in fields(cls)}})
    assert found.check() == []
    return found


def make(name, fed, model=None, seed=0, store=None, objective="mx2", **options):
    """(strategy, cohort, grid) of a method, connected."""
    cls = CLASSES[name]
    client = importlib.import_module(f"fedpers.clients.{name}")
    server = importlib.import_module(f"fedpers.strategies.{name}")
    of_f = {k: options.pop(k) for k in KEYS if k in options}
    options = {"report": False, **options, "objective": settings(objective, **of_f)}
    config = getattr(client, f"{cls}Config")(**options)
    assert config.check() == []
    model = model or linear_model(fed)
    plan = Plan(seed=seed, dtype="float64", eval_every=0)
    strategy = getattr(server, cls)(config, model, plan)
    cohort = Cohort(getattr(client, f"{cls}Client")(config, model), fed, store or RamStore(), plan)
    grid = InProcessGrid(cohort)
    strategy.connect(grid)
    return strategy, cohort, grid


def rounds(strategy, grid, upto, script=None, monkeypatch=None):
    """Run up to a round, quietly (no evaluation)."""
    if script is not None:
        monkeypatch.setattr("fedpers.flower.strategy.server_rng", lambda *key: script)
    strategy.plan = replace(strategy.plan, eval_every=0)
    strategy.evaluates = lambda t: False
    strategy.start(grid, num_rounds=upto)


def blocks(strategy, cohort):
    """(w, [β_m]) where the method is evaluated."""
    when = (10**9, 0)
    memories = [cohort.state(k, when) for k in range(strategy.M)]
    return strategy.state.w.y, [cohort.client.block(m) for m in memories]


def objective_of(strategy, fed=None):
    """f of a strategy."""
    return make_objective(strategy.config.objective, strategy.model, strategy.M)


def value(strategy, cohort):
    """F where the method is evaluated."""
    w, betas = blocks(strategy, cohort)
    f = objective_of(strategy)
    with torch.no_grad():
        return float(sum(f.value(w, b, cohort.data(k).train) for k, b in enumerate(betas))) / f.M


def flat(params):
    """All entries in one vector."""
    return np.concatenate([v.reshape(-1).numpy() for v in params.values()] or [np.zeros(0)])
