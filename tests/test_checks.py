"""Contract checks fire on the fault that they are for; a method that passes says so in lines."""

import pytest
import torch

from fedpers.checks.contract import CHECKS, check_method
from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig
from fedpers.core.params import mean
from fedpers.families.global_model.client import Weights
from fedpers.strategies.fedavg import FedAvg

NAMES = {check.__name__: check for check in CHECKS}


class WritesInPlace(FedAvg):
    """Adds to the state that it was given."""

    def round(self, s, t, rng):
        """FedAvg's round, and a step on the old state."""
        new = yield from super().round(s, t, rng)
        for value in s.params.values():
            value.add_(1.0)
        return new


class SwallowsFailures(FedAvg):
    """Takes a round without replies for one without orders."""

    def start(self, grid, *args, **options):
        """Hide that nobody answered."""
        try:
            return super().start(grid, *args, **options)
        except Exception:
            return None


class Deaf(FedAvg):
    """Ignores replies."""

    def round(self, s, t, rng):
        """Ask, and forget what was said."""
        yield dict.fromkeys(self.sample(rng), s)
        return Weights({k: 0.9 * v for k, v in s.params.items()})


class Unweighted(FedAvg):
    """Promises to weigh by samples, and takes the plain mean."""

    def round(self, s, t, rng):
        """A plain mean."""
        replies = yield dict.fromkeys(self.sample(rng), s)
        return Weights(mean([r.params for r in replies.values()]))


class Idle(FedAvgClient):
    """Never trains."""

    def answer(self, order, state, data, rng):
        """What came goes back."""
        return order, state


class Stubborn(FedAvgClient):
    """Predicts by a model of its own making."""

    def personal(self, shared, state):
        """Zeros."""
        return {k: torch.zeros_like(v) for k, v in shared.params.items()}


FAULTS = [
    ("nothing_is_written_in_place", WritesInPlace, FedAvgClient, "wrote into the state"),
    ("everybody_fails", SwallowsFailures, FedAvgClient, "everybody failed went through"),
    ("replies_matter", Deaf, FedAvgClient, "ignores what the clients reply"),
    ("clients_train", FedAvg, Idle, "no client trains"),
    ("predictions_follow_training", FedAvg, Stubborn, "ignores what it is given"),
    ("promised_weights_are_used", Unweighted, FedAvgClient, "not weighed by their samples"),
]


@pytest.mark.parametrize(("name", "strategy", "client", "message"), FAULTS, ids=[f[0] for f in FAULTS])
def test_a_planted_fault_is_found(name, strategy, client, message):
    from fedpers.checks.case import make_case

    NAMES[name](make_case(FedAvg, FedAvgClient, FedAvgConfig()))
    with pytest.raises(AssertionError, match=message):
        NAMES[name](make_case(strategy, client, FedAvgConfig()))


def test_a_pass_prints_a_line_a_check_and_no_failure(capsys, caplog):
    assert check_method(FedAvg, FedAvgClient, FedAvgConfig()) == len(CHECKS)
    out, err = capsys.readouterr()
    assert out.splitlines() == [f"{name}: holds" for name in NAMES]
    assert err == ""
    assert not caplog.records
