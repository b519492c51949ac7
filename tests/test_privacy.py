"""Noise on the declared delta: by mathematics; what it touches, what it costs, where it is refused."""

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm as normal

from fedpers.app.privacy import BEGIN, END, PAGE, check_privacy, disclosures, table
from fedpers.app.run import execute
from fedpers.checks.case import Case, same
from fedpers.clients.fedavg import Weights
from fedpers.config import compose
from fedpers.config.registry import METHODS
from fedpers.core.errors import ConfigError, FedpersError
from fedpers.core.params import sub
from fedpers.core.privacy import PrivacyConfig, clipped, gaussian_mechanism, norm
from fedpers.core.pytree import leaves
from fedpers.core.rng import Stream, noise_stream
from fedpers.engines.runner import RunnerConfig
from fedpers.flower.accounting import epsilon
from fedpers.flower.messages import Answer, Header, Request
from fedpers.flower.privacy import Disclosure, Mechanism
from fedpers.flower.strategy import Plan
from tests.methods.helpers import config, contract_case

SOUND = sorted(name for name, d in disclosures().items() if not d.no_dp)
TINY = PrivacyConfig("dp", clip=1e6, noise_multiplier=1e-12)  # neither clips nor, in effect, adds noise


# ---- the mechanism ------------------------------------------------------------------------------


def test_a_change_is_clipped_over_all_its_tensors_together() -> None:
    change = ({"a": torch.tensor([3.0, 0.0])}, {"b": torch.tensor([[4.0]])})  # norm 5
    assert norm(change) == 5.0
    short = clipped(change, 1.0)
    assert short[0]["a"].tolist() == pytest.approx([0.6, 0.0])
    assert short[1]["b"].tolist() == [pytest.approx([0.8])]
    assert clipped(change, 5.0) is change


def test_the_noise_has_the_variance_that_is_asked_for() -> None:
    """σ = z C. Of n normal numbers the variance has a relative standard deviation √(2/n)."""
    n, clip, z = 200_000, 0.5, 3.0
    noise = gaussian_mechanism({"w": torch.zeros(n)}, clip, z, Stream(1, 2, 3))["w"].double()
    assert float(noise.var()) == pytest.approx((clip * z) ** 2, rel=5 * math.sqrt(2 / n))
    assert abs(float(noise.mean())) < 5 * clip * z / math.sqrt(n)


def test_noise_is_a_stream_of_its_own() -> None:
    draws = [
        s.normal(4).tolist() for s in (Stream(1, 2, 3), noise_stream(1, 2, 3, 0), noise_stream(1, 2, 4, 0))
    ]
    assert draws[0] != draws[1] != draws[2]
    assert noise_stream(1, 2, 3, 0).normal(4).tolist() == draws[1]


# ---- the accountant -----------------------------------------------------------------------------


def exact_delta(eps: float, mu: float) -> float:
    """δ(ε) of Gaussian mechanisms whose sensitivities over noise square up to μ² (Balle, Wang, ICML 2018)."""
    return float(normal.cdf(mu / 2 - eps / mu) - math.exp(eps) * normal.cdf(-mu / 2 - eps / mu))


@pytest.mark.parametrize(("z", "releases"), [(1.0, 1), (2.0, 1), (8.0, 10), (40.0, 300)])
def test_epsilon_is_the_exact_one(z: float, releases: int) -> None:
    """Two changes are up to 2C apart, so T releases are one with μ = 2 √T / z."""
    spent = epsilon(PrivacyConfig("dp", noise_multiplier=z, delta=1e-5), releases)
    mu = 2 * math.sqrt(releases) / z
    assert exact_delta(spent, mu) <= 1e-5 < exact_delta((1 - 1e-6) * spent, mu)


def test_epsilon_of_very_little_and_very_much_noise() -> None:
    """z=1, T=1, δ=1e-5: μ = 2 gives 9.997. Much noise costs nothing beyond δ, little overflows nowhere."""
    assert epsilon(PrivacyConfig("dp", noise_multiplier=1.0, delta=1e-5), 1) == pytest.approx(9.997, abs=1e-3)
    assert epsilon(PrivacyConfig("dp", noise_multiplier=1e6, delta=1e-5), 1) == 0.0
    mu = 2 * math.sqrt(1000) / 0.1
    much = epsilon(PrivacyConfig("dp", noise_multiplier=0.1, delta=1e-5), 1000)
    assert mu**2 / 2 < much < mu**2 / 2 + mu * math.sqrt(2 * math.log(1e5))


def test_nothing_is_spent_before_anything_is_sent() -> None:
    assert epsilon(PrivacyConfig("dp"), 0) == 0.0


# ---- what is noised -----------------------------------------------------------------------------


def lsgd_settings() -> Any:
    return compose.load(LSGD).method


