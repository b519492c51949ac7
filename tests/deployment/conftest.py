"""One site for a module whose tests need real processes; they stay in one worker (xdist_group)."""

from collections.abc import Iterator

import pytest

from tests.deployment.site import Site, why_not


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    made = Site(tmp_path_factory.mktemp("site"))
    try:
        made.start_server()
        made.start_proxy()
        made.admit()
        for name in made.names:
            made.start_device(name)
        yield made
    finally:
        made.close()
