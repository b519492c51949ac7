"""What a method's replies tell of their client, and the noise that hides it.

A method declares its `Disclosure` on the client half. Where the server needs no more than one change of
known form, that change is clipped and noised before it leaves; elsewhere `privacy=dp` is refused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from fedpers.core.errors import ConfigError, FedpersError
from fedpers.core.params import Params, add, sub, weighted_mean
from fedpers.core.privacy import PrivacyConfig, clipped, gaussian_mechanism, noised
from fedpers.core.pytree import leaves, tree_map
from fedpers.core.rng import Stream, noise_stream
from fedpers.flower.messages import Request

StreamOf = Callable[[Request, Any], Stream]  # of a request and the change that answers it: the noise


@dataclass(frozen=True)
class Disclosure:
    """What leaves the device in training, and what can be promised of it.

    The declared delta is the reply's only field with content, `delta`, minus the order's field `since`;
    without `since` the field is a change itself, such as a gradient.
    """

    leaves: str  # in words
    delta: str = ""
    since: str = ""
    no_dp: str = ""  # why noise on the delta would promise too much; "": it is sound
    no_sum: str = ""  # why the server needs more than one sum of replies; "": it does not
    no_devices: str = ""  # why a device answers no order of it, in simulations only; "": it does


UNDECLARED = Disclosure(
    "not declared", no_dp="it does not declare what its replies tell", no_sum="not declared"
)


class NoisedMean:
    """The server's mean with its own noise (privacy=central), once a round, for that is what is counted."""

    def __init__(self, config: PrivacyConfig, seed: int) -> None:
        self.config, self.seed, self.done = config, seed, 0

    def __call__(
        self, items: Sequence[Params], weights: Sequence[float], start: Params | None, t: int
    ) -> Params:
        """The weighted mean of round t, of changes that are clipped to C, plus normal noise.

        What one client sends moves the mean by no more than 2 C max_i w_i, for weights w_i that sum to one;
        the noise has standard deviation z C max_i w_i, so it is z/2 sensitivities.

        Args:
            items: what clients sent; `start` is what they started from, None for changes.

        Raises:
            FedpersError: the round has had a mean already.
        """
        if self.done == t:
            raise FedpersError(f"privacy=central: this method takes two means in round {t}; use privacy=dp")
        self.done, c, share = t, self.config, max(weights) / sum(weights)
        changes = [clipped(item if start is None else sub(item, start), c.clip) for item in items]
        mean, rng = weighted_mean(changes, weights), noise_stream(self.seed, t, 0, 0)
        noisy = noised(mean, c.noise * c.clip * share, rng)
        return noisy if start is None else add(start, noisy)


class Mechanism:
    """Clips and noises the declared delta of replies; the client's state and all else stay as they are."""

    def __init__(self, config: PrivacyConfig, disclosure: Disclosure, stream: StreamOf) -> None:
        """`stream` gives the random numbers of each reply's noise.

        Raises:
            ConfigError: the method declares that this would not be sound.
        """
        if disclosure.no_dp:
            raise ConfigError(f"privacy=dp: {disclosure.no_dp}")
        self.config, self.disclosure, self.stream = config, disclosure, stream

    def release(self, request: Request, reply: Any) -> Any:
        """The reply as it may be sent: clipped and noised.

        Raises:
            FedpersError: it is not the reply that the method declares.
        """
        name, since = self.disclosure.delta, self.disclosure.since
        held = [f.name for f in fields(reply) if leaves(getattr(reply, f.name))]
        if held != [name] or (since and not hasattr(request.order, since)):
            raise FedpersError(
                f"privacy=dp: a {type(reply).__name__} with {', '.join(held) or 'nothing'} answers a "
                f"{type(request.order).__name__}; declared is a reply of {name} alone, so this one is "
                "not sent"
            )
        change, origin = getattr(reply, name), getattr(request.order, since) if since else None
        if origin is not None:
            origin = _in_order(origin, change)
            change = tree_map(torch.sub, change, origin)
        rng = self.stream(request, change)
        noisy = gaussian_mechanism(change, self.config.clip, self.config.noise, rng)
        if origin is not None:
            noisy = tree_map(torch.add, origin, noisy)
        return replace(reply, **{name: noisy})


def _in_order(tree: Any, of: Any) -> Any:
    """The tree with its names in the order of another's: a client may make its reply in its own order."""
    if isinstance(tree, dict) and isinstance(of, dict) and tree.keys() == of.keys():
        return {k: _in_order(tree[k], v) for k, v in of.items()}
    return tree
