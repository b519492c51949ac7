"""privacy.epsilon finds the noise, and privacy=central adds it to the server's mean: by mathematics."""

import logging
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm as normal

from fedpers.app.privacy import check_privacy, takes_one_mean
from fedpers.app.run import execute
from fedpers.config import compose
from fedpers.config.run_config import from_mapping, to_mapping
from fedpers.core.errors import ConfigError, FedpersError
from fedpers.core.gaussian_dp import epsilon_of, mu_of
from fedpers.core.privacy import PrivacyConfig
from fedpers.flower.accounting import Spending, epsilon
from fedpers.flower.observer import RoundLog
from fedpers.flower.privacy import NoisedMean
from fedpers.method import LocalConfig
from fedpers.results.report.runs import find_runs, group_by_setting
from fedpers.results.report.tables import costs
from tests.methods.helpers import config, doubles, network, simulated


@pytest.mark.parametrize("target", [1e-3, 0.5, 8.0, 1e3])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.01])
def test_the_noise_is_the_least_that_keeps_to_the_target(target: float, delta: float) -> None:
    """Balle and Wang's δ at μ is δ, and no more; at a μ above it is more."""

    def told(mu: float) -> float:  # with the logarithm of e^ε Φ, for large ε
        return normal.cdf(mu / 2 - target / mu) - math.exp(target + normal.logcdf(-mu / 2 - target / mu))

    mu = mu_of(target, delta)
    assert told(mu) <= delta < told(mu * (1 + 1e-5)) + 1e-15
    assert epsilon_of(mu, delta) == pytest.approx(target, rel=1e-6)


def test_the_command_line_finds_the_noise_for_all_rounds() -> None:
    cfg = compose.load(["privacy=dp", "privacy.epsilon=8", "rounds=25", "clients_per_round=3"])
    z = cfg.privacy.noise_multiplier
    assert z == pytest.approx(2 * math.sqrt(25) / mu_of(8.0, 1e-5), rel=1e-12)
    assert 8 * (1 - 1e-6) < epsilon(cfg.privacy, 25) <= 8 * (1 + 1e-7) < epsilon(cfg.privacy, 26)
    plain = compose.load(["privacy=dp"]).privacy
    assert (plain.noise_multiplier, plain.epsilon) == (1.0, None)


