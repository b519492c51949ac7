"""The client half: a pure function of an order, the client's state and its data; it returns a reply."""

import copy
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from flwr.client import NumPyClient
from torch import Tensor

from fedpers.core import scores
from fedpers.core.data import ClientData, Data
from fedpers.core.errors import FedpersError
from fedpers.core.params import Params
from fedpers.core.rng import Stream
from fedpers.core.serialization import pack, unpack
from fedpers.core.work import Work
from fedpers.flower.messages import SKELETON, Header, Host, Request
from fedpers.flower.privacy import UNDECLARED, Disclosure
from fedpers.flower.unseen_clients import UnseenClientOrder, train_locally
from fedpers.learning.kernels.scoring import scores_of
from fedpers.learning.model import Model


class PersonalizedClient(NumPyClient, ABC):
    """Base of every method's client half; one object serves any number of virtual clients.

    A method defines `answer`, `personal` (or `predict`), and `initial_state` if clients have a state. They
    are pure: nothing is stored on the object, nothing is written in place, randomness is an argument.
    """

    vectorized: ClassVar[bool] = True  # False: `answer` cannot run under vmap
    apart: ClassVar[bool] = False  # True: under vmap `answer` gets order and state as `core.vmap.PerClient`
    elementwise: ClassVar[bool] = False  # True: on a CPU large models are trained one after another
    draws: ClassVar[bool] = False  # True: losses draw numbers of the client (`learning.draws.uniform`)
    private: ClassVar[tuple[str, ...]] = ()  # fields of the state that must never be sent
    reply_is_shared: ClassVar[bool] = False  # True: a reply is what its sender then predicts with
    read_only_orders: ClassVar[tuple[type, ...]] = ()  # they change no model: no assessment after them
    disclosure: ClassVar[Disclosure] = UNDECLARED  # what leaves in training, and what may be promised of it
    splits: tuple[str, ...] = ("valid", "test")  # what `assess` measures; a run may add "train"
    metrics: tuple[str, ...] = ()  # names of `core.scores.SCORES` that it adds; a run may name some

    def __init_subclass__(cls) -> None:
        """A class that defines `predict` alone does not inherit another method's `personal`."""
        super().__init_subclass__()
        if "predict" in vars(cls) and "personal" not in vars(cls):
            cls.personal = PersonalizedClient.personal  # type: ignore[method-assign]

    def __init__(self, config: Any, model: Model) -> None:
        self.config, self.model = config, model
        self._seat: tuple[Host, int] | None = None

    # ---- what a method writes -------------------------------------------------------------------

    def initial_state(self, params: Params, data: Data, rng: Stream) -> Any:
        """The state of a client before its first training; `params` are the initial parameters."""
        return None

    def initial_states(self, params: Params, data: Sequence[Data], rngs: Sequence[Stream]) -> Sequence[Any]:
        """`initial_state` of several clients, for a method that draws them faster together."""
        return [self.initial_state(params, d, rng) for d, rng in zip(data, rngs, strict=True)]

    @abstractmethod
    def answer(self, order: Any, state: Any, data: Data, rng: Stream) -> tuple[Any, Any]:
        """(reply, new state) to one order, on the client's training data."""

    def personal(self, shared: Any, state: Any) -> Params | None:
        """The personal model's parameters; None if predictions are no single model's."""
        return None

    def predict(self, shared: Any, state: Any, x: Tensor) -> Tensor:
        """The personal model's outputs [n, K] (logits, for classes) on inputs x.

        Raises:
            FedpersError: the method gives neither this nor `personal`.
        """
        params = self.personal(shared, state)
        if params is None:
            raise FedpersError(f"{type(self).__name__} must define `personal` or `predict`")
        return self.model(params, x)

    def work(self, order: Any, n: int) -> Work | int:
        """Samples whose gradient `answer` takes on n training samples; `Work`, if it does more than that."""
        return 0

    def work_done(self, order: Any, reply: Any, kept: Any, n: int) -> Work | int:
        """`work`, where it depends on the data: the reply or the new state `kept` tells (None: unchanged)."""
        return self.work(order, n)

    def trains_without_momentum(self, order: Any) -> bool:
        """Whether `answer` to this order takes gradients but no step of a local optimiser."""
        return False

    @property
    def adapts(self) -> bool:
        """Whether the client adapts locally before it predicts (see `adapt`)."""
        return False

    def adapts_to(self, shared: Any) -> bool:
        """`adapts`, where it depends on what the client was sent (a new client, say)."""
        return self.adapts

    def adapt(self, shared: Any, state: Any, data: Data, rng: Stream) -> tuple[Any, Any]:
        """(shared, state) after local adaptation, for evaluation only; nothing is kept."""
        return shared, state

    def choose(self, shared: Any, state: Any, data: Data) -> Any:
        """The part of `shared` that the client predicts with, chosen by its training data."""
        return shared

    def local_model(self, order: Any, reply: Any) -> Any:
        """What a participant predicts with right after its local training: its reply, or its order."""
        return reply if self.reply_is_shared else order

    @classmethod
    def exposed(cls, config: Any) -> list[str]:
        """What these settings would send beside the declared delta: the remedy of each, one line."""
        return []

    # ---- evaluation -----------------------------------------------------------------------------

    def assess(self, shared: Any, state: Any, data: ClientData, rng: Stream) -> dict[str, Tensor]:
        """Loss and accuracy of the personal model on the client's own splits.

        Columns: {valid,test}_{num,loss,accuracy}; with local adaptation these are after it, and
        {valid,test}_{loss,accuracy}_before are before it. The splits are those of `splits`; each of
        `metrics` is a column more.
        """
        found: dict[str, Tensor] = {}
        order, shared = shared, self._chosen(shared, state, data.train)
        if isinstance(order, UnseenClientOrder) or self.adapts_to(shared):
            found |= self._measure(shared, state, data, "_before")
            shared, state = self._adapted(order, shared, state, data.train, rng)
        return found | self._measure(shared, state, data, "")

    def ready(self, order: Any, state: Any, data: Data, rng: Stream) -> tuple[Any, Any]:
        """(shared, state) that the client predicts with, after it has chosen and adapted."""
        return self._adapted(order, self._chosen(order, state, data), state, data, rng)

    def _chosen(self, order: Any, state: Any, data: Data) -> Any:
        return self.choose(order.order if isinstance(order, UnseenClientOrder) else order, state, data)

    def _adapted(self, order: Any, shared: Any, state: Any, data: Data, rng: Stream) -> tuple[Any, Any]:
        if self.adapts_to(shared):
            shared, state = self.adapt(shared, state, data, rng)
        if isinstance(order, UnseenClientOrder):
            shared, state = train_locally(self._outputs, self.model, (shared, state), data, rng, order)
        return shared, state

    def _outputs(self, shared: Any, state: Any, x: Tensor) -> Tensor:
        params = self.personal(shared, state)
        return self.predict(shared, state, x) if params is None else self.model(params, x)

    def _measure(self, shared: Any, state: Any, data: ClientData, suffix: str) -> dict[str, Tensor]:
        found, params = {}, self.personal(shared, state)
        for name in self.splits:
            part = getattr(data, name)
            found[f"{name}_num"] = part.num
            scores = self._scores(shared, state, params, part)
            found[f"{name}_loss{suffix}"], found[f"{name}_accuracy{suffix}"] = scores
            if self.metrics:
                more = self._more_scores(shared, state, params, part)
                found |= {f"{name}_{metric}{suffix}": value for metric, value in more.items()}
        return found

    def _more_scores(self, shared: Any, state: Any, params: Params | None, part: Data) -> dict[str, Tensor]:
        """Those of `metrics`, in NumPy: the runner evaluates clients one by one where there are some."""
        outputs = self.predict(shared, state, part.x) if params is None else self.model(params, part.x)
        real = part.mask.bool()
        y, predictions = part.y[real].cpu().numpy(), self.model.predictions(outputs)[real].cpu().numpy()
        found = scores.of_client(self.metrics, y, predictions)
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in found.items()}

    def _scores(self, shared: Any, state: Any, params: Params | None, part: Data) -> tuple[Tensor, Tensor]:
        """(mean loss, accuracy) on the samples that are no padding; nan where there is none."""
        if not len(part):
            nothing = part.num * math.nan
            return nothing, nothing
        if params is not None and (quick := scores_of(self.model, params, part)) is not None:
            return quick
        outputs = self.predict(shared, state, part.x) if params is None else self.model(params, part.x)
        losses, right = self.model.sample_losses(outputs, part.y), self.model.correct(outputs, part.y)
        return (losses * part.mask).sum() / part.num, (right * part.mask).sum() / part.num

    # ---- Flower's NumPyClient, of one partition (see `at`) ---------------------------------------

    def at(self, host: Host, k: int) -> "PersonalizedClient":
        """This client as the NumPyClient of partition k, whose data and state are those of `host`."""
        seated = copy.copy(self)
        seated._seat = (host, k)
        return seated

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        """Partition id and number of training samples."""
        host, k = self._taken_seat()
        return {"partition-id": k, "num-examples": int(host.federation.num_train[k])}

    def get_parameters(self, config: dict[str, Any]) -> list[Any]:
        """Nothing: personal parameters stay with their client."""
        return []

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
        """Answer one packed order; the metrics hold the reply's skeleton and its cost."""
        return self._handle("train", parameters, config)

    def evaluate(self, parameters: list[Any], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        """Evaluate the personal model; the metrics hold all columns of `assess`."""
        _, n, header = self._handle("evaluate", parameters, config)
        columns = {k: float(v) for k, v in unpack(header[SKELETON], []).items()}
        return columns["test_loss"], n, {**header, **columns}

    def _handle(
        self, kind: str, parameters: list[Any], config: dict[str, Any]
    ) -> tuple[list[Any], int, dict[str, Any]]:
        host, k = self._taken_seat()
        order = unpack(str(config.get(SKELETON, json.dumps({"v": None}))), parameters, host.device)
        header = Header.of({**config, "kind": kind})
        self.model.check_base(header.base)
        answer = host.handle([Request(k, order, header)])[0]
        if isinstance(answer, Exception):
            raise answer
        skeleton, arrays = pack(answer.body)
        return arrays, answer.num_examples, {"k": k, **answer.cost(), SKELETON: skeleton}

    def _taken_seat(self) -> tuple[Host, int]:
        if self._seat is None:
            raise FedpersError("this client holds no data; call client.at(host, partition_id) first")
        return self._seat
