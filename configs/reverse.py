"""Reversing number sequences: JoeyNMT 2.3's published task, its data and its model.

    python launch.py --config=configs/reverse.py            one run
    python launch.py --config=configs/reverse.py --sweep    seeds 0 to 4

Hardware: 2 CPU cores. Time: 40 seconds in all, 30 of them training (its one epoch, 5,000 steps).
Should reach, seeds 0 to 4: test BLEU 97.6, 95.8, 96.5, 97.9, 97.1 (JoeyNMT's published: 95.19), at
up to 70,000 target tokens a second (JoeyNMT on the same cores: 6,800). On 26-30 tokens, longer
than any in training: BLEU 93.0, 87.7, 90.0, 93.8, 91.4; on 21-25: 99.5 or more. With a constant
learning rate, as JoeyNMT has it in its first epoch, seed 0 reached 98.7 and seed 1 ended at 91.4 on
validation; the rate decays to 0 here because that is steadier.

As in JoeyNMT: BiLSTM encoder of 64 a direction, LSTM decoder of 64, embeddings of 16 drawn with
standard deviation .1, Luong attention (general) with input feeding, dropout .1, AdamW 1e-3,
clipping at 1, batches of 10. Not as there: the decoder begins at tanh(W h_final + b), not at 0, the
forget gate's bias is 1, recurrent kernels are orthogonal; a batch is of similar lengths; sentences
of validation and test were taken out of training (see experiments/tasks/reverse.py).
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
from experiments.sweep import Overrides, seeds


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


def sweep(variant: str = "") -> list[Overrides]:
    return seeds(2 if variant == "quick" else 5)
