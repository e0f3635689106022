"""Speed and memory of attention beside its peers: jax.nn, flax.linen, PyTorch, Keras.

    pip install -e '.[peers]' && python launch.py --config=configs/benchmark.py

Hardware: 2 CPU cores, 16 GB; nothing else should run. Time: some 25 minutes, an estimate; `:quick`
(one short length, nothing to compare) 43 s on cores that other work shared.
Should reach: the bounds in the table that it prints. Measured so far, T = 512 on shared cores:
additive/512/forward/blocked_over_textbook = 16, additive/512/forward_backward/... = 11.6.
"""

from experiments.benchmark import BenchmarkConfig
from experiments.config import no_variant


def get_config(variant: str = "") -> BenchmarkConfig:
    if variant == "quick":
        return BenchmarkConfig(lengths=(64,), heads=2, repeats=3, calls=1)
    if variant:
        no_variant(__file__, variant)
    return BenchmarkConfig()
