"""Attention with any score function, in JAX.

>>> import jax.numpy as jnp
>>> import attn_research as ar
>>> q = jnp.array([[1.0, 0.0]])                         # one query
>>> k = jnp.array([[jnp.log(3.0), 0.0], [0.0, 2.0]])   # two keys
>>> v = jnp.array([[10.0], [20.0]])
>>> print(ar.attention_weights(q, k, scale="none").round(4))
[[0.75 0.25]]
>>> print(ar.attend(q, k, v, scale="none").round(4))
[[12.5]]

Functions take arrays ``[..., length, heads, features]``, or ``[length, features]`` for one head.
Importing this package loads jax; flax is loaded when ``SelfAttention`` or ``CrossAttention`` is
first asked for.
"""

from typing import TYPE_CHECKING, Any

from attn_research import compat, diagnostics, masks, positions, theory
from attn_research.attend import attend, attend_with_lse, attention_weights
from attn_research.cache import KVCache
from attn_research.differential import differential_attention, differential_weight
from attn_research.feature_maps import Performer, elu_plus_one, random_features
from attn_research.hopfield import energy as hopfield_energy
from attn_research.hopfield import hopfield
from attn_research.linear import (
    LinearState,
    init_linear_state,
    linear_attention,
    linear_attention_step,
)
from attn_research.normalizers import NORMALIZERS, normalizer
from attn_research.params import PerHead, init_score
from attn_research.scaling import log_n
from attn_research.scores import SCORES
from attn_research.talking_heads import TalkingHeads
from attn_research.transformed import TransformedKeys, transform_keys

if TYPE_CHECKING:
    from attn_research.modules import CrossAttention, SelfAttention

__version__ = "0.1.0"

__all__ = [
    "NORMALIZERS",
    "SCORES",
    "CrossAttention",
    "KVCache",
    "LinearState",
    "PerHead",
    "Performer",
    "SelfAttention",
    "TalkingHeads",
    "TransformedKeys",
    "__version__",
    "attend",
    "attend_with_lse",
    "attention_weights",
    "compat",
    "diagnostics",
    "differential_attention",
    "differential_weight",
    "elu_plus_one",
    "hopfield",
    "hopfield_energy",
    "init_linear_state",
    "init_score",
    "linear_attention",
    "linear_attention_step",
    "log_n",
    "masks",
    "normalizer",
    "positions",
    "random_features",
    "theory",
    "transform_keys",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in ("SelfAttention", "CrossAttention"):
        from attn_research import modules

        return getattr(modules, name)
    raise AttributeError(f"module 'attn_research' has no attribute {name!r}")
