"""Does 1/sqrt(d) matter, and when? score x scale x dimension x seed on number words.

    python launch.py --config=configs/score_scaling.py --sweep

Hardware: 2 CPU cores. Time: 46 minutes for all 56 runs, beside other work.
Should reach (means of 4 seeds; more in docs/results/score_scaling.md), exact match on validation
after 150 steps, d = 16, 64, 256, 1024: projected_dot unscaled .940 .924 .793 .243, / sqrt(d) .969
.972 .960 .960, additive .886 .955 .976 .956; general .922, none .214.

Britz et al. 2017 (newstest2013): a dot product of states projected to d = 128 ... 1024, unscaled,
ends at 22.03, 22.33, 21.78, 18.22 BLEU, additive at 22.23, 22.33, 22.47, 22.10, no attention at
9.98. Here d = 16 ... 1024 is `model.attention.dim`; the fixed context (none) and general have no
such dimension and run once a seed. Raw RNN states are too small to saturate a dot product, so what
is compared are projections; initial/logit_std and validation/logit_std say how large logits are.
"""

from experiments.config import Config, ModelConfig, OptimConfig, TaskConfig, TrainConfig, no_variant
from experiments.sweep import Overrides, chain, product, seeds


def get_config(variant: str = "") -> Config:
    config = Config(
        task=TaskConfig(name="number_words", max_terms=2),
        model=ModelConfig(hidden_size=128, encoder_size=64, bidirectional=True),
        optim=OptimConfig(learning_rate=3e-3, decay="cosine"),
        train=TrainConfig(steps=600, batch_size=64, eval_every=75),
    )
    if variant == "quick":
        config.task.train_examples, config.task.eval_examples = 500, 50
        config.task.max_terms = 1
        config.model.hidden_size, config.model.encoder_size = 16, 8
        config.model.embedding_size = 16
        config.train = TrainConfig(steps=20, batch_size=16, eval_every=10, log_every=5)
    elif variant:
        no_variant(__file__, variant)
    return config


def sweep(variant: str = "") -> list[Overrides]:
    score, scale, dim = "model.attention.score", "model.attention.scale", "model.attention.dim"
    dims, others, repeats = [16, 64, 256, 1024], ["general", "none"], 4
    if variant == "quick":
        dims, others, repeats = [16], ["none"], 2
    additive = product({score: ["additive"], dim: dims})
    dot = product({score: ["projected_dot"], scale: ["none", "rsqrt_dim"], dim: dims})
    return product(chain(additive, dot, {score: others}), seeds(repeats))
