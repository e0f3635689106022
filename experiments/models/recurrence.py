"""Recurrent cells, and the scan that runs one over padded sequences.

A cell's parameters are one kernel per input part [D, G] ("input" always), "recurrent" [H, G] and
"bias" [G]; G is H gates side by side, as below. A carry is a tuple of [B, H]: (h,) or (h, c).

    rnn   h' = tanh(g)                                                            (Elman 1990)
    gru   z, r = sigmoid(g); n = tanh(x_n + r * u_n); h' = (1 - z) n + z h    (Cho et al. 2014)
    lstm  i, f, o = sigmoid(g); c' = f c + i tanh(g); h' = o tanh(c')   (Gers et al. 2000)

with g = x + u, x the inputs' part and bias, u = h W_recurrent.
"""

from typing import Any

import jax
import jax.numpy as jnp

from experiments.models.scan import Product, scan

Carry = tuple[jax.Array, ...]
_GATES = {"rnn": 1, "gru": 3, "lstm": 4}


def num_states(cell: str) -> int:
    """Arrays in a carry: 2 for an LSTM, otherwise 1."""
    return 2 if cell == "lstm" else 1


def init(key: jax.Array, cell: str, inputs: dict[str, int], size: int) -> dict[str, jax.Array]:
    """A gate at a time: Glorot input kernels, an orthogonal recurrent kernel (Saxe et al. 2014);
    zero biases, but 1 for the LSTM's forget gate (Jozefowicz et al. 2015)."""
    gates = _GATES[cell]
    keys = iter(jax.random.split(key, (len(inputs) + 1) * gates))
    glorot = jax.nn.initializers.glorot_uniform()
    orthogonal = jax.nn.initializers.orthogonal()

    def side_by_side(make: Any, rows: int) -> jax.Array:
        return jnp.concatenate([make(next(keys), (rows, size)) for _ in range(gates)], axis=-1)

    params = {name: side_by_side(glorot, width) for name, width in inputs.items()}
    bias = jnp.zeros(gates * size)
    if cell == "lstm":
        bias = bias.at[size : 2 * size].set(1)
    return params | {"recurrent": side_by_side(orthogonal, size), "bias": bias}


def advance(cell: str, carry: Carry, x: jax.Array, u: jax.Array) -> Carry:
    """One step. x [B, G]: what inputs and bias give to the gates; u [B, G]: what h gives."""
    h = carry[0]
    if cell == "rnn":
        return (jnp.tanh(x + u),)
    if cell == "gru":
        size = h.shape[-1]
        z, r = jnp.split(jax.nn.sigmoid(x[..., : 2 * size] + u[..., : 2 * size]), 2, axis=-1)
        n = jnp.tanh(x[..., 2 * size :] + r * u[..., 2 * size :])
        return ((1 - z) * n + z * h,)
    i, f, g, o = jnp.split(x + u, 4, axis=-1)
    c = jax.nn.sigmoid(f) * carry[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def run(
    params: dict[str, jax.Array], cell: str, x: jax.Array, real: jax.Array, reverse: bool = False
) -> tuple[Carry, jax.Array]:
    """x [S, B, D], real [S, B] bool -> (final carry, states [S, B, H]), from a zero carry.

    Padding leaves the carry as it is: going forward the final carry is that of the last real token,
    going in reverse the first real step is at the last real token.
    """
    gates = x @ params["input"] + params["bias"]
    size = params["recurrent"].shape[0]
    zero = (jnp.zeros((x.shape[1], size), gates.dtype),) * num_states(cell)

    def step(
        product: Product, _: None, carry: Carry, x: tuple[jax.Array, jax.Array]
    ) -> tuple[Carry, jax.Array]:
        gates, real = x
        new = advance(cell, carry, gates, product("recurrent", carry[0]))
        new = tuple(jnp.where(real, a, b) for a, b in zip(new, carry, strict=True))
        return new, new[0]

    weights = {"recurrent": {"kernel": params["recurrent"]}}
    return scan(step, weights, None, zero, (gates, real[..., None]), reverse=reverse)
