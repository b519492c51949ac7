"""Models that are to part must not start alike: what a pretrained start does to clusters and mixtures."""

import numpy as np
import pytest
import torch

import fedpers
from fedpers.core.errors import ConfigError
from fedpers.families.starts import refuse_equal, started
from fedpers.learning.model import build_model

COUNTS = {"ifca": "S", "fedsoft": "S", "fedem": "num_components", "ppfl": "num_canonical"}


def model(name="Pretrained", **options):
    return build_model("module", input_shape=(1, 4, 4), num_outputs=3, task="classification",
                       path=f"tests.own_nets:{name}", **options)  # fmt: skip


def run(tmp_path, method, name="Pretrained", **settings):
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(n, 1, 4, 4)).astype("float32"), np.arange(n) % 3) for n in (9, 12, 20)]
    return fedpers.run({"name": method, **settings}, data=fedpers.Federation.from_arrays(data),
                       model={"name": "module", "path": f"tests.own_nets:{name}"}, rounds=1,
                       out=str(tmp_path / "run"))  # fmt: skip


@pytest.mark.parametrize("method", COUNTS)
def test_equal_starts_are_refused_and_jitter_parts_them(tmp_path, method):
    with pytest.raises(ConfigError, match=r"start alike.*method\.start=jitter"):
        run(tmp_path, method)
    run(tmp_path / "jitter", method, start="jitter", **{COUNTS[method]: 2})
    run(tmp_path / "one", method, **{COUNTS[method]: 1})  # one alone is equal to nobody


def test_jitter_draws_heads_and_adapters_and_nothing_else():
    net = model("PretrainedLora")
    like = net.init_trained(0)
    one, two = (started(net, like, seed, "jitter") for seed in (1, 2))
    drawn = {k for k in like if not torch.equal(one[k], like[k])}
    assert (
        drawn
        == {"head.weight", "head.bias", "body.lora_A"}
        == {k for k in like if not torch.equal(one[k], two[k])}
    )
    assert not one["body.lora_B"].any()  # adapters begin as nothing
    assert float(one["body.lora_A"].abs().max()) <= 1 / 4  # 1/√16: as torch's linear layers of 16 inputs
    assert started(net, like, 1, "jitter").keys() == like.keys()
    again = started(net, like, 1, "jitter")
    assert all(torch.equal(again[k], one[k]) for k in like)


def test_heads_are_drawn_where_all_starts_at_zero():
    net = build_model("logistic", input_shape=(4,), num_outputs=3, task="classification", init="zeros")
    like = net.init(0)
    with pytest.raises(ConfigError, match=r"method\.S=2 centers start alike"):
        refuse_equal([like, started(net, like, 5, "seeds")], "method.S=2 centers")
    refuse_equal([like, started(net, like, 5, "jitter")], "method.S=2 centers")
