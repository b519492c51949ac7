"""The contract of a method as a fixture, one test a check; for a conftest.py that asks for it.

pytest_plugins = ["fedpers.pytest_plugin"]

@pytest.mark.fedpers_method(MyStrategy, MyClient, MyConfig())
def test_contract(fedpers_check):
    fedpers_check()
"""

from collections.abc import Callable
from typing import Any

import pytest

MARK = "fedpers_method"


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", f"{MARK}(strategy, client, config): the method of `fedpers_check`")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `fedpers_check` is one test a check."""
    if "fedpers_check" in metafunc.fixturenames:
        from fedpers.checks.contract import CHECKS

        names = [check.__name__ for check in CHECKS]
        metafunc.parametrize("fedpers_check", names, indirect=True)


@pytest.fixture
def fedpers_check(request: pytest.FixtureRequest) -> Callable[[], None]:
    """Runs one check of the contract on the method of the test's marker."""
    from fedpers.checks.contract import CHECKS, make_case

    marker = request.node.get_closest_marker(MARK)
    if marker is None or len(marker.args) != 3:
        pytest.fail(f"give the method: @pytest.mark.{MARK}(MyStrategy, MyClient, MyConfig())", pytrace=False)
    method: tuple[Any, Any, Any] = marker.args
    check = next(c for c in CHECKS if c.__name__ == request.param)
    return lambda: check(make_case(*method))
