"""PFLEGO, client half. The algorithm box is in strategies/pflego.py."""

from dataclasses import dataclass, field
from typing import Any, Literal

from fedpers.core.params import add, split
from fedpers.families.disclosures import BODY_GRADIENT
from fedpers.families.split_models.heads import HeadInit
from fedpers.families.split_models.own import first_parts, own_steps, own_steps_and_gradient
from fedpers.families.split_models.parts import Part
from fedpers.method import Data, Params, PersonalizedClient, Stream, Work, bounds, record


@dataclass(frozen=True)
class PFLEGOConfig:
    """Hyper-parameters of PFLEGO, with the paper's letters."""

    tau: int = 10                                       # τ: τ-1 head steps and one joint step
    beta: float = 0.1                                   # β: rate of the head steps
    rho: float = 0.0005                                 # ρ: server rate, and rate of the joint step
    head_step: Literal["exact", "paper"] = "exact"      # joint step with α_i (Eq. 5) or without
    server_optimizer: Literal["sgd", "adam"] = "adam"
    scale: Literal["planned", "realised"] = "planned"   # I/r, or I over the replies that came
    head_init: HeadInit = "default"                     # how a client's head starts
    own_classes: bool = False                           # heads of K_i rows, of the client's classes
    report: bool = False                                # clients tell losses around their head steps
    adapt_steps: int = 200                              # head steps before a client predicts
    personal: Part = "head"                             # what W_i is

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        found = bounds(self, tau=(1, None), beta=(0, None), rho=(0, None), adapt_steps=(0, None))
        if self.report and self.personal != "head":
            found.append("report=true: tells of heads, so it needs personal=head")
        return found


@record
class TakeSteps:
    """Order: take τ steps and return the body's gradient."""

    theta: Params            # θ_{t-1}
    ratio: float             # I/r
    num_total: float         # Σ_j N_j over all I clients


@record
class BodyGradient:
    """Reply: the gradient of l_i in the body, at θ_{t-1} and the head after its τ-1 steps."""

    theta: Params
    told: Params = field(default_factory=dict)          # scalars, with `report`: l_i before, after; L


@record
class ClientState:
    """The client's head W_i; it never leaves the client."""

    head: Params


class PFLEGOClient(PersonalizedClient):
    """Steps on its head with cached features, then returns one exact gradient of the body."""

    config: PFLEGOConfig
    disclosure = BODY_GRADIENT
    private = ("head",)

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """A head of its own for every client, the same whenever it is first visited."""
        return ClientState(*first_parts(self.model, params, [data], [rng], self.config))

    def answer(
        self, order: TakeSteps, state: ClientState, data: Data, rng: Stream
    ) -> tuple[BodyGradient, ClientState]:
        """τ-1 gradient steps on the head alone, then one on head and body jointly."""
        h, theta = self.config, order.theta
        head, g, told = own_steps_and_gradient(                                     # [C1] [C2] [C3]
            self.model, theta, state.head, data, rng, h.beta, h.tau - 1, h.report
        )
        g_head, g_theta = split(g, head.__contains__)
        alpha = data.num / order.num_total if h.head_step == "exact" else 1.0
        head = add(head, g_head, -h.rho * order.ratio * alpha)                           # [C4]
        return BodyGradient(g_theta, told), ClientState(head)                                # [C5]

    @property
    def adapts(self) -> bool:
        """Whether clients fit their heads to the newest body before they predict."""
        return self.config.adapt_steps > 0

    def adapt(
        self, shared: TakeSteps, state: ClientState, data: Data, rng: Stream
    ) -> tuple[TakeSteps, ClientState]:
        """Head steps on the training data, as in a round; nothing is kept."""
        h, model, head = self.config, self.model, state.head
        return shared, ClientState(own_steps(model, shared.theta, head, data, rng, h.beta, h.adapt_steps))

    @classmethod
    def exposed(cls, config: PFLEGOConfig) -> list[str]:
        """The losses, which are no declared delta."""
        return ["set method.report=false (else clients tell their training losses)"] * config.report

    def personal(self, shared: TakeSteps, state: ClientState) -> Params:
        """The shared body under the client's own head."""
        return shared.theta | state.head

    def work(self, order: Any, n: int) -> Work:
        """One gradient of the whole model a sample, whatever τ; head steps need one more pass forward.

        Steps on another part are gradients of the whole model.
        """
        steps, report = self.config.tau - 1, self.config.report
        if self.config.personal != "head":
            return Work(n + steps * n)
        return Work(n, forwards=n if steps or report else 0, head_steps=steps * n)
