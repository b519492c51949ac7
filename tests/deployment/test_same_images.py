"""One federation of images in files: a run in process and one on three devices write the same clients.csv."""

import numpy as np
from PIL import Image

from fedpers.app import deployed
from fedpers.app.run import execute
from fedpers.config.compose import load
from fedpers.deploy import device_grid
from tests.deployment.fake_link import Link, clients_of, looped


def test_images_from_files_are_the_same_run_on_devices(tmp_path, monkeypatch):
    monkeypatch.setattr(device_grid, "LOOK_S", 0.01)
    rng = np.random.default_rng(0)
    for k in range(3):
        for i in range(30 + k):
            y = i % 3
            p = tmp_path / "data" / f"site-{k}" / ("cat", "dog", "eel")[y] / f"{i}.png"
            p.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((rng.integers(0, 120, (6, 6, 3)) + 60 * y).astype(np.uint8)).save(p)
    same = ["method=fedper", "rounds=3", "model=mlp", "model.hidden=[8]", "seed=3", "eval_every=0"]
    inside = load([*same, "data=files", f"data.path={tmp_path / 'data'}", "engine.runner=loop"])
    execute(looped(inside), tmp_path / "inside")
    cfg = load(
        [
            *same,
            "data=device",
            "data.input_shape=[3,6,6]",
            "data.num_classes=3",
            "data.num_clients=3",
            "data.class_names=[cat,dog,eel]",
            "engine=deployment",
            "engine.deadline_s=6",
        ]
    )
    (tmp_path / "out" / ".hydra").mkdir(parents=True)
    deployed.run(cfg, tmp_path / "out", Link(tmp_path, cfg, data=tmp_path / "data"))
    ours, theirs = (clients_of(tmp_path / f) for f in ("inside", "out"))
    assert ours == theirs
