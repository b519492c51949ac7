"""Methods that cut the model into body and head also run where there is no body."""

import pytest

from fedpers.learning.kernels.dispatch import autograd_only
from fedpers.learning.optimizers import LocalConfig
from tests.methods.helpers import config, doubles, network, same, simulated

NAMES = ("fedper", "lgfedavg", "fedalt", "fedsim", "fedrep", "fedbabu", "fedrecon")


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", NAMES)
def test_a_model_without_a_body(name, optimizer):
    fed, cfg = doubles(), config(name)
    keys = {k for k, v in vars(cfg).items() if isinstance(v, LocalConfig)}
    cfg = config(name, **dict.fromkeys(keys, LocalConfig(lr=0.1, optimizer=optimizer)))
    strategy, _ = simulated(name, cfg, fed, network(fed), 2)
    assert strategy.rounds_done == 2


@pytest.mark.parametrize("name", ["fedalt", "fedrep", "fedsim"])
@autograd_only()
def test_a_personal_head_without_a_body_is_local_training(name):
    fed, local = doubles(), LocalConfig(lr=0.1, batch_size=4)
    key = {"fedalt": "v", "fedrep": "head", "fedsim": "local"}[name]
    start = {"head_init": "common"} if name == "fedrep" else {}
    _, ours = simulated(name, config(name, **{key: local}, **start), fed, network(fed), 2)
    _, alone = simulated("local", config("local", local=local), fed, network(fed), 2)
    for k, memory in alone.store.states.items():
        kept = ours.store.states[k]
        assert same(kept.own, memory.params)
