"""What servers with several models send to have clients choose among them."""

from fedpers.core.params import Params
from fedpers.core.pytree import record


@record("clustered.Centers")
class Centers:
    """Order: all centers; tell which are yours and by how much, or predict by what fits your data."""

    centers: tuple[Params, ...]

    @property
    def expects(self) -> dict[str, tuple[int, ...]]:
        """A number a center in what a reply says of them."""
        return dict.fromkeys(("u", "identity"), (len(self.centers),))
