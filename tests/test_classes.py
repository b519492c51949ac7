"""Mean features by class: what the kernel, torch and NumPy make of them."""

import numpy as np
import pytest
import torch

from fedpers.checks.toy_data import toy_federation
from fedpers.core import sums
from fedpers.core.data import Data
from fedpers.core.vmap import over_rows
from fedpers.engines.stacked_data import Block, StackedData
from fedpers.learning.classes import class_means
from tests.test_dense import net


def by_numpy(z, y, K):
    """The definition, class by class, in float64."""
    rows = [z[y == k].astype(float) for k in range(K)]
    return np.stack([r.mean(0) if len(r) else np.zeros(z.shape[1]) for r in rows]), [len(r) for r in rows]


@pytest.mark.parametrize("way", ["kernel", "torch"])
@pytest.mark.parametrize("hidden", [(), (7,)], ids=str)
def test_of_unequal_clients_of_a_stack_and_of_each_alone(hidden, way, monkeypatch):
    """Vectors longer than a register and a rest; a class that nobody has, and one that some lack."""
    fed = toy_federation(3, (70, 3, 41), dim=37)
    K = fed.num_classes + 1
    model, parts = net(37, hidden, fed.num_classes), [fed.client(k).train for k in range(3)]
    if way == "torch":
        monkeypatch.setattr(sums, "library", lambda: None)
    elif sums.library() is None:
        pytest.skip("no C compiler")
    own = [model.init(k) for k in range(3)]
    block = Block(parts, 80)

    def one(i, *w):
        return class_means(model, dict(zip(own[0], w, strict=True)), StackedData.of(i, block), K)

    with torch.no_grad():
        C, n = over_rows(one, torch.arange(3), *(torch.stack([w[k] for w in own]) for k in own[0]))
        for k, (w, data) in enumerate(zip(own, parts, strict=True)):
            wanted, count = by_numpy(model.body(w, data.x).numpy(), data.y.numpy(), K)
            alone = class_means(model, w, data, K)
            assert n[k].tolist() == alone[1].tolist() == count
            for found in (C[k], alone[0]):
                np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-6)
    assert not C[:, -1].any() and (n[:, :-1] == 0).any()


@pytest.mark.parametrize("way", ["kernel", "torch"])
def test_a_label_that_is_no_class_counts_nowhere(way, monkeypatch):
    if way == "torch":
        monkeypatch.setattr(sums, "library", lambda: None)
    data = Data(torch.ones(4, 3), torch.tensor([-1, 0, 2, 2**40]), torch.ones(4))
    C, n = class_means(net(3, (), 2), {}, data, 2)
    assert C.tolist() == [[1, 1, 1], [0, 0, 0]] and n.tolist() == [1, 0]
    if (both := sums.class_sums([data.x] * 2, [data.y] * 2, 2)) is not None:  # nor with the next client
        assert both[0].tolist() == [[[1, 1, 1], [0, 0, 0]]] * 2 and both[1].tolist() == [[1, 0]] * 2


@pytest.mark.parametrize(
    "x, y",
    [
        (torch.ones(4, 3).double(), torch.zeros(4, dtype=torch.int64)),
        (torch.ones(3, 4).T, torch.zeros(4, dtype=torch.int64)),
        (torch.ones(4, 3), torch.zeros(4)),
        (torch.ones(4, 3), torch.zeros(3, dtype=torch.int64)),
        (torch.ones(4, 5), torch.zeros(4, dtype=torch.int64)),
    ],
    ids=["float64", "transposed", "labels are no whole numbers", "a label too few", "another width"],
)
def test_what_is_not_plain_memory_is_not_the_kernels(x, y):
    plain = torch.ones(2, 3), torch.zeros(2, dtype=torch.int64)
    assert sums.class_sums([plain[0], x], [plain[1], y], 2) is None
