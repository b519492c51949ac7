"""FedMD, client half. The algorithm box is in strategies/fedmd.py."""

from dataclasses import dataclass, field, replace

from fedpers.families.disclosures import SCORES
from fedpers.families.distillation import Ask, ClientState, Digest, Distance, Done, Known, Scores, sent
from fedpers.method import Data, LocalConfig, Params, PersonalizedClient, Stream, Work, bounds, minimise


@dataclass(frozen=True)
class FedMDConfig:
    """Hyper-parameters of FedMD."""

    subset: int = 100                     # |d|: public samples of a round at most; 0: all
    start_epochs: int = 5                 # E_0: of a client's start, on public samples and then on its own
    digest: LocalConfig = field(default_factory=LocalConfig)     # how it approaches the consensus
    local: LocalConfig = field(default_factory=LocalConfig)      # how it trains on labels, also at its start

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        found = bounds(self, subset=(0, None), start_epochs=(0, None))
        for name in ("label_smoothing", "class_weights"):
            if value := getattr(self.digest, name):
                found.append(f"digest.{name}={value}: a consensus is no class; leave it out")
        return found


class FedMDClient(PersonalizedClient):
    """Trains its own model towards the consensus on public samples, then on its own; sends scores alone."""

    config: FedMDConfig
    disclosure = SCORES
    private = ("params",)
    read_only_orders = (Ask,)             # a Digest follows in the same round

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """All clients start from the initial model of their architecture."""
        return ClientState(params)

    def answer(
        self, order: Ask | Digest, state: ClientState, data: Data, rng: Stream
    ) -> tuple[Scores | Done, ClientState]:
        """Scores of public samples, in a client's first round after its start; or one local training."""
        if isinstance(order, Digest):
            return Done(), ClientState(self._trained(order, state.params, data, rng))
        if order.known is not None and self.config.start_epochs:
            state = ClientState(self._started(order.known, state.params, data, rng))
        return Scores(self.model(state.params, order.x)), state                          # [C3]

    def _started(self, known: Known, w: Params, data: Data, rng: Stream) -> Params:
        """After training on public samples with labels, then on the client's own."""
        how = replace(self.config.local, epochs=self.config.start_epochs, steps=0, keep_momentum=False)
        if known.y is not None:
            w = minimise(self.model.loss, w, sent(known.x, known.y), rng, how)           # [C1]
        return minimise(self.model.loss, w, data, rng, how)                              # [C2]

    def _trained(self, order: Digest, w: Params, data: Data, rng: Stream) -> Params:
        h = self.config
        if h.digest.epochs or h.digest.steps:
            w = minimise(Distance(self.model), w, sent(order.x, order.consensus), rng, h.digest)  # [C4]
        return minimise(self.model.loss, w, data, rng, h.local)                          # [C5]

    def personal(self, shared: None, state: ClientState) -> Params:
        """The client's own model."""
        return state.params

    def trains_without_momentum(self, order: Ask | Digest) -> bool:
        """The optimiser of the start is not kept."""
        return isinstance(order, Ask)

    def work(self, order: Ask | Digest, n: int) -> Work:
        """Gradients on public and on own samples; the scores are passes forward."""
        h, public = self.config, len(order.x)
        if isinstance(order, Digest):
            return Work(h.digest.work(public) + h.local.work(n))
        first = order.known
        labelled = len(first.x) if first is not None and first.y is not None else 0
        return Work(h.start_epochs * (labelled + n) if first is not None else 0, forwards=public)
