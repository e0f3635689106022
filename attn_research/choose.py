"""Which implementation computes a call of ``attend``."""

import math

import jax

from attn_research import normalizers, scaling, scores
from attn_research.kernels import fused
from attn_research.validate import Inputs, Options


def implementation(inputs: Inputs, options: Options, with_lse: bool = False) -> str:
    """A name of ``validate.IMPLEMENTATIONS``. Raises if the one asked for cannot do it."""
    named, instead = options.implementation, "dense"
    if named in fused.KERNELS:
        refusal, instead = fused.why_not(named, inputs, options, with_lse), "blocked"
    else:
        refusal = why_not_blocked(options)
    if named is not None and named != "dense" and refusal:
        raise ValueError(f"implementation={named!r} cannot do {refusal}: use {instead!r}")
    if refusal or not math.prod(inputs.shape):  # nothing there: no array to avoid
        return "dense"
    return named or preferred(inputs, options, with_lse)


def why_not_blocked(options: Options) -> str:
    """What of the options the blocked implementation cannot do; empty if it can do all."""
    if options.talking_heads is not None:
        return "talking_heads, which mix whole matrices of logits"
    streams = normalizers.get(options.normalizer).STREAMS
    if streams is None:
        name = type(normalizers.get(options.normalizer)).__name__
        return f"the normalizer {name}, which needs whole rows"
    if streams in ("threshold", "bisection") and options.implementation == "blocked_any_mode":
        return "a search for the threshold of each row"
    if callable(scores.pairwise(options.score)) and _counts(options):
        return "a count of visible keys that the score function may hide"
    return ""


def needs_count(options: Options) -> bool:
    """Whether the number of visible keys is needed."""
    named = isinstance(options.score, str)
    return _counts(options) or (named and hasattr(scores.get(options.score), "place"))


def _counts(options: Options) -> bool:
    log_n = scaling.as_log_n(options.scale) is not None
    return log_n or normalizers.get(options.normalizer).STREAMS == "elementwise"


def preferred(inputs: Inputs, options: Options, with_lse: bool) -> str:
    """The faster one, of those that can do it.

    Measured on 2 cores: with 16 queries and 2048 keys the dot product is as fast either way, with 4
    dense is, by a third; the additive score is faster by blocks from 8 queries on. On an
    accelerator, where blocks one after the other leave most of it idle, they are for what would
    take more than 2 GiB otherwise (not measured: none was at hand). A fused kernel is left alone
    where what the score makes of queries and keys would have to be rounded for it, and that for
    TPUs where there are several, since JAX cannot split its call.
    """
    T, S = inputs.shape[-2:]
    alone = [name for name in fused.KERNELS if name != "splash" or jax.device_count() == 1]
    for name in alone if T * S >= 2**15 and T > 1 else ():
        if not fused.why_not(name, inputs, options, with_lse):
            if all(x.dtype == inputs.query.dtype for x in fused.transformed(inputs, options)):
                return name
    if jax.default_backend() != "cpu":
        return "blocked" if 4 * math.prod(inputs.shape) > 2**31 else "dense"
    few = T < (32 if scores.pairwise(options.score) == "dot" else 8)
    return "blocked" if T * S >= (2**20 if few else 2**14) and T > 1 else "dense"
