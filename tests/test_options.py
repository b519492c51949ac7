"""Options of local training against torch's own optimisers, schedulers and losses, over several rounds.

Each client of the reference has a torch optimiser a round, or one for the run where moments are kept.
"""

import os
from dataclasses import replace

import pytest
import torch

from fedpers.app.run import execute
from fedpers.checks.case import same
from fedpers.clients.fedavg import FedAvgClient, Weights
from fedpers.config import compose
from fedpers.core.errors import ConfigError
from fedpers.core.rng import Stream
from fedpers.engines.cohort import Cohort
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig
from fedpers.flower.messages import Header, Request
from fedpers.learning.local_training import minimise
from fedpers.learning.losses import proximal
from fedpers.learning.minibatches import minibatches
from fedpers.learning.optimizers import LocalConfig, program
from fedpers.method import Plan
from fedpers.results import checkpoint
from tests.methods.helpers import config, doubles, network

FED = doubles(num_clients=4, sizes=(5, 8, 13, 7))
MODEL = network(FED, "mlp")
SEED, ROUNDS, WEIGHTS = 3, 3, (0.5, 2.0, 1.0)
BASE = LocalConfig(lr=0.05, epochs=2, batch_size=4)
OPTIONS = {
    "adamw": dict(optimizer="adamw", weight_decay=0.1),
    "nesterov": dict(optimizer="nesterov", momentum=0.9, weight_decay=0.01),
    "betas": dict(optimizer="adam", betas=(0.7, 0.9), eps=1e-3),
    "clip": dict(clip_norm=0.1, lr=0.5),
    "clip_momentum": dict(clip_norm=0.2, momentum=0.9, weight_decay=0.1),
    "smoothing": dict(label_smoothing=0.2),
    "weights": dict(class_weights=WEIGHTS),
    "smooth_weights": dict(class_weights=WEIGHTS, label_smoothing=0.1, optimizer="adamw"),
    "warmup_steps": dict(warmup_steps=4, momentum=0.5),
    "cosine_steps": dict(step_schedule="cosine"),
    "both_steps": dict(warmup_steps=3, step_schedule="cosine", optimizer="adam"),
    "warmup": dict(warmup=3, schedule="cosine", horizon=4),
    "micro": dict(micro_batch=3),
    "all": dict(optimizer="adamw", clip_norm=0.3, micro_batch=2, warmup_steps=2, label_smoothing=0.1),
    "kept": dict(optimizer="adamw", keep_momentum=True, clip_norm=1.0),
    "own": dict(optimizer="tests.own_optimizer:lion", betas=(0.9, 0.99), weight_decay=0.1, lr=0.01),
}
RUNNERS = {"loop": RunnerConfig("loop"), "stack": RunnerConfig("stack"), "workers": RunnerConfig(workers=2)}
LINUX = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")


class Lion(torch.optim.Optimizer):
    """The authors' algorithm, in torch's way."""

    def __init__(self, params, cfg):
        super().__init__(params, {"lr": cfg.lr})
        self.cfg = cfg

    def step(self):
        (b1, b2), (group,) = self.cfg.betas, self.param_groups
        for p in group["params"]:
            m = self.state[p].setdefault("m", torch.zeros_like(p))
            u = (b1 * m + (1 - b1) * p.grad).sign() + self.cfg.weight_decay * p
            p.data.add_(u.detach(), alpha=-group["lr"])
            m.mul_(b2).add_(p.grad, alpha=1 - b2)


def optimiser_of(cfg, leaves):
    if cfg.optimizer.endswith("lion"):
        return Lion(leaves, cfg)
    if cfg.optimizer in ("adam", "adamw"):
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[cfg.optimizer]
        return kind(leaves, lr=cfg.lr, betas=cfg.betas, eps=cfg.eps, weight_decay=cfg.weight_decay)
    nesterov = cfg.optimizer == "nesterov"
    how = {"momentum": cfg.momentum, "weight_decay": cfg.weight_decay, "nesterov": nesterov}
    return torch.optim.SGD(leaves, lr=cfg.lr, **how)


