"""What clients of PFLEGO tell with `report`: Eq. 1's loss before and after the head steps, and L."""

import itertools
import logging

import pytest
import torch

from fedpers.clients.pflego import ClientState, PFLEGOClient, PFLEGOConfig, TakeSteps
from fedpers.core.params import split
from fedpers.families.split_models.heads import head_curvature
from fedpers.learning.features import Features
from fedpers.learning.model import build_model
from fedpers.method import Stream, Work
from tests.methods.helpers import smoke
from tests.methods.test_pflego import FED, MODEL, initial, objective, run

ALL = tuple(range(4))


def told(strategy):
    """(training_loss, training_loss_after) of the last round."""
    extra = strategy.round_log.extra
    return extra["training_loss"], extra["training_loss_after"]


def test_with_everybody_the_column_is_eq_1_before_and_after_the_head_steps():
    theta, heads = initial()
    strategy, cohort = run(tau=6, rho=0.0, report=True)  # with ρ = 0 the kept heads are those after the steps
    before, after = told(strategy)
    assert before == pytest.approx(float(objective(theta, heads)), rel=1e-13)
    fitted = [cohort.store.states[i].head for i in ALL]
    assert after == pytest.approx(float(objective(theta, fitted)), rel=1e-13)
    assert after < before


def test_over_the_choice_of_participants_the_column_has_no_bias():
    theta, heads = initial()
    pairs = list(itertools.combinations(ALL, 2))
    found = [told(run(tau=1, report=True, chosen=c, clients_per_round=2)[0])[0] for c in pairs]
    assert sum(found) / len(found) == pytest.approx(float(objective(theta, heads)), rel=1e-13)
    realised, _ = run(tau=1, report=True, chosen=(0, 2), clients_per_round=3, scale="realised")
    assert told(realised)[0] == pytest.approx(found[pairs.index((0, 2))], rel=1e-13)


def test_telling_changes_nothing_else():
    (plain, clients), (telling, others) = (run(rounds=3, tau=4, report=r) for r in (False, True))
    assert all(torch.equal(v, telling.state.part[k]) for k, v in plain.state.part.items())
    for i in ALL:
        assert all(
            torch.equal(v, others.store.states[i].head[k]) for k, v in clients.store.states[i].head.items()
        )
    assert plain.round_log.extra.keys() == {"gradient_norm"}
    assert telling.round_log.bytes_up > plain.round_log.bytes_up


@pytest.mark.parametrize("task", ["classification", "binary", "regression"])
@pytest.mark.parametrize("bias", [True, False])
def test_curvature_bounds_the_hessian_of_a_heads_loss(task, bias):
    """c λ_max(F'F / n); a regression's loss has that Hessian."""
    outputs = 3 if task == "classification" else 1
    model = build_model("mlp", input_shape=(5,), num_outputs=outputs, task=task, hidden=[4], bias=bias)
    head, body = split({k: v.double() for k, v in model.init(3).items()}, model.is_head)
    data = FED.client(2).train
    y = {"classification": data.y, "binary": data.y % 2, "regression": data.y.double()[:, None]}[task]
    F = Features(model, body, type(data)(data.x, y, data.mask)).data
    X = torch.cat([F.x, torch.ones_like(F.x[:, :1])], 1) if bias else F.x
    bound = {"classification": 0.5, "binary": 0.25, "regression": 2.0}[task]
    largest = float(torch.linalg.eigvalsh(X.T @ X / len(X))[-1])
    assert float(head_curvature(model, F, steps=100)) == pytest.approx(bound * largest, rel=1e-6)
    assert float(head_curvature(model, F)) == pytest.approx(bound * largest, rel=0.02)
    names = list(head)

    def loss(*values):
        return model.features_loss(dict(zip(names, values, strict=True)), F)

    blocks = torch.autograd.functional.hessian(loss, tuple(head.values()))
    sizes = [v.numel() for v in head.values()]
    rows = [torch.cat([b.reshape(m, n) for b, n in zip(row, sizes, strict=True)], 1)
            for row, m in zip(blocks, sizes, strict=True)]  # fmt: skip
    top = float(torch.linalg.eigvalsh(torch.cat(rows))[-1])
    assert top <= bound * largest * (1 + 1e-6)
    if task == "regression":
        assert top == pytest.approx(bound * largest, rel=1e-6)


@pytest.mark.parametrize(("beta", "warned"), [(50.0, 1), (0.01, 0)])
def test_a_rate_above_two_over_l_is_warned_of_once(beta, warned, caplog):
    with caplog.at_level(logging.WARNING, logger="fedpers"):
        strategy, _ = run(rounds=2, tau=3, beta=beta, rho=0.01, report=True)
    assert sum("above 2/L=" in r.message for r in caplog.records) == warned
    assert (beta * strategy.round_log.extra["head_curvature"] > 2) == bool(warned)


def test_what_is_told_is_exposed_and_its_pass_is_counted():
    assert PFLEGOClient.exposed(PFLEGOConfig()) == []
    assert "method.report=false" in PFLEGOClient.exposed(PFLEGOConfig(report=True))[0]
    theta, heads = initial()
    order = TakeSteps(theta, 1.0, 43.0)
    client = PFLEGOClient(PFLEGOConfig(tau=1, report=True), MODEL)
    reply, _ = client.answer(order, ClientState(heads[0]), FED.client(0).train, Stream(0, 1, 0))
    assert reply.told["before"] == reply.told["after"]  # no head step
    assert client.work(order, 12) == Work(12, forwards=12)
    silent, _ = PFLEGOClient(PFLEGOConfig(), MODEL).answer(
        order, ClientState(heads[0]), FED.client(0).train, Stream(0, 1, 0)
    )
    assert silent.told == {}


def test_the_columns_are_in_the_rows_of_training(tmp_path):
    smoke("pflego", tmp_path, "method.report=true", "method.adapt_steps=0", "eval_every=0")
    header = (tmp_path / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"training_loss", "training_loss_after", "head_curvature", "gradient_norm"} <= set(header)
