"""Speed and memory of attention beside its peers: jax.nn, flax.linen, PyTorch, Keras.

    pip install -e '.[peers]' && python launch.py --config=configs/benchmark.py

Hardware: 2 CPU cores, 16 GB; nothing else should run. Time: some 25 minutes, an estimate; with
`--config.repeats=3 --config.calls=1 --config.point_seconds=15` about 10; `:quick` (one short
length, nothing to compare) under a minute.
Should reach: the table that it prints says what was aimed at. Reached in three rounds, seed 0:
dot/4096/forward/blocked_over_jax_nn = 3.7, .../forward_backward/... = 3.9, over torch 1.20, 1.14;
additive/1024/forward/blocked_over_textbook = 11.2, .../forward_backward/... = 7.0.
"""

from experiments.benchmark import BenchmarkConfig
from experiments.config import no_variant


def get_config(variant: str = "") -> BenchmarkConfig:
    if variant == "quick":
        return BenchmarkConfig(lengths=(64,), heads=2, repeats=3, calls=1)
    if variant:
        no_variant(__file__, variant)
    return BenchmarkConfig()
