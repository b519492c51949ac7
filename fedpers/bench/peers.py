"""The peers that benchmarks compare with, where they are installed; each in its own way of use."""

import json
import os
from typing import Any

import numpy as np

from fedpers.bench.work import LR, SETTING, Clock, Work, arrays, as_module, make_model, tensors


def _stock(work: Work, clock: Clock) -> tuple[Any, dict[str, Any]]:
    """(flwr's FedAvg, what its `start` is given); the clock is told of every round."""
    from flwr.app import ArrayRecord
    from flwr.serverapp.strategy import FedAvg

    class Timed(FedAvg):
        def configure_train(self, server_round: int, *args: Any, **kwargs: Any) -> Any:
            if server_round == 1:
                clock.start()
            return super().configure_train(server_round, *args, **kwargs)

        def aggregate_train(self, *args: Any, **kwargs: Any) -> Any:
            found = super().aggregate_train(*args, **kwargs)
            clock.done()
            return found

    os.environ[SETTING] = json.dumps(work.__dict__)
    strategy = Timed(
        fraction_train=work.C / work.M,
        fraction_evaluate=0.0,
        min_train_nodes=work.C,
        min_available_nodes=work.M,
    )
    first = ArrayRecord(as_module(make_model(work)).state_dict())
    return strategy, {"initial_arrays": first, "num_rounds": work.rounds}


def flower_ray(work: Work) -> dict[str, Any]:
    """Flower's own simulation on Ray: flwr FedAvg, a ClientApp in a module, data mapped once."""
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    from fedpers.bench.flower_app import app

    server, clock = ServerApp(), Clock()
    strategy, given = _stock(work, clock)

    @server.main()
    def main(grid: Any, context: Any) -> None:
        strategy.start(grid=grid, **given)

    init: Any = {"num_cpus": work.workers, "log_to_driver": False, "include_dashboard": False}
    resources: Any = {"client_resources": {"num_cpus": 1.0, "num_gpus": 0.0}, "init_args": init}
    run_simulation(server, app, work.M, backend_config=resources)
    return clock.result()


def flower_grid(work: Work) -> dict[str, Any]:
    """The same ClientApp and the same stock flwr FedAvg on our in-process grid."""
    from fedpers.bench.app_grid import AppGrid
    from fedpers.bench.flower_app import app

    clock = Clock()
    strategy, given = _stock(work, clock)
    strategy.start(grid=AppGrid(app, work.M), **given)
    return clock.result()


def pfl_research(work: Work) -> dict[str, Any]:
    """apple/pfl-research: SimulatedBackend and FederatedAveraging."""
    import torch
    import torch.nn.functional as F
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    x, y = tensors(work)
    clock, module = Clock(), as_module(make_model(work))

    def metrics(a: Any, b: Any, eval: bool = False) -> dict[str, Any]:
        return {"loss": Weighted(F.cross_entropy(module(a), b, reduction="sum").item(), len(b))}

    module.loss = lambda a, b, eval=False: F.cross_entropy(module(a), b)
    module.metrics = metrics
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))

    class Watch(TrainingProcessCallback):
        def on_train_begin(self, *, model: Any) -> Any:
            clock.start()
            return Metrics()

        def after_central_iteration(self, *args: Any, **kwargs: Any) -> Any:
            clock.done()
            return False, Metrics()

    sampler = get_user_sampler("minimize_reuse", list(range(work.M)))
    data = FederatedDataset(lambda u: Dataset([x[u], y[u]], user_id=str(u)), sampler)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=work.rounds,
            evaluation_frequency=10**6,
            train_cohort_size=work.C,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=work.E, local_learning_rate=LR, local_batch_size=work.B
        ),
        callbacks=[Watch()],
    )
    return clock.result()


def fedjax(work: Work) -> dict[str, Any]:
    """google/fedjax: fed_avg with its default backend, jitted steps; lr and mlp only."""
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    import fedjax as fj
    import jax
    import jax.numpy as jnp
    from fedjax.algorithms import fed_avg

    x, y = arrays(work)
    params = {k: jnp.asarray(v.numpy()) for k, v in make_model(work).init(0).items()}

    def loss(p: Any, batch: Any, rng: Any) -> Any:
        h = batch["x"].reshape(batch["x"].shape[0], -1)
        if work.model == "mlp":
            h = jax.nn.relu(h @ p["dense1.weight"].T + p["dense1.bias"])
        z = jax.nn.log_softmax(h @ p["head.weight"].T + p["head.bias"])
        return -jnp.mean(jnp.take_along_axis(z, batch["y"][:, None], 1))

    if work.model not in ("lr", "mlp"):
        raise SystemExit("fedjax is compared on lr and mlp")
    data = fj.InMemoryFederatedData({str(k): {"x": np.asarray(x[k]), "y": y[k]} for k in range(work.M)})
    batches = fj.ShuffleRepeatBatchHParams(batch_size=work.B, num_epochs=work.E, drop_remainder=True)
    algorithm = fed_avg.federated_averaging(
        jax.grad(loss), fj.optimizers.sgd(LR), fj.optimizers.sgd(1.0), batches
    )
    state, clock = algorithm.init(params), Clock()
    sampler = fj.client_samplers.UniformGetClientSampler(data, work.C, seed=0)
    clock.start()
    for _ in range(work.rounds):
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)
        clock.done()
    return clock.result()
