"""Numbers in words, English -> French: a GRU encoder-decoder with additive attention.

python launch.py --config=configs/translate_numbers.py
"""

from experiments.config import Config, ModelConfig, OptimConfig, TaskConfig, TrainConfig, no_variant


def get_config(variant: str = "") -> Config:
    config = Config(
        task=TaskConfig(name="number_words"),
        model=ModelConfig(hidden_size=128, encoder_size=64, bidirectional=True),
        optim=OptimConfig(learning_rate=3e-3, decay="cosine"),
        train=TrainConfig(steps=1000, batch_size=128, eval_every=100),
    )
    if variant == "quick":
        config.task.train_examples, config.task.eval_examples = 2000, 100
        config.model.hidden_size, config.model.encoder_size = 64, 32
        config.train = TrainConfig(steps=60, batch_size=64, eval_every=30, log_every=10)
    elif variant:
        no_variant(__file__, variant)
    return config
