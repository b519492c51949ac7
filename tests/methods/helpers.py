"""What tests of methods share: runs by name, federations from arrays, restatements' inputs."""

from typing import Any

import numpy as np
import torch

from fedpers.app.run import execute
from fedpers.checks.contract import Case
from fedpers.checks.toy_data import toy_federation
from fedpers.config import compose, registry
from fedpers.core.data import ClientData, Data, Federation
from fedpers.core.params import split
from fedpers.core.rng import server_rng
from fedpers.engines.cohort import Cohort
from fedpers.flower.strategy import PersonalizedStrategy
from fedpers.learning.model import Model, build_model
from fedpers.method import Plan, Stream
from fedpers.simulate import simulate

# What methods need on toys, whose networks do not normalise.
TOYS: dict[str, dict[str, Any]] = {"fedbn": {"private": ["dense1.*"]}}


def config(name: str, **options: Any) -> Any:
    """The method's config dataclass."""
    return registry.METHODS[name].config_class()(**TOYS.get(name, {}), **options)


def simulated(
    name: str, cfg: Any, fed: Federation, model: Model, rounds: int = 1, **plan: Any
) -> tuple[PersonalizedStrategy, Cohort]:
    """(strategy, clients' side) after some rounds in float64."""
    row = registry.METHODS[name]
    strategy = row.strategy_class()(cfg, model, Plan(**{"dtype": "float64", **plan}))
    return strategy, simulate(strategy, row.client_class()(cfg, model), fed, rounds)


def contract_case(name: str, cfg: Any, **options: Any) -> Case:
    """The method on the toy federation of the contract tests."""
    from fedpers.checks.contract import make_case

    row = registry.METHODS[name]
    return make_case(row.strategy_class(), row.client_class(), cfg, **options)


def doubles(**options: Any) -> Federation:
    """A toy federation in float64."""
    return toy_federation(dtype=torch.float64, **options)


def network(fed: Federation, name: str = "logistic", **options: Any) -> Model:
    """A small model for a federation; mlp has 4 hidden units."""
    if name == "mlp":
        options = {"hidden": [4], **options}
    return build_model(
        name, input_shape=fed.input_shape, num_outputs=fed.num_classes, task=fed.task, **options
    )


def regression(xs: list[Any], ys: list[Any]) -> Federation:
    """A linear regression for each client; x [n, d], y [n, 1]; test and validation are training."""
    parts = []
    for x, y in zip(xs, ys, strict=True):
        x, y = torch.as_tensor(x, dtype=torch.float64), torch.as_tensor(y, dtype=torch.float64)
        part = Data(x, y, torch.ones(len(x), dtype=torch.float64))
        parts.append(ClientData(part, part, part))
    sizes = np.array([len(p.train) for p in parts])
    return Federation(
        "arrays",
        len(parts),
        tuple(parts[0].train.x.shape[1:]),
        1,
        "regression",
        parts.__getitem__,
        sizes,
        sizes,
        np.zeros((len(parts), 0)),
    )


def batches(seed: int, t: int, k: int, n: int, size: int, passes: int) -> list[np.ndarray]:
    """The minibatches of client k's first local training in round t."""
    index, weight = Stream(seed, t, k).schedule(n, size, passes, 0)
    return [i[w > 0].numpy() for i, w in zip(index, weight, strict=True)]


def chosen(strategy: PersonalizedStrategy, t: int) -> list[int]:
    """The clients of round t, where sampling them is the first thing that the round draws."""
    return strategy.sample(server_rng(strategy.plan.seed, t))


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Equal bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def smoke(name: str, tmp_path: Any, *overrides: str) -> dict[str, Any]:
    """The summary of three rounds on the embedded digits, driven as from the command line."""
    cfg = compose.load([f"method={name}", "rounds=3", "data.num_clients=6", *overrides])
    return execute(cfg, tmp_path)


def quadratics(a: Any, c: Any, sizes: Any) -> Federation:
    """Clients with losses a_k (w - c_k)² for one weight w without a bias; a loss has no factor 1/2.

    All of a client's samples are alike.
    """
    xs = [np.full((n, 1), ak**0.5) for ak, n in zip(a, sizes, strict=True)]
    ys = [x * ck for x, ck in zip(xs, c, strict=True)]
    return regression(xs, ys)


def arrays(params: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """A layer's {w, b} as the restatements in NumPy have them."""
    return {name.rpartition(".")[2][0]: value.double().numpy() for name, value in params.items()}


def initial_parts(model: Model, seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(body, head) of a model with one hidden layer, at its start."""
    head, body = split(model.init(seed), model.is_head)
    return arrays(body), arrays(head)


def drawn_heads(model: Model, seed: int, fed: Federation) -> list[dict[str, np.ndarray]]:
    """The heads that clients start with where each has one drawn for it."""
    drawn = (model.init_head(Stream(seed, 0, k).integer_seed()) for k in range(fed.num_clients))
    return [arrays(head) for head in drawn]


def samples(fed: Federation) -> list[tuple[np.ndarray, np.ndarray]]:
    """(x, y) of each client's training data."""
    parts = [fed.client(k).train for k in range(fed.num_clients)]
    return [(p.x.numpy(), p.y.numpy()) for p in parts]


def assert_close(got: dict[str, torch.Tensor], want: dict[str, np.ndarray], atol: float = 1e-13):
    """Equal up to rounding in float64."""
    found = arrays(got)
    assert found.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=atol)
