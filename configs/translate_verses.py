"""Verses, English -> French: a bidirectional GRU encoder-decoder with additive attention.

python launch.py --config=configs/translate_verses.py
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
        config.train = TrainConfig(steps=20, batch_size=16, log_every=5, eval_every=10)
    elif variant:
        no_variant(__file__, variant)
    return config
