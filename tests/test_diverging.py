"""One client that diverges leaves all others alone: bit for bit, whoever runs them, wherever it stands.

The orders of an ordinary run are answered anew by clients of whom three hold NaN, infinite and huge inputs.
All others must answer what they answered.
"""

import os
from dataclasses import replace

import pytest

from fedpers.checks.case import same
from fedpers.config import registry
from fedpers.engines.runner import RunnerConfig
from fedpers.learning.kernels.dispatch import autograd_only
from fedpers.learning.optimizers import LocalConfig
from tests.runners import CLIENTS, answered, case_of, orders_of

BAD = (float("nan"), float("inf"), 1e30)  # inputs of three clients in a row
LINUX = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")
LOCALS = {  # where a method has one: the rules of a step whose moments are padded, too
    "momentum": LocalConfig(lr=0.1, epochs=2, batch_size=5, momentum=0.9, weight_decay=0.01),
    "adam": LocalConfig(lr=0.1, epochs=2, batch_size=5, optimizer="adam"),
}


def bodies(case, exchanges, runner):
    """Each client's answers."""
    answers = answered(case, exchanges, runner)
    return [[a[k].body for a in answers if k in a and hasattr(a[k], "body")] for k in range(CLIENTS)]


def spoilt(case, first):
    """The case with bad inputs of three clients from `first` on, and who is left."""
    bad = {(first + i) % CLIENTS: value for i, value in enumerate(BAD)}

    def client(k):
        own = case.federation.client(k)
        return replace(own, train=replace(own.train, x=own.train.x * bad[k])) if k in bad else own

    worse = replace(case, federation=replace(case.federation, client=client))
    return worse, set(range(CLIENTS)) - bad.keys()


def holds(case, *runners, firsts=range(CLIENTS)):
    exchanges = orders_of(case)
    for runner in runners:
        want = bodies(case, exchanges, runner)
        assert all(want)
        for first in firsts:
            worse, others = spoilt(case, first)
            found = bodies(worse, exchanges, runner)
            for k in others:
                assert same(want[k], found[k]), f"{runner}: client {k} hears of the others"


@pytest.mark.parametrize("name", registry.METHODS)
def test_in_every_position_of_a_stack(name):
    holds(case_of(name), RunnerConfig("stack"))


@pytest.mark.parametrize("model", ["logistic", "lenet"])
@pytest.mark.parametrize("name", [name for name in registry.METHODS if name != "fedbn"])  # no layer to keep
def test_of_other_models(name, model):
    holds(case_of(name, model), RunnerConfig("stack"), firsts=[0])


@pytest.mark.parametrize("local", LOCALS)
@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedper"])
def test_with_moments_and_penalties(name, local):
    holds(case_of(name, local=LOCALS[local]), RunnerConfig("stack"))


@LINUX
@pytest.mark.parametrize("name", ["fedavg", "apfl", "scaffold"])
def test_in_the_loop_and_in_a_workers_stack(name):
    holds(case_of(name), RunnerConfig("loop"), RunnerConfig(workers=2), firsts=[0, 1])


@pytest.mark.parametrize("name", ["fedavg", "perfedavg"])
def test_without_kernels(name):
    with autograd_only():
        holds(case_of(name), RunnerConfig("stack"))
