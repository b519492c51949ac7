"""FedRep against a restatement, and beside FedAlt where clients have equal sizes."""

from fedpers.clients.fedrep import FedRepConfig
from fedpers.method import LocalConfig
from tests.methods.helpers import (
    assert_close,
    config,
    doubles,
    drawn_heads,
    initial_parts,
    network,
    same,
    samples,
    simulated,
    smoke,
)
from tests.oracles.fedrep import one_round


def test_rounds_equal_a_numpy_restatement():
    fed = doubles()
    model = network(fed, "mlp")
    cfg = FedRepConfig(*(LocalConfig(lr=0.3, steps=n, batch_size=0) for n in (4, 2)))
    strategy, cohort = simulated("fedrep", cfg, fed, model, 3, seed=1)
    phi, heads = initial_parts(model, 1)[0], drawn_heads(model, 1, fed)
    for _ in range(3):
        phi, heads = one_round(phi, heads, samples(fed), 0.3, 4, 2)
    assert_close(strategy.state.part, phi)
    for k in range(6):
        assert_close(cohort.store.states[k].own, heads[k])


def test_with_clients_of_equal_size_it_is_fedalt_bit_for_bit():
    fed = doubles(sizes=(12,))
    model, plan = network(fed, "mlp"), {"seed": 5, "clients_per_round": 4}
    head, body = LocalConfig(lr=0.2, epochs=3, batch_size=4), LocalConfig(lr=0.1, batch_size=5)
    ours, _ = simulated("fedrep", FedRepConfig(head, body, head_init="common"), fed, model, 3, **plan)
    theirs, _ = simulated("fedalt", config("fedalt", v=head, u=body), fed, model, 3, **plan)
    assert same(ours.state.part, theirs.state.part)


def test_runs_on_digits(tmp_path):
    assert smoke("fedrep", tmp_path)["rounds"] == 3
