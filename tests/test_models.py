"""Every model against its nn.Module twin; losses against closed forms; sizes from the papers."""

import inspect
import math
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn
from torch.func import grad, vmap

from fedpers.core.data import Data
from fedpers.core.errors import ConfigError
from fedpers.core.params import Params, merge, size, split
from fedpers.core.torchvision import import_torchvision
from fedpers.learning.gradients import grad as kernel_grad
from fedpers.learning.layers import linear_start
from fedpers.learning.libraries import LIBRARIES
from fedpers.learning.model import MODELS, Model, build_model
from fedpers.learning.networks import builder, options_of

torch.set_num_threads(1)
K = 5


def conv(i: int, o: int, k: int) -> nn.Conv2d:
    return nn.Conv2d(i, o, k, padding=k // 2)


def pool() -> nn.MaxPool2d:
    return nn.MaxPool2d(2)


def omniglot() -> list[nn.Module]:
    blocks = [[conv(1 if i == 0 else 64, 64, 3), nn.ReLU(), pool()] for i in range(4)]
    return [*(layer for block in blocks for layer in block), nn.Flatten(), nn.Linear(64, K)]


def pflego() -> list[nn.Module]:
    first = [conv(3, 64, 5), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    second = [conv(64, 64, 5), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Flatten()]
    dense = [nn.Linear(4096, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, K)]
    return [*first, *second, *dense]


def letters() -> list[nn.Module]:
    convs = [conv(1, 32, 5), pool(), conv(32, 64, 5), pool(), nn.Flatten()]
    return [*convs, nn.Linear(7 * 7 * 64, 512), nn.ReLU(), nn.Linear(512, K)]


def fedsoft_cifar() -> list[nn.Module]:
    layers: list[nn.Module] = []
    for a, b, c in ((3, 32, 64), (64, 128, 128), (128, 256, 256)):
        layers += [conv(a, b, 3), nn.ReLU(), conv(b, c, 3), nn.ReLU(), pool()]
    dense = [nn.Linear(4096, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, K)]
    return [*layers, nn.Flatten(), *dense]


def federico() -> list[nn.Module]:
    blocks = [[conv(i, 128, 3), pool(), nn.ReLU()] for i in (3, 128, 128)]
    return [*(layer for block in blocks for layer in block), nn.Flatten(), nn.Linear(2048, K)]


def lenet() -> list[nn.Module]:
    convs = [conv(1, 6, 5), nn.ReLU(), pool(), nn.Conv2d(6, 16, 5), nn.ReLU(), pool(), nn.Flatten()]
    return [*convs, nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, K)]


def mcmahan() -> list[nn.Module]:
    first, second = [conv(1, 32, 5), nn.ReLU(), pool()], [conv(32, 64, 5), nn.ReLU(), pool()]
    return [*first, *second, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, K)]


def resnet() -> list[nn.Module]:
    norm = partial(nn.GroupNorm, 2)
    net = import_torchvision().models.resnet18(num_classes=1, norm_layer=norm)
    net.conv1 = nn.Conv2d(1, 64, 3, 1, 1, bias=False)
    nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
    net.maxpool, net.fc = nn.Identity(), nn.Identity()
    return [net, nn.Linear(512, K)]


# name: input shape, task, twin
ZOO: dict[str, tuple[tuple[int, ...], str, Callable[[], list[nn.Module]]]] = {
    "logistic": ((4, 3), "classification", lambda: [nn.Flatten(), nn.Linear(12, K)]),
    "linear": ((7,), "regression", lambda: [nn.Linear(7, K)]),
    "mlp": (
        (28, 28),
        "classification",
        lambda: [nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, K)],
    ),
    "cnn_pflego": ((3, 32, 32), "classification", pflego),
    "cnn_omniglot": ((1, 28, 28), "classification", omniglot),
    "cnn_fedsoft_letters": ((1, 28, 28), "classification", letters),
    "cnn_fedsoft_cifar": ((3, 32, 32), "classification", fedsoft_cifar),
    "cnn2_federico": ((3, 32, 32), "classification", federico),
    "lenet": ((1, 28, 28), "classification", lenet),
    "cnn_mcmahan": ((1, 28, 28), "classification", mcmahan),
    "resnet18_gn": ((1, 8, 8), "classification", resnet),
}
names = pytest.mark.parametrize("name", ZOO)


def zoo(name: str, **options: Any) -> Model:
    shape, task, _ = ZOO[name]
    return build_model(name, input_shape=shape, num_outputs=K, task=task, **options)


