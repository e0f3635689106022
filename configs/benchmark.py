"""Speed and memory of attention beside its peers: jax.nn, flax.linen, PyTorch, Keras.

    pip install -e '.[peers]' && python launch.py --config=configs/benchmark.py

Hardware: 2 CPU cores, 16 GB; nothing else should run. Time: about 25 minutes; `:quick` (one short
length, nothing to compare) about half a minute.
Should reach: see the table that it prints, and README.
"""

from experiments.benchmark import BenchmarkConfig
from experiments.config import no_variant


def get_config(variant: str = "") -> BenchmarkConfig:
    if variant == "quick":
        return BenchmarkConfig(lengths=(64,), heads=2, repeats=3, calls=1)
    if variant:
        no_variant(__file__, variant)
    return BenchmarkConfig()
