"""What methods need whose clients own models and look at each other's: weights, choice, steps."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpers.core import sums
from fedpers.core.data import Data
from fedpers.core.items import ModelBatch, sq_dist_each, weighted_sum_each
from fedpers.core.params import Params, add
from fedpers.core.pytree import flatten, rebuild, record
from fedpers.core.rng import MaskedStream, Stream
from fedpers.core.vmap import on_stacks, readable
from fedpers.families.peers.messages import Newcomer
from fedpers.learning.kernels.scoring import mean_losses_of
from fedpers.learning.mixing import mixture
from fedpers.learning.model import Model
from fedpers.learning.optimizers import LocalConfig, OptimizerState, init_optimizer, sgd_step

LEAST_MASS = 1e-3  # a model that gets less weight than this from all together stays where it is


@record("peers.Scores")
class Scores:
    """What a client knows of all K models, by the number of their owner."""

    last: Tensor  # [K] float64, loss when the model was last tried
    average: Tensor  # [K] float64, what the weights are made of
    seen: Tensor  # [K] bool, was it ever tried?
    w: Tensor  # [K] float64, weights on the simplex


@record("peers.Peer")
class Peer:
    """What a client remembers: its model, its optimiser's state, what it knows of all models."""

    phi: Params
    opt: OptimizerState
    scores: Scores | None  # None before its first round


def new_peer(phi: Params, like: Params, cfg: LocalConfig) -> Peer:
    """A peer before its first round; φ in dtype and device of `like`, `cfg` its optimiser."""
    phi = {k: v.to(like[k]) for k, v in phi.items()}
    return Peer(phi, init_optimizer(phi, cfg), None)


def no_scores(w: Tensor) -> Scores:
    """Nothing tried yet, and prior weights."""
    zeros = torch.zeros_like(w)
    return Scores(zeros, zeros, torch.zeros_like(w, dtype=torch.bool), w)


def tried(s: Scores, ids: Tensor, losses: Tensor) -> tuple[Scores, Tensor]:
    """(scores with these losses as the last ones, [K] bool: whose loss was not finite).

    A loss that is not finite leaves the last one in place.
    """
    finite = torch.isfinite(losses)
    last = s.last.scatter(0, ids, torch.where(finite, losses, s.last.gather(0, ids)))
    no = torch.zeros_like(s.seen)
    seen = s.seen | no.scatter(0, ids, finite)
    return Scores(last, s.average, seen, s.w), no.scatter(0, ids, ~finite)


def reweighed(old: Scores, ids: Tensor, losses: Tensor, beta: float | None, mask: bool) -> Scores:
    """The scores after the models `ids` were tried, with `losses` [len(ids)] float64.

    Args:
        beta: weight of the new loss in a moving average; None: losses are added up.
        mask: models never tried get no weight, and the first loss starts the average. Otherwise
            all start with loss 0.
    """
    s, failed = tried(old, ids, losses)
    keep, take = (1.0, 1.0) if beta is None else (1 - beta, beta)
    average, allowed = keep * s.average + take * s.last, ~failed
    if mask:
        allowed = s.seen & ~failed
        average = torch.where(s.seen & ~old.seen, s.last, average)
    return Scores(s.last, average, s.seen, posterior(average, allowed))


def score(model: Model, phis: Sequence[Params], data: Data, kappa: float | None) -> Tensor:
    """[J] float64, κ times the mean loss of each of J models, or its sum over samples (None)."""
    return (data.num if kappa is None else kappa) * mean_losses_of(model, phis, data)


def of_weight(w: Tensor, rng: Stream) -> dict[int, Stream]:
    """{b: minibatches for model b} of models that have weight w_b.

    Which these are a row of a stack cannot say: there it is all, and a client without weight has empty ones.
    """
    wanted = {b: rng if readable(v) else MaskedStream(rng, v > 0) for b, v in enumerate(w)}
    return {b: stream for b, stream in wanted.items() if not readable(w[b]) or w[b] != 0}


def weighted(items: Iterable[Params], w: Tensor) -> tuple[Params, ...]:
    """w_b·a_b of J models; exactly 0 where w_b is 0, even if a_b is not finite.

    Args:
        w: [J].
    """
    models = tuple(items)
    (leaves, form), J = flatten(models), len(models)

    def all_clients(w: Tensor, *leaves: Tensor) -> list[Tensor]:
        stacks, C, shares = rebuild(form, leaves), len(w), w.T.tolist()
        found = [{k: torch.zeros_like(v[:1]).expand_as(v) for k, v in stacks[0].items()}] * J
        used = [b for b in range(J) if any(shares[b])]
        if used:
            chosen = [(b, c) for b in used for c in range(C)]
            rows = scaled_rows(stacks, chosen, [v for b in used for v in shares[b]])
            for i, b in enumerate(used):
                found[b] = {k: v[i * C : (i + 1) * C] for k, v in rows.items()}
        return flatten(found)[0]

    return rebuild(form, on_stacks(all_clients, w, *leaves))  # type: ignore[no-any-return]


def scaled_rows(
    stacks: Sequence[Params], chosen: Sequence[tuple[int, int]], weights: Sequence[float]
) -> Params:
    """Stacks [G, ...] of rows times weights; exactly 0 without weight, even of what is not finite.

    Args:
        stacks: N of the same names and shapes [C, ...].
        chosen: (n, c) of each of G rows: the stack, and which one of it.
    """
    names = list(stacks[0])
    layers = [[stack[k] for stack in stacks] for k in names]
    found = sums.scaled_rows(layers, chosen, weights)
    if found is None:
        n, c = torch.tensor(chosen).T
        w = torch.tensor(weights, dtype=torch.float64)
        found = [_scaled(torch.stack(layer), n, c, w) for layer in layers]
    return dict(zip(names, found, strict=True))