LSGD = [
    "method=lsgd",
    "method.report=false",
    "method.eta=1",
    "method.batch_size=0",
    "method.objective.mu=0.01",
    "method.objective.L=1",
    "method.objective.cL=1",
]


def toy(name: str, privacy: PrivacyConfig, **plan: Any) -> Case:
    cfg = lsgd_settings() if METHODS[name].client.endswith("lsgd:LSGDClient") else config(name)
    return contract_case(name, cfg, plan=Plan(seed=3, privacy=privacy, **plan))


def replies(case: Case, runner: str = "loop") -> tuple[dict[int, Any], dict[int, Any], Any]:
    """(each client's order of round 1, its reply to it, the clients' side)."""
    cohort, seen = case.cohort(runner=RunnerConfig(runner=runner)), {}
    server = case.server()
    from fedpers.engines.inprocess_grid import InProcessGrid

    class Watching(InProcessGrid):
        def answer(self, requests: Any, timeout: float | None = None) -> Any:
            found = super().answer(requests, timeout)
            if requests[0].header.kind == "train":
                seen.update(
                    {
                        r.k: (r.order, a.body if isinstance(a, Answer) else a)
                        for r, a in zip(requests, found, strict=True)
                    }
                )
            return found

    server.start(Watching(cohort), num_rounds=1)
    orders, bodies = ({k: pair[i] for k, pair in seen.items()} for i in (0, 1))
    return orders, bodies, cohort


def delta_of(name: str, order: Any, reply: Any) -> Any:
    d = disclosures()[name]
    told = getattr(reply, d.delta)
    if not d.since:
        return told
    origin = getattr(order, d.since)
    if isinstance(told, tuple):
        return tuple(sub(a, b) for a, b in zip(told, origin, strict=True))
    return sub(told, origin)


@pytest.mark.parametrize("name", SOUND)
def test_every_sound_method_sends_a_clipped_delta_and_nothing_else(name: str) -> None:
    """With next to no noise what leaves is the method's own delta, no longer than C; states stay."""
    orders, plain, before = replies(toy(name, PrivacyConfig()))
    deltas = {k: delta_of(name, orders[k], reply) for k, reply in plain.items()}
    clip = min(map(norm, deltas.values())) / 2
    _, short, after = replies(toy(name, PrivacyConfig("dp", clip=clip, noise_multiplier=1e-9)))
    rounding = 1e-6 * norm(getattr(next(iter(plain.values())), disclosures()[name].delta))
    for k, whole in deltas.items():
        got = delta_of(name, orders[k], short[k])
        assert norm(got) == pytest.approx(clip, abs=rounding)
        for a, b in zip(leaves(got), leaves(clipped(whole, clip)), strict=True):
            assert torch.allclose(a, b, rtol=0, atol=rounding)
    assert before.store.states.keys() == after.store.states.keys()
    assert all(same(before.store.states[k], after.store.states[k]) for k in before.store.states)


def test_pflego_clips_the_gradient_itself_not_its_difference_to_the_parameters() -> None:
    """The body is far from 0, so a clip of gradient minus parameters would leave about minus parameters."""
    orders, plain, _ = replies(toy("pflego", PrivacyConfig()))
    _, short, _ = replies(toy("pflego", PrivacyConfig("dp", clip=1e-3, noise_multiplier=1e-9)))
    for k, reply in plain.items():
        flat = [
            torch.cat([v.flatten() for v in p.values()])
            for p in (reply.theta, short[k].theta, orders[k].theta)
        ]
        assert float(torch.cosine_similarity(flat[0], flat[1], 0)) > 0.999
        assert float(flat[1].norm()) < 2e-3 < float(flat[2].norm())


@pytest.mark.parametrize("name", ["fedavg", "pflego"])
def test_stacked_and_looped_clients_add_the_same_noise(name: str) -> None:
    privacy = PrivacyConfig("dp", clip=0.5, noise_multiplier=2.0)
    one, two = (replies(toy(name, privacy), runner)[1] for runner in ("loop", "stack"))
    for k in one:
        pairs = zip(*(leaves(r[k]) for r in (one, two)), strict=True)
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in pairs)


def test_a_client_refuses_to_answer_with_what_is_not_declared() -> None:
    case = toy("lsgd", TINY)
    from fedpers.core.params import zeros_like
    from fedpers.families.unified.messages import Measure

    cohort = case.cohort()
    w = zeros_like(cohort.client.model.init(0))
    asked = Request(0, Measure(w, 4, torch.zeros(())), Header("train", 1, 0))
    found = cohort.one(asked)
    assert isinstance(found, FedpersError) and "so this one is not sent" in str(found)


@pytest.mark.parametrize(("privacy", "rows"), [(PrivacyConfig(), True), (TINY, False)])
def test_replies_with_noise_are_rows_of_no_stack(privacy: PrivacyConfig, rows: bool) -> None:
    cohort = toy("fedavg", privacy).cohort(runner=RunnerConfig("stack"))
    order = Weights(cohort.params)
    found = cohort.handle([Request(k, order, Header("train", 1, 0)) for k in (0, 0)])
    assert [a.stack > 0 for a in found] == [rows] * 2


