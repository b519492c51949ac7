"""FedAS against a restatement, what its weights are, and as FedPer."""

import numpy as np
import pytest
import torch

from fedpers.clients.fedas import FedASConfig, Trained
from fedpers.clients.fedper import FedPerConfig
from fedpers.core.errors import ConfigError
from fedpers.method import LocalConfig, Roster
from fedpers.strategies.fedas import FedAS, SharedPart
from tests.methods.helpers import (
    arrays,
    assert_close,
    batches,
    chosen,
    doubles,
    initial_parts,
    network,
    quadratics,
    samples,
    simulated,
    smoke,
)
from tests.oracles.fedas import fedas_round

FED = doubles(classes=5)
MODEL = network(FED, "mlp")
FULL = LocalConfig(lr=0.2, epochs=2, batch_size=0)


def parts(params):
    """(body, head) as the restatement has them."""
    return tuple(arrays({k: v for k, v in params.items() if MODEL.is_head(k) is h}) for h in (False, True))


@pytest.mark.parametrize("size", [1, 4])
def test_rounds_equal_a_numpy_restatement(size):
    """Three of six unequal clients a round, some of whom lack classes; batches of one are samples."""
    assert (FED.label_counts == 0).any()
    align, local = LocalConfig(lr=0.7, epochs=3, batch_size=0), FULL
    plan = {"seed": 1, "clients_per_round": 3}
    server, cohort = simulated("fedas", FedASConfig(align, local, size), FED, MODEL, 4, **plan)
    shared, head = initial_parts(MODEL, 1)
    own, data, start = dict.fromkeys(range(6), (shared, head)), samples(FED), head
    for t in range(1, 5):
        some = {i: batches(1, t, i, len(data[i][1]), size, 1) for i in chosen(server, t)}
        shared, own, weights = fedas_round(shared, own, data, some, (0.7, 0.2), (3, 2))
        assert len(set(weights)) == 3
    assert server.round_log.extra["fisher_most"] == pytest.approx(max(weights) / sum(weights), rel=1e-9)
    assert_close(server.state.part, shared, 1e-11)
    came = {i for t in range(1, 5) for i in chosen(server, t)}
    for i in range(6):
        state = cohort.store.states.get(i)
        if i not in came:
            initial = cohort.client.initial_state(MODEL.init(1), FED.client(i).train, None)
            body, top = parts(cohort.client.personal(server.state, initial))
            np.testing.assert_allclose(body["w"], shared["w"], rtol=0, atol=1e-11)
            np.testing.assert_allclose(top["w"], start["w"], rtol=0, atol=1e-6)
            continue
        for found, wanted in zip(parts(cohort.client.personal(server.state, state)), own[i], strict=True):
            for name, value in wanted.items():
                np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-11)


def ended(replies, counts):
    """The strategy's body after one round with these replies."""
    server = FedAS(FedASConfig(), MODEL)
    server.roster = Roster(tuple(range(len(counts))), torch.tensor(counts), {})
    server.row = {k: k for k in range(len(counts))}
    generator = server.round(SharedPart({}), 1, np.random.default_rng(0))
    next(generator)
    with pytest.raises(StopIteration) as end:
        generator.send(dict(enumerate(replies)))
    return float(end.value.value.part["a"])


def test_bodies_weigh_by_the_fisher_information_and_not_by_samples():
    replies = [Trained({"a": torch.tensor(v)}, torch.tensor(F)) for v, F in ((1.0, 3.0), (5.0, 1.0))]
    assert ended(replies, [1.0, 99.0]) == pytest.approx(2.0)
    still = [Trained(r.part, torch.tensor(0.0)) for r in replies]
    assert ended(still, [1.0, 99.0]) == pytest.approx(3.0)  # clients without any gradient are alike


def test_one_client_without_alignment_is_fedper():
    cfg, plan = FedASConfig(LocalConfig(lr=0.0), FULL), {"seed": 5, "clients_per_round": 1}
    ours, _ = simulated("fedas", cfg, FED, MODEL, 6, **plan)
    other, _ = simulated("fedper", FedPerConfig(FULL, head_init="common"), FED, MODEL, 6, **plan)
    assert_close(ours.state.part, arrays(other.state.part), 1e-12)


def test_data_without_classes_and_empty_batches_are_refused():
    fed = quadratics([1.0, 2.0], [3.0, 4.0], [3, 5])
    with pytest.raises(ConfigError, match="method fedas aligns the features of each class"):
        simulated("fedas", FedASConfig(), fed, network(fed, "linear"), 1)
    assert FedASConfig(fisher_batch=0).check() == ["fisher_batch=0: must be at least 1"]


def test_runs_on_digits(tmp_path):
    assert smoke("fedas", tmp_path)["rounds"] == 3
