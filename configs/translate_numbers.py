"""Numbers in words, English -> French: a GRU encoder-decoder with additive attention.

python launch.py --config=configs/translate_numbers.py
"""

from experiments.config import Config, OptimConfig, TaskConfig, TrainConfig
from experiments.errors import UserError


def get_config(variant: str = "") -> Config:
    config = Config(
        task=TaskConfig(name="number_words"),
        optim=OptimConfig(learning_rate=3e-3, decay="cosine"),
        train=TrainConfig(steps=1000, batch_size=128, eval_every=200),
    )
    if variant == "quick":
        config.task.train_examples, config.task.eval_examples = 2000, 100
        config.model.hidden_size = 64
        config.train = TrainConfig(steps=60, batch_size=64, eval_every=30, log_every=10)
    elif variant:
        raise UserError(f"configs/translate_numbers.py has no variant {variant!r}; it has quick")
    return config