def batch(model: Model, n: int = 3, seed: int = 0) -> Data:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, *ZOO[model.name][0], generator=rng)
    if model.task == "regression":
        return Data(x, torch.randn(n, K, generator=rng), torch.ones(n))
    return Data(x, torch.randint(K, (n,), generator=rng), torch.ones(n))


def test_every_model_has_a_twin_and_a_config() -> None:
    folder = Path(__file__).parents[1] / "conf" / "model"
    modules = {"module", "lstm", "transformer", "factors"}  # tests/test_own_models.py, test_task_records.py
    assert ZOO.keys() | modules == MODELS.keys()
    several = {"groups"}  # of these: tests/test_unlike.py
    assert MODELS.keys() | LIBRARIES.keys() | several == {path.stem for path in folder.glob("*.yaml")}


@pytest.mark.parametrize("name", ["module", "lstm", "transformer", "factors", *LIBRARIES])
def test_the_config_of_a_module_names_all_its_options(name: str) -> None:
    path = Path(__file__).parents[1] / "conf" / "model" / f"{name}.yaml"
    options = yaml.safe_load(path.read_text())
    library = options.get("library")
    assert options.keys() - {"name"} == {*options_of(options["name"], library)}
    code = inspect.signature(builder(options["name"], library)).parameters
    assert all(options[k] == p.default for k, p in code.items() if k in options and p.default is not p.empty)


@names
def test_the_config_names_all_options_with_their_defaults(name: str) -> None:
    path = Path(__file__).parents[1] / "conf" / "model" / f"{name}.yaml"
    options = yaml.safe_load(path.read_text())
    assert options.pop("name") == name
    code = inspect.signature(MODELS[name]).parameters
    defaults = {key: p.default for key, p in code.items() if p.default is not p.empty}
    init = "xavier_normal" if name.startswith("cnn_fedsoft") else "default"
    assert {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()} == {
        **defaults,
        "bias": True,
        "init": init,
    }
    zoo(name, **options)


@names
def test_initial_parameters_and_outputs_are_those_of_the_module(name: str) -> None:
    model, data = zoo(name), batch(zoo(name))
    before = torch.random.get_rng_state()
    params = model.init(3)
    assert torch.equal(torch.random.get_rng_state(), before)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        twin = nn.Sequential(*ZOO[name][2]())
    expected = [p.detach() for p in twin.parameters()]
    assert len(expected) == len(params)
    assert all(torch.equal(a, b) for a, b in zip(params.values(), expected, strict=True))
    torch.testing.assert_close(model(params, data.x), twin(data.x).detach())


@names
def test_building_a_model_leaves_the_global_generator_alone(name: str) -> None:
    before = torch.random.get_rng_state()
    zoo(name)
    assert torch.equal(torch.random.get_rng_state(), before)


@names
def test_body_and_head_share_the_parameters_and_compose(name: str) -> None:
    model = zoo(name)
    params, data = model.init(0), batch(model)
    head, body = split(params, model.is_head)
    assert set(head) == {"head.weight", "head.bias"}
    features = model.body(body, data.x)
    assert features.shape == (3, model.num_features)
    assert torch.equal(model.head(head, features), model(merge(head, body), data.x))
    assert torch.equal(model.head_loss(head, features, data), model.loss(params, data))


@names
def test_gradients_reach_every_parameter_and_agree_with_autograd(name: str) -> None:
    model = zoo(name)
    data, params = batch(model), model.init(1)
    functional = grad(model.loss)(params, data)
    leaves = {k: v.clone().requires_grad_() for k, v in params.items()}
    plain = torch.autograd.grad(model.loss(leaves, data), list(leaves.values()))
    for (key, value), expected in zip(functional.items(), plain, strict=True):
        assert value.abs().sum() > 0, key
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-6)


@names
def test_a_stack_of_clients_equals_one_after_the_other(name: str) -> None:
    model = zoo(name)
    clients = [double(model.init(seed)) for seed in (0, 1)]
    data = [batch(model, seed=seed) for seed in (0, 1)]
    params = {k: torch.stack([c[k] for c in clients]) for k in clients[0]}
    x = torch.stack([d.x.double() for d in data])
    y = torch.stack([d.y for d in data])
    mask = torch.ones(2, 3, dtype=torch.float64)

    def gradient(p: Params, x: Tensor, y: Tensor, mask: Tensor) -> Params:
        return grad(model.loss)(p, Data(x, y, mask))

    stacked = vmap(gradient)(params, x, y, mask)
    for i in range(2):
        single = gradient(clients[i], x[i], y[i], mask[i])
        for key, value in single.items():
            assert value.dtype == torch.float64
            torch.testing.assert_close(stacked[key][i], value, rtol=1e-8, atol=1e-11)


