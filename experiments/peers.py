"""What the benchmark times: this library, and the attention of others, on the same arrays.

Each is given the layout of memory that it is written for: [1, T, heads, d], or [1, heads, T, d]. To
add one, add a line to `implementations`.
"""

import dataclasses
import functools
import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen

import attn_research as ar

WORKS = ("dot", "dot_causal", "additive", "general", "cosine", "gaussian", "function")
PASSES = ("forward", "forward_backward")
PACKAGES = ("torch", "keras")  # those that are left out where they are not installed

ADDITIVE_LONGEST = 1024  # for what holds T x S x d numbers: 2.1 GB a copy with 8 heads, d = 64
DENSE_LONGEST = 4096  # for what holds T x S numbers: 0.5 GB a copy with 8 heads
COPIES = 3  # of them that exist at once, about, in forward + backward

Arrays = tuple[Any, Any, Any, Any]  # the score's parameters, query, key, value


@dataclasses.dataclass(frozen=True)
class Implementation:
    """`attention(parameters, query, key, value)`, in arrays of `framework` ("jax" or "torch")."""

    name: str
    attention: Callable[..., Any]
    framework: str = "jax"
    heads_first: bool = False  # [1, heads, T, d]
    holds: str = ""  # in memory for all pairs: "" nothing, "logits", or "features": d of each
    longest: int | None = None  # T beyond which it is not timed

    def fits(self, T: int, heads: int, dim: int, memory: int) -> bool:
        """Whether what it holds is under half of `memory` (bytes), and T not beyond its longest."""
        each = {"": 0, "logits": 1, "features": dim}[self.holds]
        longest = {"": T, "logits": DENSE_LONGEST, "features": ADDITIVE_LONGEST}[self.holds]
        numbers = COPIES * each * heads * T * T
        return T <= min(longest, self.longest or T) and 4 * numbers < memory / 2


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Compiled, with its arrays in place: `call()` returns when the result is there."""

    call: Callable[[], Any]
    temporary_megabytes: float | None  # 10^6 bytes, as XLA allots them; None: not known


def missing() -> list[str]:
    """Those of PACKAGES that are not installed."""
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]


def draw(work: str, T: int, heads: int, dim: int, seed: int) -> Arrays:
    """Normal query, key and value [1, T, heads, dim], and the score's parameters; float32 NumPy."""
    rng = np.random.default_rng([seed, T])
    query, key, value = (
        rng.standard_normal((1, T, heads, dim)).astype(np.float32) for _ in range(3)
    )
    if work == "function":
        params: Any = (rng.standard_normal(dim) / dim**0.5).astype(np.float32)
    else:
        params = ar.init_score(score_of(work), jax.random.key(seed), query_dim=dim, key_dim=dim)
    return jax.tree.map(np.asarray, params), query, key, value


def score_of(work: str) -> Any:
    """The `score` of `ar.attend`."""
    return {"dot_causal": "dot", "function": users_function}.get(work, work)


def users_function(v: jax.Array, query: jax.Array, key: jax.Array) -> jax.Array:
    """v . relu(q + k) for all pairs, as a user would write it."""
    return jax.nn.relu(query[:, None] + key[None]) @ v


def implementations(work: str) -> list[Implementation]:
    """Ours first, then the peers that are installed."""
    ours = functools.partial(_ours, score_of(work))
    blocked = Implementation("blocked", functools.partial(ours, implementation="blocked"))
    dense = functools.partial(ours, implementation="dense")
    own_dot = Implementation("own_dot", functools.partial(_ours, "dot", implementation="blocked"))
    if work == "dot":
        found = [
            blocked,
            Implementation("dense", dense, holds="logits"),
            # What a user gets who names none: one of the two, and only short lengths need to ask.
            Implementation("default", ours, longest=512),
            Implementation("jax_nn", _jax_nn, holds="logits"),
            Implementation("flax", _flax, holds="logits"),
            Implementation("torch", _torch_sdpa, "torch", heads_first=True),
        ]
    elif work == "dot_causal":
        causal = functools.partial(ours, implementation="blocked", mask=ar.masks.causal())
        torch_causal = functools.partial(_torch_sdpa, causal=True)
        found = [
            Implementation("blocked", causal),
            own_dot,
            Implementation("jax_nn", functools.partial(_jax_nn, causal=True), holds="logits"),
            Implementation("torch", torch_causal, "torch", heads_first=True),
        ]
    elif work == "additive":
        cube: dict[str, Any] = {"heads_first": True, "holds": "features"}
        found = [
            blocked,
            Implementation("dense", dense, holds="features"),
            Implementation("textbook", _textbook_additive, **cube),
            Implementation("keras", _keras_additive, **cube),
            Implementation("torch", _torch_additive, "torch", **cube),
        ]
    elif work == "function":
        found = [blocked, Implementation("dense", dense, holds="features")]
    else:
        found = [blocked, own_dot]
    absent = missing()
    return [each for each in found if each.name not in absent]


def _ours(score: Any, params: Any, query: Any, key: Any, value: Any, **options: Any) -> Any:
    if score == "dot":
        params = None
    return ar.attend(query, key, value, score=score, score_params=params, **options)


def _jax_nn(params: Any, query: Any, key: Any, value: Any, causal: bool = False) -> Any:
    return jax.nn.dot_product_attention(query, key, value, is_causal=causal)


def _flax(params: Any, query: Any, key: Any, value: Any) -> Any:
    return linen.dot_product_attention(query, key, value)


