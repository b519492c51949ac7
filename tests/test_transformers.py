"""Classes of transformers and peft without a wrapper: outputs, masks, adapters, stacks."""

import pytest
import torch

from fedpers.core.errors import ConfigError
from fedpers.families.split_models.parts import cut
from fedpers.learning.calls import mask_of
from fedpers.learning.model import build_model
from tests import hf_nets
from tests.test_lora import assert_stack_is_loop, federation

assert hf_nets.SMALL  # imported first: it makes torchvision importable
pytest.importorskip("transformers")
pytest.importorskip("peft")
LENGTH = 6
LORA = {"rank": 2, "targets": ["query", "value"]}


def model(name, shape=(LENGTH,), **options):
    return build_model("module", input_shape=shape, num_outputs=3, task="classification",
                       path=f"tests.hf_nets:{name}", **options)  # fmt: skip


def texts(seed=0, n=4):
    return torch.randint(1, 20, (n, LENGTH), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", ["bert", "llama", "vit", "peft_bert"])
def test_outputs_are_the_logits(name):
    net = model(name, (1, 4, 4) if name == "vit" else (LENGTH,))
    x = torch.randn(4, 1, 4, 4) if name == "vit" else texts()
    params = net.init(0)
    own = net.network.recipe.make().eval()
    own.load_state_dict(net.network.plain_state(params), strict=False)
    with torch.no_grad():
        torch.testing.assert_close(net(params, x.float()), own(x), rtol=1e-5, atol=1e-6)


def test_padding_is_not_read():
    net, x = model("bert", padding=0), texts()
    start = net.init(0)  # whose numbers are small; positions are whole ones
    params = {k: 10 * v if v.is_floating_point() and v.dim() > 1 else v for k, v in start.items()}
    x[:, 4:] = 0
    table = params["body.bert.embeddings.word_embeddings.weight"].clone()
    table[0] = torch.randn(16)
    moved = params | {"body.bert.embeddings.word_embeddings.weight": table}
    with torch.no_grad():
        torch.testing.assert_close(net(moved, x.float()), net(params, x.float()))
        read = model("bert")
        assert not torch.allclose(read(moved, x.float()), read(params, x.float()), rtol=0, atol=1e-4)
        alone = torch.zeros(1, LENGTH)  # a padded row of a stack: a number, whatever it is
        assert net(params, alone).isfinite().all()
    assert mask_of(torch.tensor([[3, 0], [0, 0]]), 0).tolist() == [[1, 0], [1, 1]]


def test_padding_needs_a_mask_and_a_token():
    with pytest.raises(ConfigError, match=r"model.padding is -1"):
        model("bert", padding=-1)
    with pytest.raises(ConfigError, match="its forward takes no attention_mask"):
        build_model("module", input_shape=(1, 4, 4), num_outputs=3, task="classification",
                    path="tests.own_nets:Plain", padding=0)  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"dropout": 0.3}], ids=str)
def test_a_stack_of_adapters_on_one_bert_is_the_loop(options):
    net = model("bert", lora=LORA, kwargs=options)
    assert net.network.alone == ""
    trained = {k for k in net.init_trained(0) if "lora" not in k}
    assert trained == {"head.weight", "head.bias"}
    assert_stack_is_loop(net, federation(sizes=(9, 14, 9), shape=(LENGTH,), tokens=20))


def test_a_stack_of_vits_with_adapters_is_the_loop():
    net = model("vit", (1, 4, 4), lora={"rank": 2})
    assert_stack_is_loop(net, federation(sizes=(9, 14, 9)))


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_peft_comes_as_it_is(dropout):
    """What peft trains is what asks for a gradient: adapters and its copy of the head."""
    net = model("peft_bert", kwargs={"dropout": dropout})
    own = cut(net, net.init_trained(0), "adapters")[1]
    assert len(own) == 2 * 2 * 2  # two factors beside two layers of two blocks
    assert net.init_trained(0).keys() - own.keys() == {"head.weight", "head.bias"}
    assert_stack_is_loop(net, federation(sizes=(9, 14, 9), shape=(LENGTH,), tokens=20))


def test_masked_texts_run_one_by_one_and_that_is_said():
    assert "only one client at a time" in model("bert", padding=0, lora=LORA).network.alone
