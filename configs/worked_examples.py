"""Attention worked by hand: five small examples, every step printed, the weights drawn.

    python launch.py --config=configs/worked_examples.py

Hardware: any CPU. Time: under 10 seconds; nothing is trained, and the variant `:quick` is the same.
Should reach: example_1/weight_0 = 0.533, example_2/weight_0 = 0.21, example_3/weight_0 = 0.4512,
example_4/weight_0 = 0.2793; each example_N/difference_from_by_hand under 0.01.
"""

from experiments.config import no_variant
from experiments.worked_examples import WorkedExamplesConfig


def get_config(variant: str = "") -> WorkedExamplesConfig:
    if variant not in ("", "quick"):
        no_variant(__file__, variant)
    return WorkedExamplesConfig()
