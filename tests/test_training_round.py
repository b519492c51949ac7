"""Momentum kept between rounds, and schedules: against torch's own optimisers and schedulers."""

from dataclasses import replace

import pytest
import torch

from fedpers.checks.contract import stacked_equals_looped
from fedpers.config import compose
from fedpers.core.errors import ConfigError, ReplyError
from fedpers.engines.cohort import Cohort
from fedpers.learning.training_round import StateWithOptimizers, in_round, rate
from fedpers.method import LocalConfig
from tests.methods.helpers import config, contract_case, doubles, network, simulated

FED = doubles(sizes=(5, 8, 12, 7))
MODEL = network(FED, "mlp")
ROUNDS = 5
SGD = LocalConfig(lr=0.2, epochs=2, batch_size=0, momentum=0.9, weight_decay=0.01)
ADAM = LocalConfig(lr=0.05, epochs=3, batch_size=0, optimizer="adam")


def rates_of_torch(cfg):
    """The learning rate of each round as torch's schedulers give it."""
    dummy = torch.optim.SGD([torch.zeros(1)], lr=cfg.lr)
    if cfg.schedule == "cosine":
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(dummy, cfg.horizon)
    else:
        quarter = cfg.horizon // 4
        parts = {"step": [2 * quarter, 3 * quarter], "halve": [quarter, 2 * quarter, 3 * quarter]}
        gamma = {"step": 0.1, "halve": 0.5}.get(cfg.schedule, 1.0)
        scheduler = torch.optim.lr_scheduler.MultiStepLR(dummy, parts.get(cfg.schedule, []), gamma)
    for _ in range(ROUNDS):
        yield scheduler.get_last_lr()[0]
        dummy.step()
        scheduler.step()


class TorchClient:
    """A client whose model and torch optimiser live for the whole run, or the optimiser for a round."""

    def __init__(self, params, data, cfg):
        self.data, self.cfg = data, cfg
        self.params = {k: v.clone().requires_grad_() for k, v in params.items()}
        self.optimiser = self.fresh()

    def fresh(self):
        cfg, leaves = self.cfg, list(self.params.values())
        if cfg.optimizer == "adam":
            return torch.optim.Adam(leaves, lr=cfg.lr, weight_decay=cfg.weight_decay)
        return torch.optim.SGD(leaves, lr=cfg.lr, momentum=cfg.momentum, weight_decay=cfg.weight_decay)

    def train(self, start, lr):
        with torch.no_grad():
            for k, v in start.items():
                self.params[k].copy_(v)
        if not self.cfg.keep_momentum:
            self.optimiser = self.fresh()
        for group in self.optimiser.param_groups:
            group["lr"] = lr
        for _ in range(self.cfg.epochs):
            self.optimiser.zero_grad()
            MODEL.loss(self.params, self.data).backward()
            self.optimiser.step()
        return {k: v.detach().clone() for k, v in self.params.items()}


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("schedule", ["constant", "step", "halve", "cosine"])
@pytest.mark.parametrize("cfg", [SGD, ADAM], ids=["sgd", "adam"])
def test_fedavg_is_averages_of_torch_clients(cfg, schedule, keep):
    """Unequal clients, 4 of 6 a round; who was not asked keeps its momentum, rates go on for all."""
    horizon = 4 if schedule != "constant" else 0
    cfg = replace(cfg, keep_momentum=keep, schedule=schedule, horizon=horizon)
    asked = []

    class Watching(Cohort):
        def handle(self, requests):
            if requests[0].header.kind == "train":
                asked.append([r.k for r in requests])
            return super().handle(requests)

    from fedpers.clients.fedavg import FedAvgClient
    from fedpers.engines.inprocess_grid import InProcessGrid
    from fedpers.engines.memory.client_store import RamStore
    from fedpers.method import Plan
    from fedpers.strategies.fedavg import FedAvg

    method = config("fedavg", local=cfg)
    strategy = FedAvg(method, MODEL, Plan(seed=3, dtype="float64", clients_per_round=4, eval_every=0))
    cohort = Watching(FedAvgClient(method, MODEL), FED, RamStore(), strategy.plan)
    w = {k: v.clone() for k, v in cohort.params.items()}
    strategy.start(InProcessGrid(cohort), num_rounds=ROUNDS)

    clients = {k: TorchClient(w, FED.client(k).train, cfg) for k in range(FED.num_clients)}
    for ids, lr in zip(asked, rates_of_torch(cfg), strict=True):
        n = {k: len(FED.client(k).train) for k in ids}
        trained = {k: clients[k].train(w, lr) for k in ids}
        w = {name: sum(n[k] * trained[k][name] for k in ids) / sum(n.values()) for name in w}
    for name, v in w.items():
        torch.testing.assert_close(strategy.state.params[name], v, rtol=1e-9, atol=1e-11)
    assert all(isinstance(s, StateWithOptimizers) for s in cohort.store.states.values())
    assert bool(cohort.store.states) == keep