def double(params: Params) -> Params:
    return {k: v.double() for k, v in params.items()}


@pytest.mark.parametrize(
    ("name", "shape", "shared"),
    [
        ("mlp", (1, 28, 28), 157_000),  # PFLEGO, MNIST
        ("cnn_pflego", (3, 32, 32), 1_754_496),  # PFLEGO, CIFAR-10
        ("cnn_omniglot", (1, 28, 28), 111_424),  # PFLEGO, Omniglot
    ],
)
def test_pflego_shared_parameters(name: str, shape: tuple[int, ...], shared: int) -> None:
    model = build_model(name, input_shape=shape, num_outputs=7, task="classification")
    assert size(split(model.init(0), model.is_head)[1]) == shared


@pytest.mark.parametrize(
    ("name", "shape", "total"),
    [
        ("cnn_mcmahan", (1, 28, 28), 1_663_370),  # McMahan et al. 2017, MNIST
        ("lenet", (1, 28, 28), 61_706),  # LeNet-5: 156+2416+48120+10164+850
        ("cnn2_federico", (3, 32, 32), 319_242),  # 3584+147584+147584+20490
    ],
)
def test_total_parameters(name: str, shape: tuple[int, ...], total: int) -> None:
    model = build_model(name, input_shape=shape, num_outputs=10, task="classification")
    assert size(model.init(0)) == total


def test_hidden_layers_and_bias_are_options() -> None:
    model = build_model(
        "mlp", input_shape=(6,), num_outputs=2, task="classification", hidden=[4, 3], bias=False
    )
    shapes = {k: tuple(v.shape) for k, v in model.init(0).items()}
    assert shapes == {
        "dense1.weight": (4, 6),
        "dense1.bias": (4,),
        "dense2.weight": (3, 4),
        "dense2.bias": (3,),
        "head.weight": (2, 3),
    }


def test_init_head_is_deterministic_and_takes_any_width() -> None:
    model = zoo("mlp")
    assert model.init_head(4, 2)["head.weight"].shape == (2, 200)
    assert torch.equal(model.init_head(4)["head.weight"], model.init_head(4)["head.weight"])
    assert not torch.equal(model.init_head(4)["head.weight"], model.init_head(5)["head.weight"])


@pytest.mark.parametrize(("features", "outputs", "bias"), [(1, 1, True), (7, 62, True), (200, 10, False)])
def test_a_head_starts_with_the_bits_of_torchs_linear_layer(features: int, outputs: int, bias: bool) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        layer = torch.nn.Linear(features, outputs, bias=bias)
    drawn = linear_start(features, outputs, bias, [3, 11])
    assert list(drawn) == [name for name, _ in layer.named_parameters()]
    assert all(torch.equal(drawn[name][1], value) for name, value in layer.named_parameters())


def test_xavier_normal_has_the_variance_of_glorot_and_bengio() -> None:
    params = zoo("mlp", init="xavier_normal").init(0)
    weight = params["dense1.weight"]
    expected = 2 / (784 + 200)  # of 156,800 draws: standard error 0.4 %
    assert weight.var().item() == pytest.approx(expected, rel=0.02)
    assert not params["dense1.bias"].any()


def test_zeros_start_a_convex_model_at_log_k() -> None:
    model = zoo("logistic", init="zeros")
    assert model.loss(model.init(0), batch(model)).item() == pytest.approx(math.log(K))


@names
def test_models_survive_pickling(name: str) -> None:
    model = zoo(name)
    again = pickle.loads(pickle.dumps(model))
    params, data = model.init(0), batch(model)
    assert torch.equal(again(params, data.x), model(params, data.x))


# ---- losses ----


def test_padding_does_not_count() -> None:
    model = zoo("mlp")
    params, data = model.init(0), batch(model, n=4)
    masked = Data(data.x, data.y, torch.tensor([1.0, 0.0, 1.0, 0.0]))
    kept = Data(data.x[::2], data.y[::2], torch.ones(2))
    torch.testing.assert_close(model.loss(params, masked), model.loss(params, kept))
    empty = Data(data.x, data.y, torch.zeros(4))
    assert model.loss(params, empty).isnan()


