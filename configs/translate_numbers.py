"""Numbers in words, English -> French: a GRU encoder-decoder with additive attention.

    python launch.py --config=configs/translate_numbers.py            one run
    python launch.py --config=configs/translate_numbers.py --sweep    the scores, three seeds each

Hardware: 2 CPU cores. Time: 1 minute in all, 45 s of training.
Should reach (seed 0): test exact match 1.000, BLEU 100; exact match .99 on validation at step 100.
The encoder is 64 wide in each direction, so that its states are as wide as the decoder's and every
score can be asked for, dot too: --config.model.attention.score=none, dot, general, projected_dot.
Sentences of up to 60 words: --config.task.max_terms=4 (lists of numbers).
"""

from experiments.config import Config, ModelConfig, OptimConfig, TaskConfig, TrainConfig, no_variant
from experiments.sweep import Overrides, product, seeds


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


def sweep(variant: str = "") -> list[Overrides]:
    scores = ["additive", "dot", "general", "projected_dot", "none"]
    return product(
        {"model.attention.score": scores[:2] if variant == "quick" else scores},
        seeds(2 if variant == "quick" else 3),
    )
