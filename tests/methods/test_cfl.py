"""CFL: optimal cuts, closed forms on opposite quadratics, recovery of groups."""

import numpy as np
import pytest
import torch

from fedpers.checks.contract import CHECKS, run
from fedpers.clients.cfl import CFLClient, CFLConfig, ModelChange
from fedpers.core.params import weighted_mean
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.client_store import RamStore
from fedpers.families.clustered.bipartition import bipartition, cosines
from fedpers.method import LocalConfig, Plan
from fedpers.strategies.cfl import CFL
from tests.methods.helpers import config, contract_case, doubles, network, quadratics, simulated, smoke
from tests.oracles.cfl import least_maximum_across, opposite

# thresholds at which the toy run splits in its first rounds, with and without a second exchange
CASE = contract_case("cfl", CFLConfig(eps1=0.2, eps2=0.01))
FULL = LocalConfig(lr=0.1, batch_size=0)
FED = quadratics((1, 1, 1, 1), (2.0, -2.0, 2.0, -2.0), (3, 3, 3, 3))
MODEL = network(FED, "linear", bias=False)


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_contract_where_clusters_split(check):
    check(CASE)


def test_the_contract_case_does_split():
    server, _ = run(CASE)
    assert len(server.state.clusters) > 1


def test_cosines():
    items = [
        {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0])},
        {"a": torch.tensor([0.0, 1.0]), "b": torch.tensor([0.0])},
        {"a": torch.tensor([-6.0, 0.0]), "b": torch.tensor([-8.0])},
        {"a": torch.zeros(2), "b": torch.zeros(1)},
    ]
    want = [[1, 0, -1, 0], [0, 1, 0, 0], [-1, 0, 1, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(cosines(items).numpy(), want, atol=1e-15)


@pytest.mark.parametrize(
    ("lengths", "stalled"),
    [((2.0, -1.5, 0.1), True), ((1.5, -1.5, 0.1), False), ((2.0, 0.1, 0.1), False), ((2.0,), False)],
)
def test_a_cluster_has_stalled_where_its_mean_change_is_short_and_one_members_is_long(lengths, stalled):
    """ε1 = 0.4 and ε2 = 1.6, over all layers together; client 7 has sent nothing."""
    strategy = CFL(CFLConfig(), MODEL, Plan())
    deltas = {k: ModelChange({"a": torch.tensor([0.6 * v]), "b": torch.tensor([[0.8 * v]])})
              for k, v in enumerate(lengths)}  # fmt: skip
    mean = weighted_mean([change.params for change in deltas.values()], [1.0] * len(deltas))
    members = (*deltas, 7) if len(deltas) > 1 else tuple(deltas)
    assert strategy._stalled(members, mean, deltas) is stalled
    assert not strategy._stalled((*deltas, 7), {}, {})


@pytest.mark.parametrize("seed", range(12))
def test_the_cut_is_the_best_of_all(seed):
    rng = np.random.default_rng(seed)
    n = 2 + seed % 6
    items = [{"a": torch.from_numpy(rng.normal(size=3))} for _ in range(n)]
    alpha = cosines(items)
    first, second = bipartition(alpha)
    assert sorted(first + second) == list(range(n))
    assert first
    assert second
    best = least_maximum_across(alpha.tolist())
    assert float(alpha[first][:, second].max()) == pytest.approx(best, abs=1e-15)


@pytest.mark.parametrize(("eps1", "eps2"), [(0.05, 0.1), (0.01, 0.3), (0.05, 0.5)])
def test_opposite_quadratics_are_the_closed_form(eps1, eps2):
    """The last pair of thresholds never splits: no update is so long near the middle."""
    w = float(MODEL.init(0)["head.weight"])
    when, ends = opposite(w, 2.0, 0.1, eps1, eps2, 12)
    cfg = CFLConfig(eps1, eps2, local=FULL)
    strategy, _ = simulated("cfl", cfg, FED, MODEL, 12)
    found = [float(p["head.weight"]) for p in strategy.state.params]
    assert found == pytest.approx(ends, abs=1e-14)
    if when is None:
        assert strategy.state.clusters == ((0, 1, 2, 3),)
        return
    assert strategy.state.clusters == ((0, 2), (1, 3))
    np.testing.assert_array_equal(strategy.explain(strategy.state)["cluster"], [0, 1, 0, 1])
    before, _ = simulated("cfl", cfg, FED, MODEL, max(when - 1, 1))
    assert len(before.state.clusters) == (1 if when > 1 else 2)


def test_members_that_were_not_drawn_are_asked_before_a_cut():
    plan = {"seed": 1, "clients_per_round": 2}
    strategy, _ = simulated("cfl", CFLConfig(10.0, 0.0, local=FULL), FED, MODEL, 1, **plan)
    assert strategy.state.clusters == ((0, 2), (1, 3))
    assert strategy.round_log.gradient_evals == 12


def test_members_that_were_asked_count_where_the_cut_is_refused():
    plan, cfg = {"seed": 1, "clients_per_round": 2}, CFLConfig(10.0, 0.0, 1.0, local=FULL)
    fed = quadratics((1, 1, 1, 1), (2.0, -2.0, 1.0, 5.0), (3, 3, 3, 3))
    strategy, _ = simulated("cfl", cfg, fed, MODEL, 1, **plan)
    everybody, _ = simulated("cfl", cfg, fed, MODEL, 1, seed=1)
    assert strategy.state.clusters == ((0, 1, 2, 3),)
    found, wanted = (float(x.state.params[0]["head.weight"]) for x in (strategy, everybody))
    assert found == pytest.approx(wanted, abs=1e-14)


class OneIsGone(Cohort):
    def handle(self, requests):
        found = zip(requests, super().handle(requests), strict=True)
        gone = RuntimeError("the device went away")
        return [gone if r.k == 1 and r.header.kind == "train" else a for r, a in found]


def test_a_failed_member_prevents_the_cut():
    cfg, plan = CFLConfig(10.0, 0.0, local=FULL), Plan(dtype="float64", failures="skip")
    strategy = CFL(cfg, MODEL, plan)
    cohort = OneIsGone(CFLClient(cfg, MODEL), FED, RamStore(), plan)
    strategy.start(InProcessGrid(cohort), num_rounds=1)
    assert strategy.state.clusters == ((0, 1, 2, 3),)


def test_clients_that_differ_too_much_within_a_group_are_not_cut():
    """cos = -1 across: the bound is sqrt((1 + 1)/2) = 1; three directions at 120°: sqrt(3/4)."""
    for gamma, count in ((0.99, 2), (1.0, 1)):
        cfg = CFLConfig(10.0, 0.0, gamma, local=FULL)
        assert len(simulated("cfl", cfg, FED, MODEL, 1)[0].state.clusters) == count


def test_without_splits_it_is_fedavg():
    fed, local = doubles(), LocalConfig(lr=0.3, epochs=2, batch_size=4)
    model, plan = network(fed, "mlp"), {"seed": 5, "clients_per_round": 4}
    ours, _ = simulated("cfl", CFLConfig(0.0, 0.0, local=local), fed, model, 3, **plan)
    theirs, _ = simulated("fedavg", config("fedavg", local=local), fed, model, 3, **plan)
    for name, value in theirs.state.params.items():
        torch.testing.assert_close(ours.state.params[0][name], value, rtol=0, atol=1e-14)


def test_it_finds_the_groups_of_linear_regressions():
    fed = doubles(num_clients=8, sizes=(40, 60), task="regression")
    cfg = CFLConfig(0.05, 0.1, local=LocalConfig(lr=0.1, batch_size=0))
    strategy, _ = simulated("cfl", cfg, fed, network(fed, "linear"), 80, eval_every=0)
    assert strategy.state.clusters == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert float(strategy.client_metrics["test_loss"].max()) < 0.1  # noise: 0.01


def test_runs_on_digits(tmp_path):
    assert smoke("cfl", tmp_path)["rounds"] == 3