def _torch_sdpa(params: Any, query: Any, key: Any, value: Any, causal: bool = False) -> Any:
    from torch.nn.functional import scaled_dot_product_attention

    return scaled_dot_product_attention(query, key, value, is_causal=causal)


def _textbook_additive(params: Any, query: Any, key: Any, value: Any) -> Any:
    """softmax(v . tanh(W_q q + W_k k)) value, by broadcasting."""
    query, key = query @ params["query"], key @ params["key"]
    logits = jnp.tanh(query[..., :, None, :] + key[..., None, :, :]) @ params["v"]
    return jax.nn.softmax(logits, axis=-1) @ value


def _torch_additive(params: Any, query: Any, key: Any, value: Any) -> Any:
    """The same as tutorials of Bahdanau's attention have it."""
    import torch

    query, key = query @ params["query"], key @ params["key"]
    logits = torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3)) @ params["v"]
    return torch.softmax(logits, dim=-1) @ value


def _keras_additive(params: Any, query: Any, key: Any, value: Any) -> Any:
    """keras.layers.AdditiveAttention, which has v and no projections: these are made before it. It
    knows no heads: they are its batch."""
    layer = _keras_layer(query.shape[-1])
    query, key = query @ params["query"], key @ params["key"]
    out, _ = layer.stateless_call([params["v"]], [], [query[0], value[0], key[0]])
    return out[None]


@functools.cache
def _keras_layer(dim: int) -> Any:
    os.environ["KERAS_BACKEND"] = "jax"
    keras = importlib.import_module("keras")
    layer = keras.layers.AdditiveAttention(dtype="float32")
    layer.build([(None, None, dim)] * 3)
    return layer


def prepare(implementation: Implementation, arrays: Arrays, passes: str) -> Prepared:
    """Compiles it for `arrays` (of `draw`).

    "forward" computes the context; "forward_backward" the gradient of sum(context ** 2) by the
    score's parameters, query, key and value.
    """
    params, *rest = arrays
    if implementation.heads_first:
        rest = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in rest]
    make = _prepare_torch if implementation.framework == "torch" else _prepare_jax
    return make(implementation.attention, (params, *rest), passes == "forward_backward")


def _prepare_jax(attention: Callable[..., Any], arrays: Arrays, backward: bool) -> Prepared:
    def loss(*arrays: Any) -> jax.Array:
        return jnp.sum(attention(*arrays) ** 2)

    if attention is _keras_additive:
        _keras_layer(arrays[1].shape[-1])  # its variables are made outside of a trace
    given = jax.tree.map(jnp.asarray, arrays)
    function = jax.grad(loss, argnums=(0, 1, 2, 3)) if backward else attention
    compiled = jax.jit(function).lower(*given).compile()
    memory = compiled.memory_analysis()
    megabytes = None if memory is None else memory.temp_size_in_bytes / 1e6
    return Prepared(lambda: jax.block_until_ready(compiled(*given)), megabytes)


def _prepare_torch(attention: Callable[..., Any], arrays: Arrays, backward: bool) -> Prepared:
    """Eager, on the CPU, as most of its users run it, with all cores."""
    import torch

    torch.set_num_threads(os.cpu_count() or 1)
    given = jax.tree.map(lambda x: torch.from_numpy(x.copy()).requires_grad_(backward), arrays)
    leaves, structure = jax.tree.flatten(given)

    def forward() -> Any:
        with torch.no_grad():
            return attention(*given)

    def gradient() -> Any:
        loss = attention(*given).square().sum()
        return jax.tree.unflatten(structure, torch.autograd.grad(loss, leaves))

    return Prepared(gradient if backward else forward, None)


@functools.cache
def rate(kind: str) -> tuple[Callable[[], Any], float]:
    """What takes the machine's own rate of "products" or "reciprocals": (call, G of them a call).

    A matrix product of 1024 x 1024 float32, in flop; or the loop (1 / (1 + E F)).sum(-1) over 64 x
    1024 pairs of 64 features, which XLA fuses into one.
    """
    rng, function = np.random.default_rng(0), _product if kind == "products" else _reciprocals
    if kind == "products":
        given = [rng.standard_normal((1024, 1024)) for _ in range(2)]
        amount = 2 * 1024**3 / 1e9
    else:
        given = [rng.uniform(0.5, 2, (length, 64)) for length in (64, 1024)]
        amount = 64 * 1024 * 64 / 1e9
    arrays = [jnp.asarray(x, jnp.float32) for x in given]
    compiled = jax.jit(function).lower(*arrays).compile()
    return lambda: jax.block_until_ready(compiled(*arrays)), amount


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.dot(a, b)


def _reciprocals(e: jax.Array, f: jax.Array) -> jax.Array:
    return (1 / (1 + e[:, None] * f[None])).sum(-1)


def work_of(work: str, passes: str, T: int, heads: int, dim: int) -> tuple[str, float] | None:
    """(what it is made of, G of them): "products" in GFLOP, or "reciprocals".

    Forward: two products, 4 T S d heads flop; with backward seven, 14 T S d heads: the logits once
    more, and one each for the gradients of weights, value, query and key. Additive: T S d heads
    reciprocals (each is a tanh), twice that with backward, as they are not stored. Causal: the
    visible pairs. A user's function is made of neither: None.
    """
    pairs = heads * T * ((T + 1) / 2 if work == "dot_causal" else T) * dim / 1e9
    backward = passes == "forward_backward"
    if work == "function":
        return None
    if work == "additive":
        return "reciprocals", (2 if backward else 1) * pairs
    return "products", (14 if backward else 4) * pairs
