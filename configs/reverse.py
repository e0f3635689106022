"""Reversing number sequences: JoeyNMT 2.3's published task, its data and its model.

python launch.py --config=configs/reverse.py
"""

from experiments.config import (
    AttentionConfig,
    Config,
    ModelConfig,
    OptimConfig,
    TaskConfig,
    TrainConfig,
    no_variant,
)


def get_config(variant: str = "") -> Config:
    config = Config(
        task=TaskConfig(name="reverse"),
        model=ModelConfig(
            cell="lstm",
            hidden_size=64,
            bidirectional=True,
            embedding_size=16,
            embedding_stddev=0.1,
            dropout=0.1,
            attention=AttentionConfig(score="general", query="current", input_feeding=True),
        ),
        optim=OptimConfig(learning_rate=1e-3, decay="linear"),
        train=TrainConfig(steps=5000, batch_size=10, log_every=100, eval_every=1000),
    )
    if variant == "quick":
        config.task.train_examples, config.task.eval_examples = 1000, 100
        config.train = TrainConfig(steps=100, batch_size=10, log_every=20, eval_every=50)
    elif variant:
        no_variant(__file__, variant)
    return config
