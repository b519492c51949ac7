"""What only a GPU can show: the same rounds there as on the CPU, in its memory, at its precisions.

FEDPERS_TEST_DEVICE=cpu runs them on a machine without one, to see that the tests themselves work.
"""

import os
from dataclasses import replace

import pytest
import torch

from fedpers.app.cli import main
from fedpers.bench.engines import play
from fedpers.bench.work import Work, federation, make_model
from fedpers.checks.case import close, run
from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig
from fedpers.config import registry
from fedpers.core.plan import Plan
from fedpers.core.pytree import leaves
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig
from fedpers.learning.kernels.dispatch import autograd_only
from fedpers.learning.kernels.graphs import Recorder
from fedpers.learning.optimizers import LocalConfig
from fedpers.results.files import read_csv
from fedpers.strategies.fedavg import FedAvg
from tests.test_contract import case

DEVICE = os.environ.get("FEDPERS_TEST_DEVICE", "cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        DEVICE == "cuda" and not torch.cuda.is_available(), reason="torch finds no CUDA device"
    ),
]


def tensors(tree):
    return [x for x in leaves(tree) if isinstance(x, torch.Tensor)]


def on(name, device, runner, **options):
    """The server after some rounds of a method on toys; kernels are the CPU's, so both go without."""
    small = case(name)
    small = replace(small, plan=replace(small.plan, device=device))
    with autograd_only():
        server, cohort = run(small, small.cohort(runner=RunnerConfig(runner, **options)))
    return server, cohort


@pytest.mark.parametrize("name", registry.METHODS)
def test_rounds_are_those_of_the_cpu(name):
    """Whole states to 1e-3: sums run in another order, and three rounds carry that on."""
    there, cohort = on(name, DEVICE, "stack")
    here, _ = on(name, "cpu", "stack")
    weights = {w.shape for w in case(name).model.init(0).values() if w.dim() > 1}
    assert all(x.device.type == DEVICE for x in tensors(there.state) if x.shape[-2:] in weights)
    moved = [x.cpu() for x in tensors(there.state)]
    assert close(moved, tensors(here.state), 1e-3)
    assert not cohort.runner.looped  # vmap took every operator
    assert all(tuner.measures == (DEVICE == "cpu") for tuner in cohort.runner._tuners.values())


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "ditto", "fedsoft", "fedrep"])
def test_recorded_steps_are_the_steps(name):
    """Bit for bit: a graph launches what torch would."""
    recorded, cohort = on(name, DEVICE, "stack")
    recorder = cohort.runner.recorder
    assert not recorder.not_capturable and bool(recorder.kept) == (DEVICE == "cuda")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "due", lambda self, key: False)
        made, cohort = on(name, DEVICE, "stack")
    assert not cohort.runner.recorder.kept
    assert all(map(torch.equal, tensors(recorded.state), tensors(made.state)))


@pytest.mark.parametrize("name", ["fedavg", "pflego", "ppfl", "fedsoft", "federico", "asvrcd"])
def test_stack_and_loop_are_one(name):
    one, two = (on(name, DEVICE, way)[0] for way in ("stack", "loop"))
    assert close(tensors(one.state), tensors(two.state), 1e-3)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_lower_precisions_stay_near(precision):
    if DEVICE == "cpu":
        pytest.skip("precisions are of GPUs")
    low, full = (on("fedavg", DEVICE, "stack", precision=p)[0] for p in (precision, "float32"))
    assert close(tensors(low.state), tensors(full.state), 5e-2)


@pytest.mark.parametrize("model", ["lenet", "cnn", "resnet18"])
@pytest.mark.parametrize("convolution", ["products", "grouped"])
def test_networks_train_there_as_on_the_cpu(model, convolution):
    work = Work(model, M=3, C=3, n=4, B=2, rounds=1)
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(3, 4, *work.shape, generator=draw), torch.arange(12).reshape(3, 4) % 10
    config, network, found = FedAvgConfig(LocalConfig(lr=0.01, batch_size=2)), make_model(work), []
    for device, how in (
        (DEVICE, RunnerConfig("stack", convolution=convolution)),
        ("cpu", RunnerConfig("loop")),
    ):
        strategy = FedAvg(config, network, Plan(eval_every=0, device=device))
        fed = federation(x.to(device), y.to(device), test=slice(1))
        with autograd_only():
            play(strategy, FedAvgClient(config, network), fed, RamStore(), how, 1, lambda t, log: None)
        found.append([v.cpu() for v in strategy.state.params.values()])
    assert close(*found, 1e-3)


def test_a_run_from_the_command_line(tmp_path):
    """Its loss after three rounds."""
    rows = []
    for folder, device in (("there", DEVICE), ("here", "cpu")):
        words = ["method=pflego", "rounds=3", "data.num_clients=4", f"device={device}"]
        assert main(["run", *words, f"out={tmp_path / folder}"]) == 0
        rows.append(read_csv(tmp_path / folder / "metrics.csv")[0][-1])
    assert rows[0]["loss"] == pytest.approx(rows[1]["loss"], rel=1e-2)
