"""`lax.scan` for recurrent networks: weight gradients are computed after the loop, not in it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Weights = dict[str, dict[str, jax.Array]]  # a name each: {"kernel" [D, E], "bias" [E] if any}
Product = Callable[[str, jax.Array], jax.Array]  # (name, x [B, D]) -> x @ kernel + bias [B, E]


def product(weights: Weights) -> Product:
    """The products that a step makes, outside of a scan."""

    def of(name: str, x: jax.Array) -> jax.Array:
        y = x @ weights[name]["kernel"]
        return y + weights[name]["bias"] if "bias" in weights[name] else y

    return of


def scan(
    step: Callable[[Product, Any, Any, Any], tuple[Any, Any]],
    weights: Weights,
    constants: Any,
    carry: Any,
    xs: Any,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """`lax.scan` of `step(product, constants, carry, x) -> (carry, y)`.

    Reverse mode only. The gradient of a kernel is sum_t x_t^T dy_t: `lax.scan` would add one small
    product to it at every step; here x_t and dy_t are stacked and it is one product over all steps.
    `step` may use a weight once, through `product`, and all else that is differentiated through
    its arguments; gradients of the other `constants` are summed in the loop, as `lax.scan` does.
    """

    @jax.custom_vjp
    def run(weights: Weights, constants: Any, carry: Any, xs: Any) -> tuple[Any, Any]:
        def body(carry: Any, x: Any) -> tuple[Any, Any]:
            return step(product(weights), constants, carry, x)

        return jax.lax.scan(body, carry, xs, reverse=reverse)

    def forward(weights: Weights, constants: Any, carry: Any, xs: Any) -> tuple[Any, Any]:
        def recorded(constants: Any, carry: Any, x: Any, shifts: Any) -> Any:
            """A step that also returns what each product was given; `shifts` are added to each
            result, so that their gradients are those of the results."""
            given = {}
            plain = product(weights)

            def shifted(name: str, x: jax.Array) -> jax.Array:
                given[name] = x
                return plain(name, x) + shifts[name] if shifts else plain(name, x)

            carry, y = step(shifted, constants, carry, x)
            return carry, (y, given)

        first = jax.tree.map(lambda x: x[0], xs)
        shapes = jax.eval_shape(lambda: recorded(constants, carry, first, None)[1][1])
        length = jax.tree.leaves(xs)[0].shape[0]
        zeros = {
            name: jnp.zeros((length, *x.shape[:-1], weights[name]["kernel"].shape[-1]), x.dtype)
            for name, x in shapes.items()
        }

        def run_recorded(shifts: Any, constants: Any, carry: Any, xs: Any) -> Any:
            carry, (ys, given) = jax.lax.scan(
                lambda carry, x: recorded(constants, carry, *x),
                carry,
                (xs, shifts),
                reverse=reverse,
            )
            return (carry, ys), given

        out, pullback, given = jax.vjp(run_recorded, zeros, constants, carry, xs, has_aux=True)
        return out, (pullback, given)

    def backward(residuals: Any, cotangent: Any) -> tuple[Any, Any, Any, Any]:
        pullback, given = residuals
        dy, dconstants, dcarry, dxs = pullback(cotangent)
        dweights = {}
        for name, x in given.items():
            dweights[name] = {"kernel": jnp.einsum("...d,...e->de", x, dy[name])}
            if "bias" in weights[name]:
                dweights[name]["bias"] = dy[name].sum(range(dy[name].ndim - 1))
        return dweights, dconstants, dcarry, dxs

    run.defvjp(forward, backward)
    return run(weights, constants, carry, xs)
