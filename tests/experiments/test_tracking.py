"""What TensorBoard and W&B get of a run, read back from their files."""

import struct

import pytest

from experiments import runs, tracking
from experiments.config import Config
from experiments.sweep import Point

RESULT = {"test/exact_match": 0.75, "test/bleu_signature": "nrefs:1", "train/steps": 40}


def events(folder):
    """Every event of the folder's event files: a length, a checksum, the event, a checksum."""
    from tensorboardX.proto import event_pb2

    for file in folder.iterdir():
        data = file.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            yield event_pb2.Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]


def test_tensorboard_gets_all_fields_and_final_numbers(tmp_path):
    from tensorboardX.proto import plugin_hparams_pb2

    config = Config(seed=3)
    config.model.attention.score = "dot"
    tracking.hparams(tmp_path, config, RESULT)
    found, scalars = {}, {}
    for event in events(tmp_path / "tb"):
        for value in event.summary.value:
            if value.tag == "_hparams_/session_start_info":
                content = value.metadata.plugin_data.content
                data = plugin_hparams_pb2.HParamsPluginData.FromString(content)
                for name, one in data.session_start_info.hparams.items():
                    found[name] = one.string_value or one.number_value
            elif value.WhichOneof("value") == "simple_value":
                scalars[value.tag] = (value.simple_value, event.step)
    assert found["model.attention.score"] == "dot" and found["seed"] == 3
    assert found["optim.learning_rate"] == config.optim.learning_rate
    assert scalars == {"final/test/exact_match": (0.75, 40), "final/train/steps": (40, 40)}


@pytest.mark.wandb
def test_wandb_gets_a_run_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is missing: pip install '.[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    path = tmp_path / "tiny" / "default"
    path.mkdir(parents=True)
    metrics = runs.Metrics(path, 0)
    metrics.write(10, {"train/loss": 1.5})
    metrics.close()
    runs.end(path, Config(), RESULT)
    lines = []
    points = [Point(Config(), path), Point(Config(seed=1), tmp_path / "missing")]
    tracking.to_wandb(points, "attention", lines.append)
    assert lines == ["1 runs are in the W&B project attention"]
    (file,) = path.glob("wandb/offline-run-*/run-*.wandb")
    text = file.read_bytes()  # records of protobuf, which hold words as they are
    for word in (
        "model.attention.score",
        "train/loss",
        "1.5",
        "test/exact_match",
        "0.75",
        "attention",
    ):
        assert word.encode() in text, word
