"""pFedMe on quadratics, where proximal points, rounds and the limit are closed forms."""

import pytest
import torch

from fedpers.clients.pfedme import ClientState, PFedMeClient, PFedMeConfig, Weights
from fedpers.method import LocalConfig, Stream, grad
from tests.methods.helpers import doubles, network, quadratics, simulated, smoke
from tests.oracles.pfedme import one_round, proximal_point, stationary

CLIENTS = ((1.0, -1.0), (4.0, 0.5), (0.25, 3.0))
FED = quadratics(*zip(*CLIENTS, strict=True), sizes=(2, 3, 5))
MODEL = network(FED, "linear", bias=False)


def full_batch(lr, R):
    return LocalConfig(lr=lr, epochs=R, batch_size=0)


@pytest.mark.parametrize("beta", [0.5, 1.0, 1.5])
def test_rounds_on_quadratics_are_the_closed_form(beta):
    cfg = PFedMeConfig(lam=2.0, eta=0.1, K=3, beta=beta, local=full_batch(0.07, 4))
    w = float(MODEL.init(0)["head.weight"])
    for _ in range(3):
        w, personal = one_round(w, CLIENTS, 2.0, 0.1, beta, 0.07, 3, 4)
    strategy, cohort = simulated("pfedme", cfg, FED, MODEL, 3)
    assert float(strategy.state.params["head.weight"]) == pytest.approx(w, abs=1e-14)
    found = [float(cohort.store.states[k].theta["head.weight"]) for k in range(3)]
    assert found == pytest.approx(personal, abs=1e-14)


def test_the_limit_minimises_the_sum_of_envelopes():
    """One step of an exactly solved envelope a round is gradient descent on Σ F_i."""
    cfg = PFedMeConfig(lam=2.0, eta=0.8, K=40, local=full_batch(0.15, 1))  # the error shrinks to a fifth
    strategy, cohort = simulated("pfedme", cfg, FED, MODEL, 14, eval_every=0)
    w = stationary(CLIENTS, 2.0)
    assert float(strategy.state.params["head.weight"]) == pytest.approx(w, abs=1e-7)
    for k, (a, c) in enumerate(CLIENTS):
        found = float(cohort.store.states[k].theta["head.weight"])
        assert found == pytest.approx(proximal_point(w, a, c, 2.0), abs=1e-7)


def test_the_step_is_the_gradient_of_the_envelope():
    """λ(w - θ) equals the derivative of F(w) = a λ/(2a + λ) (w - c)²."""
    a, c, lam = 4.0, 0.5, 2.0
    cfg = PFedMeConfig(lam=lam, eta=0.1, K=100, local=full_batch(0.1, 1))
    w = torch.tensor([[1.7]], dtype=torch.float64)
    envelope = grad(lambda v: (a * lam / (2 * a + lam) * (v - c) ** 2).sum())
    start = {"head.weight": w}
    reply, _ = PFedMeClient(cfg, MODEL).answer(
        Weights(start), ClientState(start), FED.client(1).train, Stream(0, 1, 1)
    )
    torch.testing.assert_close(w - reply.params["head.weight"], 0.1 * envelope(w))


def test_samples_do_not_weigh_clients():
    cfg = PFedMeConfig(lam=2.0, eta=0.1, K=3, local=full_batch(0.07, 2))
    other = quadratics(*zip(*CLIENTS, strict=True), sizes=(7, 1, 2))
    a, b = (simulated("pfedme", cfg, fed, MODEL, 2)[0].state.params for fed in (FED, other))
    torch.testing.assert_close(a["head.weight"], b["head.weight"], rtol=0, atol=1e-14)


def test_the_personal_model_is_what_is_tested_and_costs_k_gradients():
    fed, cfg = doubles(), PFedMeConfig(K=4)
    model = network(fed)
    strategy, cohort = simulated("pfedme", cfg, fed, model, 2)
    losses = [float(model.loss(cohort.store.states[k].theta, fed.client(k).test)) for k in range(6)]
    assert strategy.client_metrics["test_loss"].tolist() == pytest.approx(losses, rel=1e-12)
    assert strategy.round_log.gradient_evals == 4 * int(fed.num_train.sum())


def test_runs_on_digits(tmp_path):
    assert smoke("pfedme", tmp_path)["rounds"] == 3