@pytest.mark.parametrize("t", range(1, 8))
@pytest.mark.parametrize(("schedule", "last"), [("step", 0.01), ("halve", 0.125), ("cosine", 0)])
def test_after_the_horizon_rates_stay(schedule, last, t):
    cfg = LocalConfig(schedule=schedule, horizon=4)
    assert rate(cfg, 1) == 1 and rate(cfg, max(t, 5)) == pytest.approx(last)
    assert in_round(config("fedalt", v=cfg), t).v.lr == cfg.lr * rate(cfg, t)
    assert in_round(config("fedalt"), t) == config("fedalt")


def test_two_trainings_of_a_method_have_an_optimiser_each():
    """FedAlt: momentum of v is kept, that of u is not."""
    kept = replace(SGD, keep_momentum=True)
    _, cohort = simulated("fedalt", config("fedalt", v=kept, u=SGD), FED, MODEL, 2)
    assert all(len(s.optimisers) == 1 for s in cohort.store.states.values())
    _, cohort = simulated("fedalt", config("fedalt", v=kept, u=kept), FED, MODEL, 2)
    for s in cohort.store.states.values():
        (v, u) = s.optimisers
        assert not v.m.keys() & u.m.keys() and v.m.keys() | u.m.keys() == cohort.params.keys()
        assert float(v.step) == float(u.step) == 4


@pytest.mark.parametrize("name", ["fedavg", "ditto"])
def test_stacks_and_loops_keep_the_same(name):
    cfg = replace(SGD, batch_size=4, keep_momentum=True, schedule="cosine", horizon=6)
    stacked_equals_looped(contract_case(name, config(name, local=cfg)))


@pytest.mark.parametrize("method", ["federico", "pfedme"])
def test_a_method_that_cannot_keep_momentum_says_so(method):
    with pytest.raises(ConfigError, match=r"method\.local\.keep_momentum=true: "):
        compose.load([f"method={method}", "method.local.keep_momentum=true"])


def test_a_method_that_trains_without_minimise_says_so():
    kept = replace(SGD, keep_momentum=True)
    with pytest.raises(ReplyError, match=r"IFCAClient does not train by `minimise`"):
        simulated("ifca", config("ifca", local=kept, averaging="gradient"), FED, MODEL, 1)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("keep_momentum", "true", "there is none; set local.momentum"),
        ("schedule", "step", "local.horizon=0: the rounds of schedule=step"),
        ("horizon", "5", "local.horizon=5"),
    ],
)
def test_settings_that_mean_nothing_are_refused(key, value, text):
    with pytest.raises(ConfigError, match=text):
        compose.load(["method=fedavg", f"method.local.{key}={value}"])


def test_local_of_hyper_all_stands_for_all_local_trainings(tmp_path):
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\n# Mine.\nhyper: {all: {local: {lr: 0.5}, num_canonical: 2}}\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    run = lambda *more: loaded(tmp_path, ["+experiment=mine", *more])  # noqa: E731
    fedalt = run("method=fedalt").method
    assert fedalt.u.lr == fedalt.v.lr == 0.5
    assert run("method=fedalt", "method.u.lr=0.1").method.u.lr == 0.1
    assert run("method=fedavg").method.local.lr == 0.5
    (tmp_path / "experiment" / "mine.yaml").write_text(text.replace("num_canonical", "num_canonicals"))
    with pytest.raises(ConfigError, match=r"hyper\.all\.num_canonicals is unknown; did you mean"):
        run("method=fedavg")


def loaded(folder, overrides):
    """The run with experiments of the user's own."""
    with compose._hydra(str(folder)) as composer:
        return compose._load(composer, list(overrides), [])