def _scaled(whole: Tensor, n: Tensor, c: Tensor, w: Tensor) -> Tensor:
    """[G, ...] w·whole[n, c] of a layer [N, C, ...]."""
    n, c, w = (t.to(whole.device) for t in (n, c, w.view(-1, *[1] * (whole.dim() - 2))))
    return torch.where(w != 0, w * whole[n, c].double(), 0.0).to(whole.dtype)


def posterior(losses: Tensor, allowed: Tensor) -> Tensor:
    """softmax(-losses) over the allowed entries, the others exactly 0; [K] float64.

    No loss is too large: the smallest allowed one is subtracted first.
    """
    return torch.softmax(torch.where(allowed, -losses.double(), -torch.inf), 0)


def draw_peers(rank: Tensor, me: Tensor, num: int, epsilon: float, rng: Stream) -> Tensor:
    """`num` different peers other than `me`: one coin, then the highest ranks or any, [num] int64.

    Args:
        rank: [K], not negative; ties are broken at random.
        epsilon: the probability of choosing uniformly, whatever the ranks.
    """
    coin, noise = rng.uniform(1 + len(rank)).to(rank.device).tensor_split([1])
    me = me.reshape(1)
    shuffled = noise.scatter(0, me, -1.0).argsort(descending=True)  # `me` comes last
    ranked = rank.scatter(0, me, -1.0).gather(0, shuffled).argsort(descending=True, stable=True)
    return torch.where(coin < epsilon, shuffled, shuffled.gather(0, ranked))[:num]


def ranks(s: Scores, untried_first: bool) -> Tensor:
    """[K] what neighbours are chosen by: the weights, with models never tried above all others."""
    highest = 2.0  # no weight is above 1
    return torch.where(s.seen, s.w, s.w + highest) if untried_first else s.w


def above_threshold(w: Tensor, floor: float) -> Tensor:
    """The weights that are worth a training: w where it is at least `floor`, else 0."""
    return torch.where(w >= floor, w, 0.0)


def gradient_step(peer: Peer, G: Params, optimiser: LocalConfig) -> Peer:
    """The owner's step on the sum of weighted gradients, Σ_j w_j g_j."""
    phi, opt = sgd_step(peer.phi, G, peer.opt, optimiser, optimiser.lr)
    return replace(peer, phi=phi, opt=opt)


def model_step(peer: Peer, total: Params, mass: Tensor, normalise: bool) -> Peer:
    """The owner's step on trained models φ_j: `total` is Σ_j w_j φ_j, `mass` is W = Σ_j w_j.

    Args:
        normalise: φ becomes Σ_j w_j φ_j / W, and stays where W is below `LEAST_MASS`. Otherwise it
            becomes (1 - W) φ + Σ_j w_j φ_j, which overshoots where W is above 1.
    """
    if not normalise:
        rest = (1 - mass).to(next(iter(total.values())))
        return replace(peer, phi=add(total, peer.phi, rest))
    leaves, form = flatten([peer.phi, total])

    def all_clients(mass: Tensor, *leaves: Tensor) -> list[Tensor]:
        rows = [((1, c), 1 / W) if W >= LEAST_MASS else ((0, c), 1.0) for c, W in enumerate(mass.tolist())]
        return list(scaled_rows(rebuild(form, leaves), *zip(*rows, strict=True)).values())

    return replace(peer, phi=dict(zip(peer.phi, on_stacks(all_clients, mass, *leaves), strict=True)))


def predict(model: Model, peer: Peer, shared: Any, x: Tensor, average: str) -> Tensor:
    """Outputs [n, K] of the models in `shared` (Support, Newcomer) under the client's weights."""
    phis, w = getattr(shared, "models", ()), None
    if isinstance(shared, Newcomer):
        w = shared.w if phis else None
    elif phis and peer.scores is not None:
        phis, w = (peer.phi, *phis), peer.scores.w.gather(0, shared.ids)
    if w is None:
        return model(peer.phi, x)
    return mixture(model, torch.stack([model(phi, x) for phi in phis]), w / w.sum(), average)


def distances(items: ModelBatch, gain: np.ndarray) -> np.ndarray:
    """[C, J] how far C clients' J models are from their old ones; 1 where there is no gain: nobody asks.

    Args:
        items: for each client the old model, then the others.
        gain: [C, J].
    """
    C, J = gain.shape
    found, (c, j) = np.ones((C, J)), np.nonzero(gain > 0)
    old = c * (J + 1)
    found[c, j] = np.sqrt(sq_dist_each(items, old.tolist(), (old + 1 + j).tolist()).numpy())
    return found


def sums_of_used(items: ModelBatch, w: np.ndarray) -> Params:
    """Stacks [C, ...], the sums of C clients' J models, the old one left out, by weights [C, J].

    What has no weight is not read.
    """
    c, j = np.nonzero(w)
    counts = np.bincount(c, minlength=len(w))
    return weighted_sum_each(
        items, (c * (w.shape[1] + 1) + 1 + j).tolist(), w[c, j].tolist(), counts.tolist()
    )
