"""What a round's training costs a client, in samples."""

from typing import NamedTuple


class Work(NamedTuple):
    """Samples by what was done with them; a number alone means so many gradients of the whole model.

    A gradient has its own pass forward through the body. What stands under the others comes on top.
    """

    gradients: int = 0  # gradients that pass back through the body, whatever else they are in
    forwards: int = 0  # further passes forward through the body
    head_steps: int = 0  # gradients of a head alone, on features

    def times(self, n: int) -> "Work":
        """All of it n times."""
        return Work(*(n * v for v in self))

    def plus(self, other: "Work") -> "Work":
        """The sum; the operator + would join the tuples."""
        return Work(*(a + b for a, b in zip(self, other, strict=True)))


def work_of(found: "Work | int") -> Work:
    """What a client's `work` gave, which may be the number of gradients alone."""
    return found if isinstance(found, Work) else Work(int(found))