# ---- whole runs ---------------------------------------------------------------------------------

SMALL = ["data.num_clients=6", "rounds=4", "clients_per_round=3", "seed=4", "checkpoint_every=2"]
DP = ["privacy=dp", "privacy.clip=0.5", "privacy.noise_multiplier=4"]


def spent(out: Path) -> list[float]:
    with (out / "metrics.csv").open(newline="") as file:
        return [float(r["epsilon"]) for r in csv.DictReader(file) if r["split"] == "train"]


def test_epsilon_is_in_the_table_and_in_the_summary_also_after_a_resumption(tmp_path: Path) -> None:
    cfg = compose.load([*SMALL, "method=fedper", *DP])
    summary = execute(cfg, tmp_path / "whole")
    column, told = spent(tmp_path / "whole"), summary["privacy"]
    assert column == sorted(column) and column[-1] == told["epsilon"] > 0
    assert column == [epsilon(cfg.privacy, n) for n in _most(cfg)]
    execute(replace(cfg, rounds=2), tmp_path / "parts")
    again = execute(replace(cfg, resume=str(tmp_path / "parts")), tmp_path / "parts")
    assert spent(tmp_path / "parts") == column and again["privacy"] == told


def _most(cfg: Any) -> list[int]:
    """Rounds of the client that was drawn most often, after each round."""
    from fedpers.core.rng import server_rng

    count = np.zeros(6, dtype=int)
    found = []
    for t in range(1, cfg.rounds + 1):
        count[server_rng(cfg.seed, t).choice(6, size=3, replace=False)] += 1
        found.append(int(count.max()))
    return found


# ---- refusals -----------------------------------------------------------------------------------


def test_a_method_is_sound_or_refused_with_its_own_reason(tmp_path: Path) -> None:
    base = compose.load([*LSGD, "privacy=dp"])
    for name in METHODS:
        settings = base.method if name in ("lsgd", "apfl", "fedres") else config(name)
        cfg = replace(base, method_name=name, method=settings)
        if name in SOUND:
            check_privacy(cfg)
            continue
        with pytest.raises(ConfigError) as caught:
            execute(cfg, tmp_path / "out")
        (line,) = caught.value.problems
        assert line.startswith(f"privacy=dp method={name}: {disclosures()[name].no_dp}; it is sound for ")
        assert not (tmp_path / "out").exists()


def test_the_methods_that_must_have_it_have_it() -> None:
    assert {"fedavg", "fedprox", "fedper", "fedrep", "ditto", "pflego", "lsgd"} <= set(SOUND)


def test_questions_about_the_loss_are_refused_with_the_remedy() -> None:
    with pytest.raises(
        ConfigError, match=r"set method.objective.mu, method.objective.L, method.objective.cL"
    ):
        check_privacy(compose.load(["method=lsgd", "privacy=dp"]))


def test_keys_without_effect_and_wrong_values_are_refused() -> None:
    for words, text in [
        (["privacy.clip=2"], "privacy.clip: without effect for privacy=off"),
        (["privacy=dp", "privacy.clip=0"], "privacy.clip=0: must be above 0"),
        (["privacy=dp", "privacy.delta=1"], "privacy.delta=1.0: must be below 1"),
    ]:
        with pytest.raises(ConfigError, match=text):
            compose.load(words)


def test_the_page_has_what_the_methods_declare() -> None:
    text = PAGE.read_text(encoding="utf-8")
    written = text[text.index(BEGIN) + len(BEGIN) : text.index(END)]
    assert written == table(), "run python -m fedpers.app.privacy"


def test_the_page_says_of_every_method_what_its_personal_part_tells() -> None:
    """Each method stands in one row of the table."""
    text = PAGE.read_text(encoding="utf-8")
    rows = text.partition("<!-- personal parts -->")[2].partition("<!-- end")[0].splitlines()[3:]
    named = [name.strip() for row in rows for name in row.split("|")[2].split(",")]
    assert sorted(named) == sorted(METHODS)


def test_a_reply_is_compared_with_its_order_by_name() -> None:
    """Tensors of equal shapes, in another order: below the clip and without noise they stay the same."""
    order, reply = (
        Weights({"a": torch.ones(2), "b": torch.zeros(2)}),
        Weights({"b": torch.ones(2), "a": torch.ones(2)}),
    )
    settings = PrivacyConfig("dp", noise_multiplier=0.0, clip=2.0)
    mechanism = Mechanism(settings, Disclosure("", "params", "params"), lambda *_: Stream(0, 1, 0))
    assert same(mechanism.release(Request(0, order, Header("train", 1, 0)), reply), reply)