def test_what_was_found_is_kept_by_whoever_reads_the_configuration() -> None:
    """A device takes the noise that it was told, whatever the target beside it says."""
    values = to_mapping(compose.load(["privacy=dp", "privacy.epsilon=8", "rounds=25"]))
    again = from_mapping(values)
    assert again.privacy == from_mapping(to_mapping(again)).privacy
    values["privacy"]["epsilon"] = 1e9
    assert from_mapping(values).privacy.noise_multiplier == again.privacy.noise_multiplier


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["privacy=dp", "privacy.epsilon=8", "privacy.noise_multiplier=1"], "give one of them"),
        (["privacy=dp", "privacy.epsilon=0"], "privacy.epsilon=0: must be above 0"),
        (["privacy.epsilon=8"], "without effect for privacy=off"),
    ],
)
def test_what_cannot_be_a_target(words: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        compose.load(words)


def test_a_method_that_asks_more_often_is_stopped() -> None:
    spending = Spending(PrivacyConfig("dp", epsilon=8.0).found(2))
    spending.on_round(1, RoundLog(releases=[0, 1]))
    with pytest.raises(FedpersError, match=r"privacy.epsilon=8: round 2 came to .* asked 3 times"):
        spending.on_round(2, RoundLog(releases=[0, 0]))


# ---- the server's noise -----------------------------------------------------------------------------


def test_the_servers_mean_is_of_clipped_changes() -> None:
    """Two clients, weights 1 and 3, C = 1: of norms 5 and 0.5."""
    start = {"w": torch.tensor([1.0, 1.0], dtype=torch.float64)}
    items = [{"w": start["w"] + torch.tensor([3.0, 4.0])}, {"w": start["w"] + torch.tensor([0.3, 0.4])}]
    quiet = PrivacyConfig("central", clip=1.0, noise_multiplier=1e-12)
    found = NoisedMean(quiet, 0)(items, [1.0, 3.0], start, 1)["w"]
    expected = 1 + 0.25 * np.array([0.6, 0.8]) + 0.75 * np.array([0.3, 0.4])
    np.testing.assert_allclose(found, expected, atol=1e-9)
    changes = [{"w": item["w"] - start["w"]} for item in items]
    bare = NoisedMean(quiet, 0)(changes, [1.0, 3.0], None, 1)["w"]
    np.testing.assert_allclose(bare, found - 1, atol=1e-9)


def test_the_servers_noise_is_z_halves_of_what_one_client_can_move() -> None:
    """σ = z C max w: of n normal numbers the variance has a relative standard deviation √(2/n)."""
    n, c = 200_000, PrivacyConfig("central", clip=0.5, noise_multiplier=3.0)
    items = [{"w": torch.zeros(n)}] * 3
    noise = NoisedMean(c, 7)(items, [1.0, 2.0, 1.0], {"w": torch.zeros(n)}, 1)["w"].double()
    assert float(noise.var()) == pytest.approx((3 * 0.5 * 0.5) ** 2, rel=5 * math.sqrt(2 / n))
    other = NoisedMean(c, 7)(items, [1.0, 2.0, 1.0], {"w": torch.zeros(n)}, 2)["w"].double()
    assert abs(float((noise * other).mean())) < 5 * 0.75**2 / math.sqrt(n)


def test_one_client_cannot_move_the_mean_further() -> None:
    rng = np.random.default_rng(0)
    quiet = PrivacyConfig("central", clip=0.7, noise_multiplier=1e-12)
    for _ in range(50):
        weights = rng.uniform(0.1, 5, 4).tolist()
        a = [{"w": torch.from_numpy(rng.normal(size=6) * 10 ** rng.uniform(-2, 2))} for _ in range(4)]
        k = int(rng.integers(4))
        b = [{"w": torch.from_numpy(rng.normal(size=6) * 100)} if i == k else x for i, x in enumerate(a)]
        far = NoisedMean(quiet, 0)(a, weights, None, 1)["w"] - NoisedMean(quiet, 0)(b, weights, None, 1)["w"]
        assert float(far.norm()) <= 2 * 0.7 * max(weights) / sum(weights) + 1e-9


TINY = PrivacyConfig("central", clip=1e6, noise_multiplier=1e-15)


@pytest.mark.parametrize("name", ["fedavg", "fedper", "fedadam", "fedrecon", "perfedavg"])
def test_without_clipping_and_noise_a_run_is_as_ever(name: str) -> None:
    fed = doubles()
    runs = [
        simulated(name, config(name), fed, network(fed), 3, seed=1, clients_per_round=4, privacy=privacy)[0]
        for privacy in (PrivacyConfig(), TINY)
    ]
    one, two = (s.client_metrics["test_loss"] for s in runs)
    np.testing.assert_allclose(one, two, rtol=1e-6)


def test_clients_send_what_they_have_and_the_server_adds_noise() -> None:
    fed, cfg = doubles(), config("fedavg", local=LocalConfig(lr=0.1, batch_size=0))
    noisy = replace(TINY, clip=1.0, noise_multiplier=0.5)
    plain, loud, again = (
        simulated("fedavg", cfg, fed, network(fed), 1, seed=1, privacy=privacy)[0].state.params["head.weight"]
        for privacy in (PrivacyConfig(), noisy, noisy)
    )
    assert torch.equal(loud, again)
    share = fed.num_train.max() / fed.num_train.sum()
    far = (loud - plain).norm() / math.sqrt(plain.numel())
    assert 0.4 < float(far) / (0.5 * share) < 1.8  # 15 normal numbers


def test_methods_with_more_than_a_mean_are_refused_by_name() -> None:
    lines: dict[tuple[str, ...], str] = {
        ("method=fedem",): "method=fedem: its server does not take one mean",
        ("method=pflego",): "method=pflego: its server does not take one mean",
        ("method=fedavg", "aggregation=median"): "aggregation=median: the noise is for the plain mean",
        ("method=scaffold",): "privacy=central method=scaffold: ",
    }
    for words, why in lines.items():
        with pytest.raises(ConfigError, match=why):
            check_privacy(compose.load([*words, "privacy=central"]))
    assert takes_one_mean("fedavg") and not takes_one_mean("fedem")
    mean = NoisedMean(TINY, 0)
    mean([{"w": torch.zeros(1)}], [1.0], None, 1)
    with pytest.raises(FedpersError, match="two means in round 1"):
        mean([{"w": torch.zeros(1)}], [1.0], None, 1)


def test_a_run_tells_its_epsilon(tmp_path: Any, caplog: Any) -> None:
    words = ["method=fedavg", "privacy=central", "privacy.epsilon=8", "rounds=3", "data.num_clients=6"]
    with caplog.at_level(logging.INFO, logger="fedpers"):
        summary = execute(compose.load(words), tmp_path / "run")
    told = summary["privacy"]
    assert (told["target_epsilon"], told["releases"]) == (8.0, 3)
    assert told["epsilon"] == pytest.approx(8, rel=1e-6) and "not against the server" in told["protects"]
    assert "spends epsilon 8 at delta 1e-05" in caplog.text
    assert told["not_covered"] == ["loss and accuracy of evaluations", "numbers of samples and labels"]
    assert "privacy: epsilon 8 at delta 1e-05, of 3 changes of one client" in caplog.text
    (setting,) = group_by_setting(find_runs([tmp_path]))
    cost = costs(setting)
    assert dict(zip(cost.columns, cost.rows[0], strict=True))["epsilon"] == "8"


def test_a_run_says_that_epsilon_does_not_cover_sums_of_features(tmp_path: Any, caplog: Any) -> None:
    words = ["data=breast_cancer", "model=logistic", "method=fedavg", "privacy=dp", "rounds=1"]
    with caplog.at_level(logging.INFO, logger="fedpers"):
        with_sums = execute(compose.load([*words, "data.standardise=federated"]), tmp_path / "a")
        without = execute(compose.load([*words, "data.standardise=false"]), tmp_path / "b")
    told = with_sums["privacy"]["not_covered"]
    assert "sums of features and of their squares, for data.standardise" in told
    assert len(without["privacy"]["not_covered"]) == 2
    assert caplog.text.count("not covered: loss and accuracy of evaluations") == 2
    assert caplog.text.count("sums of features") == 1