def test_cross_entropy_closed_form() -> None:
    model = build_model("logistic", input_shape=(2,), num_outputs=3, task="classification")
    outputs = torch.tensor([[0.0, 0.0, 0.0], [math.log(2), 0.0, 0.0]])
    losses = model.sample_losses(outputs, torch.tensor([1, 0]))
    torch.testing.assert_close(losses, torch.tensor([math.log(3), math.log(2)]))
    assert model.correct(outputs, torch.tensor([1, 0])).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("fill", [math.nan, math.inf, -math.inf])
def test_a_model_without_numbers_is_right_about_nothing(fill: float) -> None:
    """softmax of these is nan in every class, so no class is its answer, class 0 neither."""
    model = build_model("logistic", input_shape=(2,), num_outputs=3, task="classification")
    outputs = torch.full((3, 3), fill)
    assert model.predictions(outputs).isnan().all()
    assert model.correct(outputs, torch.arange(3)).tolist() == [0.0, 0.0, 0.0]
    partly = torch.tensor([[1.0, math.nan, 0.0], [math.inf, 0.0, 0.0], [-math.inf, 2.0, 0.0]])
    assert model.correct(partly, torch.tensor([0, 0, 1])).tolist() == [0.0, 0.0, 1.0]
    binary = build_model("logistic", input_shape=(2,), num_outputs=2, task="binary")
    values = torch.tensor([[math.nan], [math.nan], [-math.inf], [math.inf]])
    assert binary.correct(values, torch.tensor([0, 1, 0, 1])).tolist() == [0.0, 0.0, 1.0, 1.0]


def test_logistic_loss_has_one_output_and_does_not_overflow() -> None:
    model = build_model("logistic", input_shape=(2,), num_outputs=2, task="binary")
    assert model.num_outputs == 1 and model.init(0)["head.weight"].shape == (1, 2)
    outputs = torch.tensor([[0.0], [1e4], [1e4], [-1e4], [1.0]], dtype=torch.float64)
    y = torch.tensor([1, 1, 0, 1, 0])
    expected = [math.log(2), 0.0, 1e4, 1e4, math.log1p(math.e)]
    assert model.sample_losses(outputs, y).tolist() == pytest.approx(expected, rel=1e-14)
    assert model.correct(outputs, y).tolist() == [0.0, 1.0, 0.0, 0.0, 0.0]


def test_logistic_gradient_is_sigmoid_minus_label() -> None:
    model = build_model("logistic", input_shape=(1,), num_outputs=1, task="binary")
    params = {"head.weight": torch.tensor([[0.5]]), "head.bias": torch.tensor([0.0])}
    data = Data(torch.tensor([[2.0]]), torch.tensor([1]), torch.ones(1))
    value = grad(model.loss)(params, data)["head.bias"]
    torch.testing.assert_close(value, torch.sigmoid(torch.tensor([1.0])) - 1)


def test_binary_cross_entropy_is_softmax_with_two_outputs() -> None:
    two = build_model("logistic", input_shape=(1,), num_outputs=2, task="classification")
    one = build_model("logistic", input_shape=(1,), num_outputs=2, task="binary")
    f, y = torch.tensor([[-1.5], [0.3], [2.0]]), torch.tensor([0, 1, 0])
    pair = torch.cat([torch.zeros_like(f), f], dim=1)
    torch.testing.assert_close(one.sample_losses(f, y), two.sample_losses(pair, y))
    assert torch.equal(one.correct(f, y), two.correct(pair, y))


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_squared_error_has_no_half(shape: tuple[int, ...]) -> None:
    model = build_model("linear", input_shape=(2,), num_outputs=1, task="regression", bias=False)
    params = {"head.weight": torch.tensor([[1.0, -1.0]])}
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0]])
    y = torch.tensor([0.0, 1.0, 4.0]).reshape(shape)
    losses = model.sample_losses(model(params, x), y)
    assert losses.tolist() == [1.0, 4.0, 9.0]
    assert model.loss(params, Data(x, y, torch.ones(3))).item() == pytest.approx(14 / 3)
    assert model.correct(model(params, x), y).isnan().all()


def test_several_outputs_are_averaged_as_in_torch() -> None:
    model = zoo("linear")
    data, params = batch(model), model.init(0)
    expected = F.mse_loss(model(params, data.x), data.y)
    torch.testing.assert_close(model.loss(params, data), expected)


