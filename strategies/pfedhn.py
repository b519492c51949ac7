"""pFedHN: a hypernetwork on the server makes each client's model from an embedding of the client.

Shamsian, Navon, Fetaya, Chechik, "Personalized Federated Learning using Hypernetworks", ICML 2021,
https://arxiv.org/abs/2103.04628, Algorithm 1.

    θ_i = h(e_i): z = B_d ReLU(.. B_1 ReLU(B_0 e_i)), d + 1 affine layers; θ_i = A z + a, for each tensor of
    the model; ψ: all of A, a, B and the e_i

    Server                                             Client i
    [S1] draw a set of r clients
    [S2] send θ_i = h(e_i)                     ---->   [C1] θ'_i = local SGD on ℓ from θ_i
    [S3] g = 1/r Σ_i (∂θ_i/∂ψ)' (θ_i - θ'_i)   <----   [C2] send θ'_i
    [S4] m = β m + g + ω ψ
    [S5] ψ = ψ - η m, with η_e for the embeddings

Client i predicts with h(e_i).

Deviations from the paper: it draws one client a round; of several g is the mean. a starts at the model's
initial parameters, so that a pre-trained start counts (there: as torch's layers). β and ω are those of the
authors' code, which also bounds the lengths of g and of local gradients by 50; here local.clip_norm does the
latter. A client that is not in the federation gets h(mean of the e_i).
Reductions: where A and z are 0, a moves η of the way to the plain mean of the θ'_i, for β = ω = 0.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedpers.clients.pfedhn import PFedHNConfig, Weights
from fedpers.core.params import zeros_like
from fedpers.learning.layers import linear_start
from fedpers.method import Params, PersonalizedStrategy, Roster, Round, record, sub

EMBEDDINGS = "embeddings"                 # the name of the e_i, [N, D], in ψ
OUT, START = "A.", "a."                   # before the names of the model's tensors


@record
class State:
    """ψ, and the momentum of its steps."""

    maker: Params
    m: Params


def made(w: Params, e: Tensor) -> Params:
    """h(e): the model of an embedding [D]."""
    z = F.linear(e, w["B0.weight"], w["B0.bias"])
    for i in range(1, sum(name.endswith(".bias") and name.startswith("B") for name in w)):
        z = F.linear(z.relu(), w[f"B{i}.weight"], w[f"B{i}.bias"])
    starts = {name.removeprefix(START): a for name, a in w.items() if name.startswith(START)}
    return {name: a + (w[OUT + name] @ z).view(a.shape) for name, a in starts.items()}


class PFedHN(PersonalizedStrategy):
    """Moves a hypernetwork so that the models that it makes are those that clients trained."""

    config: PFedHNConfig
    not_robust = "its server takes no mean of models; each moves the hypernetwork by its own Jacobian"

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """Embeddings from a normal distribution, layers as torch's start."""
        h, N, like = self.config, len(roster.ids), next(iter(params.values()))
        D = h.embed_dim or 1 + N // 4
        maker: Params = {EMBEDDINGS: torch.from_numpy(rng.standard_normal((N, D)))}

        def layer(inputs: int, outputs: int, bias: bool) -> Params:
            start = linear_start(inputs, outputs, bias, [int(rng.integers(2**31))])
            return {name: value[0] for name, value in start.items()}

        for i in range(h.depth + 1):
            drawn = layer(h.hidden if i else D, h.hidden, bias=True)
            maker |= {f"B{i}.{part}": value for part, value in drawn.items()}
        for name, a in params.items():
            maker |= {OUT + name: layer(h.hidden, a.numel(), bias=False)["weight"], START + name: a}
        maker = {k: v.to(like) for k, v in maker.items()}
        return State(maker, zeros_like(maker))

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 1."""
        selected, h = self.sample(rng), self.config                                      # [S1]
        told = yield {k: self.evaluation_message(s, k) for k in selected}                # [S2]
        rows = [self.row[k] for k in told]

        def models(w: Params) -> list[Params]:
            return [made(w, w[EMBEDDINGS][i]) for i in rows]

        now, back = torch.func.vjp(models, s.maker)[:2]
        ways = [sub(theta, r.params) for theta, r in zip(now, told.values(), strict=True)]
        (g,) = back([{k: v / len(rows) for k, v in way.items()} for way in ways])        # [S3]
        m = {k: h.momentum * s.m[k] + g[k] + h.weight_decay * w for k, w in s.maker.items()}  # [S4]
        rates = {k: h.embed_lr if k == EMBEDDINGS else h.server_lr for k in m}
        return State({k: w - rates[k] * m[k] for k, w in s.maker.items()}, m)            # [S5]

    def evaluation_message(self, s: State, k: int) -> Weights:
        """The client's model; of one that never trained, that of the mean embedding."""
        e = s.maker[EMBEDDINGS]
        return Weights(made(s.maker, e[self.row[k]] if k in self.row else e.mean(0)))

    def explain(self, s: State) -> dict[str, np.ndarray]:
        """The embeddings, a row a client."""
        return {"embeddings": s.maker[EMBEDDINGS].cpu().numpy()}

    def models(self, s: State) -> dict[str, Params]:
        """The model of the mean embedding, which new clients get."""
        return {"mean": made(s.maker, s.maker[EMBEDDINGS].mean(0))}
