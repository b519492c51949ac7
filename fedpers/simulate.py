"""One run in this process from Python objects, without configuration files."""

from fedpers.core.data import Federation
from fedpers.core.host import borrowed
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.client_store import ClientStore, RamStore
from fedpers.flower.client import PersonalizedClient
from fedpers.flower.strategy import Observer, PersonalizedStrategy


def simulate(
    strategy: PersonalizedStrategy,
    client: PersonalizedClient,
    federation: Federation,
    num_rounds: int,
    *,
    store: ClientStore | None = None,
    observer: Observer | None = None,
) -> Cohort:
    """Run `strategy` on a federation's clients in this process; returns the clients' side.

    The server's result is `strategy.state`; evaluation is in `strategy.client_metrics`.
    """
    cohort = Cohort(client, federation, store or RamStore(), strategy.plan)
    strategy.holdout, strategy.public = federation.holdout, federation.public
    with borrowed():
        strategy.start(InProcessGrid(cohort), num_rounds=num_rounds, observer=observer)
    return cohort