# ---- mistakes ----


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("cnn_pflego", (64,), ["cnn_pflego", "(64,)", "channels, height, width", "model=mlp"]),
        ("resnet18_gn", (8, 8), ["resnet18_gn", "(8, 8)", "model=mlp"]),
        ("cnn_omniglot", (1, 8, 8), ["(1, 8, 8)", "too small", "2x2", "1x1", "model=mlp"]),
        ("lenet", (1, 8, 8), ["lenet", "too small", "5x5", "4x4"]),
    ],
)
def test_shapes_that_do_not_fit(name: str, shape: tuple[int, ...], words: list[str]) -> None:
    with pytest.raises(ConfigError) as e:
        build_model(name, input_shape=shape, num_outputs=2, task="classification")
    assert all(word in str(e.value) for word in words)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "mpl"}, "model 'mpl' is unknown; did you mean 'mlp'?"),
        ({"hiden": [3]}, "option of model 'mlp' 'hiden' is unknown; did you mean 'hidden'?"),
        ({"hidden": [0]}, "model.hidden is [0]"),
        ({"hidden": 200}, "model.hidden is 200"),
        ({"hidden": "200"}, "model.hidden is 200"),
        ({"init": "zero"}, "did you mean 'zeros'?"),
        ({"init": "zeros"}, "hidden layers of 'mlp' never move"),
        ({"bias": "no"}, "model.bias is 'no'"),
        ({"num_outputs": 0}, "0 outputs"),
        ({"task": "binry"}, "task 'binry' is unknown; did you mean 'binary'?"),
        ({"name": "linear"}, "use model=logistic"),
        ({"name": "logistic", "task": "regression"}, "use model=linear"),
        ({"name": "lenet", "padding": -1}, "model.padding is -1"),
        ({"name": "resnet18_gn", "stem": "big"}, "model.stem 'big' is unknown"),
        ({"name": "resnet18_gn", "groups": 3}, "model.groups is 3"),
    ],
)
def test_mistakes_are_named(change: dict[str, Any], message: str) -> None:
    right = {"name": "mlp", "input_shape": (1, 28, 28), "num_outputs": 2, "task": "classification"}
    with pytest.raises(ConfigError) as e:
        build_model(**(right | change))
    assert message in str(e.value)


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as e:
        build_model("mlp", input_shape=(3,), num_outputs=0, task="x", init="y", depth=3)
    assert len(e.value.problems) == 4


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_cross_entropy_is_the_same_where_nobody_differentiates(scale):
    """Without overflow, and as exact for a sample that is surely right."""
    model = build_model("logistic", input_shape=(3,), num_outputs=4, task="classification")
    outputs = scale * torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    y = torch.arange(50) % 4
    outputs[0] = torch.tensor([12.0, 0.0, 0.0, 0.0])
    wanted = torch.nn.functional.cross_entropy(outputs, y, reduction="none")
    torch.testing.assert_close(model.sample_losses(outputs, y), wanted, rtol=0, atol=0)
    with torch.no_grad():
        found = model.sample_losses(outputs, y)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=2e-7)
    with torch.no_grad(), pytest.raises(RuntimeError):
        model.sample_losses(outputs, y + 4)


def test_the_released_head_of_fedsofts_letters_is_squashed_before_the_cross_entropy() -> None:
    """Against torch's layers, whole and from features; kernels, which know logits only, stay away from it."""
    model, data = zoo("cnn_fedsoft_letters", head="released"), batch(zoo("cnn_fedsoft_letters"))
    params = model.init(0)
    logits = zoo("cnn_fedsoft_letters")(params, data.x)
    squashed = nn.Sequential(nn.ReLU(), nn.Softmax(1))(logits)
    torch.testing.assert_close(model(params, data.x), squashed)
    expected = nn.CrossEntropyLoss()(squashed, data.y)
    torch.testing.assert_close(model.loss(params, data), expected)
    features = data.with_inputs(model.body(params, data.x))
    head = {k: v for k, v in params.items() if model.is_head(k)}
    leaf = {k: v.clone().requires_grad_() for k, v in head.items()}
    wanted = torch.autograd.grad(model.features_loss(leaf, features), list(leaf.values()))
    for found, want in zip(kernel_grad(model.features_loss)(head, features).values(), wanted, strict=True):
        torch.testing.assert_close(found, want)
    with pytest.raises(ConfigError, match="head"):
        zoo("cnn_fedsoft_letters", head="softmax")
