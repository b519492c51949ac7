"""What `benchmarks.reproductions` runs: settings that exist, and our methods as others define them."""

import json
from types import SimpleNamespace

import pytest
import torch

from benchmarks import reproductions
from benchmarks.as_theirs import by_samples, global_model, mixed_model, nearest_prototype
from fedpers.clients.fedproto import FedProtoClient
from fedpers.clients.pfedme import PFedMeClient
from fedpers.config import compose
from fedpers.families.prototypes import PrototypeClient, Prototypes
from fedpers.strategies.fedala import FedALA
from fedpers.strategies.fedproto import FedProto
from fedpers.strategies.pfedme import PFedMe

CHANGED = (FedALA, PFedMe, PFedMeClient)


@pytest.mark.parametrize("name", reproductions.METHODS)
def test_the_settings_of_a_row_are_the_methods(name):
    method, words = reproductions.method_of(name), reproductions.METHODS[name].ours.split()
    cfg = compose.load([f"method={method}", *words])
    assert cfg.method_name == method
    parts = [p for p in ("local", "head", "body") if hasattr(cfg.method, p)]
    for part in parts:  # the rate, the batch and the one pass that the other library is told
        local = getattr(cfg.method, part)
        assert (local.lr, local.batch_size, local.epochs) == (reproductions.RATE, reproductions.BATCH, 1)
    assert parts


def test_the_nearest_prototype_predicts():
    class Identity:
        def body(self, params, x):
            return x

    client = FedProtoClient.__new__(FedProtoClient)
    client.model = Identity()
    given = Prototypes(torch.tensor([[0.0, 0.0], [4.0, 0.0], [1.0, 1.0]]), torch.tensor([1.0, 2.0, 0.0]))
    state = type("State", (), {"params": {}})
    with nearest_prototype():
        found = client.predict(given, state, torch.tensor([[1.0, 1.0], [3.0, 0.0]]))
        assert client.personal(given, state) is None
        assert FedProto.evaluation_message(None, given, 0) is given
    assert found.tolist() == [[-1, -5, -float("inf")], [-4.5, -0.5, -float("inf")]]
    assert "predict" not in vars(PrototypeClient) and client.personal(given, state) == {}
    assert FedProto.evaluation_message(None, given, 0) is None


@pytest.mark.parametrize("change", [mixed_model, global_model])
def test_what_is_evaluated_is_changed_for_a_while(change):
    before = [dict(vars(c)) for c in CHANGED]
    with change():
        assert [dict(vars(c)) for c in CHANGED] != before
    assert [dict(vars(c)) for c in CHANGED] == before


def test_clients_count_by_their_samples():
    mean = lambda models, n, start: (models, n, start)  # noqa: E731
    server = SimpleNamespace(sample=lambda rng: [4, 7], num_examples={4: 10, 7: 30}.get, average=mean)
    steps = by_samples(server, SimpleNamespace(params="w"), 1, None)
    assert list(next(steps)) == [4, 7]
    with pytest.raises(StopIteration) as done:
        steps.send({4: SimpleNamespace(params="a"), 7: SimpleNamespace(params="b")})
    assert done.value.value.params == (["a", "b"], [10, 30], "w")


def test_runs_of_the_same_words_are_made_once(tmp_path, monkeypatch):
    row = reproductions.row_of("fedproto", [90.0, 92.0], [91.25, 91.5])
    assert row["difference"] == -0.38 and row["theirs by seed"] == "91.25 91.50"
    monkeypatch.setattr(reproductions, "FILE", tmp_path / "rows.json")
    assert reproductions.measured("fedproto, nearest prototype", 2) == []
    reproductions.FILE.write_text(json.dumps({"rows": [row]}))
    assert reproductions.measured("fedproto, nearest prototype", 2) == [91.25, 91.5]
    assert reproductions.measured("fedproto, nearest prototype", 3) == []
    assert reproductions.measured("fedtgp (HtFLlib)", 2) == []
