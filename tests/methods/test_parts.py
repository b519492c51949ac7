"""Which part of a model is a client's own, by word or by pattern, in every method that cuts models."""

import pytest

from fedpers.core.errors import ConfigError
from fedpers.families.split_models.parts import cut
from fedpers.method import LocalConfig
from tests.methods.helpers import config, doubles, network, same, simulated

FED = doubles()
MODEL = network(FED, "mlp")
LOCAL = LocalConfig(lr=0.3, epochs=1, batch_size=4)


@pytest.mark.parametrize("method", ["fedper", "lgfedavg", "fedalt", "fedsim"])
@pytest.mark.parametrize(
    "personal, own",
    [
        ("head", {"head.weight", "head.bias"}),
        ("body", {"dense1.weight", "dense1.bias"}),
        (["*.bias"], {"dense1.bias", "head.bias"}),
        (["dense1.weight", "head.*"], {"dense1.weight", "head.weight", "head.bias"}),
    ],
)
def test_the_part_stays_and_all_else_is_shared(method, personal, own):
    server, cohort = simulated(method, config(method, personal=personal), FED, MODEL, 2, clients_per_round=4)
    assert server.state.part.keys() == MODEL.init(0).keys() - own
    assert all(state.own.keys() == own for state in cohort.store.states.values())
    assert not all(
        same(state.own, cut(MODEL, MODEL.init(0), personal)[1]) for state in cohort.store.states.values()
    )


@pytest.mark.parametrize("method", ["fedper", "lgfedavg", "fedsim"])
def test_one_part_is_one_algorithm(method):
    """With one rate these methods differ in what is a client's own alone."""
    chosen = {"personal": ["dense1.*"], "local": LOCAL}
    ours, mine = simulated(method, config(method, **chosen), FED, MODEL, 3, clients_per_round=4)
    theirs, other = simulated("lgfedavg", config("lgfedavg", local=LOCAL), FED, MODEL, 3, clients_per_round=4)
    assert same(ours.state.part, theirs.state.part)
    assert all(same(mine.store.states[k].own, state.own) for k, state in other.store.states.items())


@pytest.mark.parametrize(
    "personal, message",
    [
        (["dense1.weigth"], "'dense1.weigth' fits no parameter.*dense1.weight, dense1.bias"),
        ([], "fits no parameter"),
        ("norms", "personal=norms: model 'mlp' has no normalisation"),
        ("adapters", "personal=adapters: model 'mlp' has no adapters"),
    ],
)
@pytest.mark.parametrize("method", ["fedper", "lgfedavg", "fedalt", "fedsim"])
def test_a_part_that_is_not_there_is_refused(method, personal, message):
    with pytest.raises(ConfigError, match=message):
        simulated(method, config(method, personal=personal), FED, MODEL, 1, clients_per_round=4)
