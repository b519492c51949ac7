"""The expected form of a client's answers, found on the server by running one client on made-up data.

So a reply is compared with what the method's own client half gives to the same order, in type, dtype and
shape, and not with what another device happened to send. It costs one training on a few samples for each
form of an order, as a rule one a run.
"""

import logging
from typing import Any

import torch

from fedpers.config.registry import method
from fedpers.config.run_config import RunConfig
from fedpers.core.data import ClientData, Data
from fedpers.core.plan import Plan
from fedpers.core.pytree import TreeSpec, flatten, spec_of
from fedpers.core.scores import of_one
from fedpers.core.work import Work, work_of
from fedpers.deploy.resident import model_of, one_device
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.population import Population
from fedpers.flower.client import PersonalizedClient
from fedpers.flower.forms import example_of
from fedpers.flower.messages import Header, Request

log = logging.getLogger("fedpers")
SAMPLES = 4  # of each made-up split


class Rehearsal:
    """A client half with data of the run's shapes."""

    def __init__(self, cfg: RunConfig, device: str) -> None:
        self.cfg, self.device = cfg, device
        self.client = method(cfg.method_name).client_class()(cfg.method, model_of(cfg))
        if cfg.eval_train:
            self.client.splits = ("train", *self.client.splits)
        self.client.metrics = of_one(cfg.metrics)
        self._known: dict[tuple[TreeSpec, str, bool], Any] = {}

    def example(self, order: Any, header: Header) -> Any:
        """The form of an answer to this order (see `forms.example_of`); None if the rehearsal failed."""
        key = spec_of(*flatten(order)), header.kind, header.assess
        if key not in self._known:
            self._known[key] = self._rehearsed(order, header)
        return self._known[key]

    def _rehearsed(self, order: Any, header: Header) -> Any:
        plan = Plan(seed=0, device=self.device, dtype=self.cfg.dtype, privacy=self.cfg.privacy)
        data = made_up(self.cfg)
        population = Population(self.client, one_device(data, self.cfg), RamStore(), plan)
        with torch.no_grad():
            found = population.one(Request(0, order, header))
        if isinstance(found, Exception):
            log.info("no form of replies to a %s: %s", type(order).__name__, found)
            return None
        return example_of(found.body)

    def cost(self, order: Any, n: int) -> Work | None:
        """What an order costs a client with n samples; None where the client alone can tell."""
        counts = type(self.client).work_done is not PersonalizedClient.work_done
        return None if counts and not self.cfg.privacy.by_clients else work_of(self.client.work(order, n))


def made_up(cfg: RunConfig) -> ClientData:
    """A client's splits of a few samples each; for texts all tokens are the first."""
    shape, dtype = tuple(cfg.data.input_shape), getattr(torch, cfg.dtype)
    count = SAMPLES * torch.Size(shape).numel()
    x = torch.zeros(count) if cfg.data.tokens else torch.linspace(-1, 1, count).roll(1)
    classes = {"classification": cfg.data.num_classes, "binary": 2}.get(cfg.data.task)
    y = torch.arange(SAMPLES) % classes if classes else torch.linspace(-1, 1, SAMPLES).to(dtype)
    part = Data(x.to(dtype).reshape(SAMPLES, *shape), y, torch.ones(SAMPLES, dtype=dtype))
    return ClientData(part, part, part)