def schedulers_of(cfg, optimiser, steps):
    found, k = [], cfg.warmup_steps
    if k:
        found.append(torch.optim.lr_scheduler.LinearLR(optimiser, 1 / k, total_iters=k - 1))
    if cfg.step_schedule == "cosine":
        found.append(torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps))
    return found


class Reference:
    """One client, by torch alone."""

    def __init__(self, k, start, cfg):
        self.k, self.data, self.cfg = k, FED.client(k).train, cfg
        self.w = {n: v.clone().requires_grad_() for n, v in start.items()}
        self.optimiser = optimiser_of(cfg, list(self.w.values()))

    def train(self, t):
        cfg = self.cfg
        if not cfg.keep_momentum:
            self.optimiser = optimiser_of(cfg, list(self.w.values()))
        for group in self.optimiser.param_groups:
            group["lr"] = group["initial_lr"] = cfg.lr * rate_of_round(cfg, t)
        weight = torch.tensor(cfg.class_weights, dtype=torch.float64) if cfg.class_weights else None
        lost = torch.nn.CrossEntropyLoss(weight, label_smoothing=cfg.label_smoothing)
        batches = list(minibatches(self.data, Stream(SEED, t, self.k), cfg))
        schedulers = schedulers_of(cfg, self.optimiser, len(batches))
        for batch in batches:
            real = batch.mask > 0
            self.optimiser.zero_grad()
            lost(MODEL(self.w, batch.x[real]), batch.y[real]).backward()
            if cfg.clip_norm:
                torch.nn.utils.clip_grad_norm_(list(self.w.values()), cfg.clip_norm)
            self.optimiser.step()
            for scheduler in schedulers:
                scheduler.step()
        return {k: v.detach().clone() for k, v in self.w.items()}


def rate_of_round(cfg, t):
    """Linear growth over `warmup` rounds, times the cosine over `horizon`."""
    cosine = (
        (1 + torch.cos(torch.tensor(torch.pi * (t - 1) / cfg.horizon)).item()) / 2 if cfg.horizon else 1.0
    )
    return cosine * (min(1.0, t / cfg.warmup) if cfg.warmup else 1.0)


def clients_of(cfg, runner):
    client = FedAvgClient(config("fedavg", local=cfg), MODEL)
    return Cohort(client, FED, RamStore(), Plan(seed=SEED, dtype="float64"), runner)


def in_rounds(cohort):
    """Each client's model after each round, from its own of the round before: nobody averages."""
    w, found = dict.fromkeys(range(FED.num_clients), cohort.params), []
    for t in range(1, ROUNDS + 1):
        answers = cohort.handle([Request(k, Weights(w[k]), Header("train", t, 0)) for k in w])
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        w = {k: a.body.params for k, a in zip(w, answers, strict=True)}
        found.append(w)
    return found


ALONE = [(option, runner) for option in OPTIONS for runner in ("loop", "stack")]
WORKERS = [pytest.param(option, "workers", marks=LINUX) for option in ("adamw", "all", "kept", "own")]


