"""One case whose recorded orders are answered anew by any runner: what tests of runners share."""

from contextlib import suppress
from dataclasses import replace

from fedpers.checks.case import Case, run
from fedpers.checks.toy_data import toy_federation
from fedpers.config import registry
from fedpers.core.data import ClientData
from fedpers.core.errors import FedpersError
from fedpers.core.plan import Plan
from fedpers.engines.cohort import Cohort
from fedpers.engines.runner import RunnerConfig
from fedpers.learning.model import build_model
from tests.methods.helpers import TOYS

CLIENTS = 4


class Listening(Cohort):
    """Keeps the requests of each exchange."""

    def __init__(self, *args):
        super().__init__(*args)
        self.exchanges = []

    def handle(self, requests):
        self.exchanges.append(list(requests))
        return super().handle(requests)


def case_of(name, model="mlp", sizes=(8,), seed=3, rounds=1, **changes):
    """Clients of equal size, so that all stand in one stack, unless `sizes` says otherwise."""
    row, image = registry.METHODS[name], model not in ("logistic", "mlp")
    fed = toy_federation(CLIENTS, sizes, dim=144 if image else 5)
    if image:
        shaped = lambda d: replace(d, x=d.x.reshape(-1, 1, 12, 12))  # noqa: E731
        parts = [ClientData(*map(shaped, vars(fed.client(k)).values())) for k in range(CLIENTS)]
        given = {"client": parts.__getitem__, "public": shaped(fed.public)}
        fed = replace(fed, input_shape=(1, 12, 12), **given)
    options = {"hidden": [7]} if model == "mlp" else {}  # no multiple of a register's floats
    net = build_model(model, input_shape=fed.input_shape, num_outputs=3, task="classification", **options)
    config = row.config_class()(**TOYS.get(name, {}), **changes)
    plan = Plan(seed=seed, clients_per_round=CLIENTS, eval_every=1)
    return Case(row.strategy_class(), row.client_class(), config, fed, net, plan, rounds)


def orders_of(case):
    """The requests of each exchange, up to a reply that the server refuses."""
    cohort = case.cohort(Listening, runner=RunnerConfig("stack"))
    with suppress(FedpersError):
        run(case, cohort)
    return cohort.exchanges


def answered(case, exchanges, runner):
    """Each exchange's answers {client: answer, or exception of one that failed}."""
    cohort = case.cohort(runner=runner)
    try:
        found = [cohort.handle(requests) for requests in exchanges]
    finally:
        cohort.close()
    return [{r.k: a for r, a in zip(*each, strict=True)} for each in zip(exchanges, found, strict=True)]
