"""The template of CONTRIBUTING.md is a method that works: contract, reductions, size."""

import ast
import sys
from pathlib import Path

import pytest
import torch

from fedpers.checks.contract import CHECKS, check_method, make_case, run
from fedpers.method import LocalConfig

DOCS = Path(__file__).parent.parent / "docs"
sys.path.append(str(DOCS))
from template.clients_apfl_fixed import TemplateClient, TemplateConfig  # noqa: E402
from template.strategies_apfl_fixed import Template  # noqa: E402


def test_it_passes_every_contract_check():
    assert check_method(Template, TemplateClient, TemplateConfig()) == len(CHECKS)


def test_it_imports_the_public_faces_only():
    """What a method in a package of its own may rely on is enough."""
    taken = {
        name
        for path in (DOCS / "template").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [])
        + ([a.name for a in node.names] if isinstance(node, ast.Import) else [])
        if name and name.split(".")[0] == "fedpers"
    }
    assert taken == {"fedpers.method"}


def test_no_mixture_is_fedavg():
    from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig
    from fedpers.strategies.fedavg import FedAvg

    local = LocalConfig(lr=0.1)
    server, cohort = run(make_case(Template, TemplateClient, TemplateConfig(0.0, local)))
    plain, _ = run(make_case(FedAvg, FedAvgClient, FedAvgConfig(local)))
    assert all(torch.equal(v, plain.state.params[k]) for k, v in server.state.w.items())
    x = cohort.data(0).test.x
    mixed = cohort.client.predict(server.evaluation_message(server.state, 0), cohort.state(0, (9, 0)), x)
    torch.testing.assert_close(mixed, cohort.client.model(plain.state.params, x))


def test_a_method_is_under_a_hundred_lines_of_code():
    lines = [
        line
        for path in (DOCS / "template").glob("*.py")
        for line in path.read_text().splitlines()
        if line.strip() and not line.strip().startswith("#")
    ]
    code = len(lines) - sum(line.strip().startswith(('"""', "from ", "import ")) for line in lines)
    assert code < 100


def test_a_broken_method_is_caught():
    class Forgetful(TemplateClient):
        """Writes into its memory."""

        def answer(self, order, memory, data, rng):
            for value in memory.v.values():
                value.add_(1.0)
            return super().answer(order, memory, data, rng)

    with pytest.raises(AssertionError, match="wrote into"):
        check_method(Template, Forgetful, TemplateConfig())

    class Leaky(TemplateClient):
        """Sends what it declared private."""

        def answer(self, order, memory, data, rng):
            reply, memory = super().answer(order, memory, data, rng)
            return type(reply)(memory.v), memory

    with pytest.raises(AssertionError, match="private v was sent"):
        check_method(Template, Leaky, TemplateConfig())