@pytest.mark.parametrize(("option", "runner"), [*ALONE, *WORKERS])
def test_it_is_torchs(option, runner):
    cfg = replace(BASE, **OPTIONS[option])
    assert not cfg.check()
    cohort = clients_of(cfg, RUNNERS[runner])
    try:
        rounds = in_rounds(cohort)
    finally:
        cohort.close()
    assert runner != "stack" or not cohort.runner.looped
    references = [Reference(k, cohort.params, cfg) for k in range(FED.num_clients)]
    for t, found in enumerate(rounds, 1):
        for reference in references:
            wanted = reference.train(t)
            for name, v in wanted.items():
                torch.testing.assert_close(found[reference.k][name], v, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("option", OPTIONS)
def test_it_matters(option):
    """Each option changes the result: none is read and forgotten."""
    (plain, *_), (found, *_) = (
        in_rounds(clients_of(c, RUNNERS["loop"]))
        for c in (replace(BASE, lr=OPTIONS[option].get("lr", 0.05)), replace(BASE, **OPTIONS[option]))
    )
    away = max(float((plain[2][k] - found[2][k]).abs().max()) for k in plain[2])
    assert away > 1e-6 or option == "micro"


@pytest.mark.ray
def test_on_ray_it_is_the_same(tmp_path):
    """An optimiser from outside, with other options beside it."""
    options = OPTIONS["own"] | dict(clip_norm=0.3, micro_batch=4, label_smoothing=0.1, warmup_steps=2)
    given = [f"method.local.{k}={list(v) if isinstance(v, tuple) else v}" for k, v in options.items()]
    given += ["method=fedavg", "data.partition=iid", "data.num_clients=4", "rounds=2"]
    for engine in ("inprocess", "ray"):
        execute(compose.load([*given, f"engine={engine}"]), tmp_path / engine)
    (_, ours), (_, theirs) = (checkpoint.load(tmp_path / engine, None) for engine in ("inprocess", "ray"))
    assert same(ours, theirs)


def test_a_proximal_term_is_in_the_gradient_that_is_clipped():
    cfg = replace(BASE, clip_norm=0.1, lr=0.5)
    data, start = FED.client(2).train, {k: v.double() for k, v in MODEL.init(0).items()}
    center = {k: v + 0.3 for k, v in start.items()}
    loss = proximal(MODEL.loss, 0.7, center)
    with torch.no_grad():
        found = minimise(loss, start, data, Stream(SEED, 1, 2), cfg)
    w = {k: v.clone().requires_grad_() for k, v in start.items()}
    sgd = torch.optim.SGD(list(w.values()), lr=0.5)
    for batch in minibatches(data, Stream(SEED, 1, 2), cfg):
        sgd.zero_grad()
        (MODEL.loss(w, batch) + 0.35 * sum(((w[k] - center[k]) ** 2).sum() for k in w)).backward()
        torch.nn.utils.clip_grad_norm_(list(w.values()), 0.1)
        sgd.step()
    for k, v in w.items():
        torch.testing.assert_close(found[k], v.detach(), rtol=1e-7, atol=1e-9)


def test_a_program_reads_like_its_paper():
    assert str(program(LocalConfig(optimizer="tests.own_optimizer:lion", weight_decay=0.1))).splitlines() == [
        "g = ∇f(w)",
        "u = 0.9 m + 0.1 g",
        "u = sign(u)",
        "u = u + 0.1 w",
        "w = w - lr u",
        "m = 0.999 m + 0.001 g",
    ]


@pytest.mark.parametrize(
    ("method", "override", "said"),
    [
        (
            "fedavg",
            "method.local.optimizer=adamv",
            r"local\.optimizer.*adamv.*did you mean 'adam'.*adamw, nesterov",
        ),
        (
            "fedavg",
            "method.local.optimizer=nowhere:rule",
            r"local\.optimizer=nowhere:rule: cannot be imported",
        ),
        ("fedavg", "method.local.optimizer=tests.own_optimizer:nothing", "keeps no vectors but 'm' and 'v'"),
        ("fedavg", "method.local.optimizer=nesterov", "set local.momentum"),
        ("fedavg", "method.local.clip_norm=-1", r"local\.clip_norm=-1"),
        ("fedavg", "method.local.label_smoothing=1", r"local\.label_smoothing=1"),
        ("scaffold", "method.local.clip_norm=1", r"SCAFFOLD.*clip_norm"),
        ("feddbe", "method.mu=0.5 method.local.warmup_steps=2", r"local\.warmup_steps=2: .*leave it out"),
        ("scaffold", "method.local.step_schedule=cosine", r"SCAFFOLD.*step_schedule"),
    ],
)
def test_what_cannot_be_is_said(method, override, said):
    with pytest.raises(ConfigError, match=said):
        compose.load([f"method={method}", *override.split()])


def test_classes_of_another_number_are_refused():
    cohort = clients_of(replace(BASE, class_weights=(1.0, 2.0)), RUNNERS["loop"])
    with pytest.raises(ConfigError, match="class_weights are 2, and there are 3 classes"):
        in_rounds(cohort)
