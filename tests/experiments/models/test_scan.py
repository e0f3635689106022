"""The scan with weight gradients after the loop, against `lax.scan` with everything in it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.models.scan import product, scan


def step(product, constants, carry, x):
    h = jnp.tanh(product("recurrent", carry) + x[0] + constants["shift"])
    y = product("read", jnp.where(x[1], h, 0))
    return h, (h, y)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 5])
def test_values_and_every_gradient_equal_those_of_lax_scan(rng, length, reverse):
    def draw(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    weights = {
        "recurrent": {"kernel": draw(4, 4)},
        "read": {"kernel": draw(4, 3), "bias": draw(3)},
    }
    constants = {"shift": draw(2, 4), "length": jnp.array([3, 1])}
    xs = draw(length, 2, 4), jnp.asarray(rng.random((length, 2, 1)) < 0.7)
    out = draw(length, 2, 3)

    def loss(scanned, weights, shift, carry, gates):
        carry, (hs, ys) = scanned(weights, constants | {"shift": shift}, carry, (gates, xs[1]))
        return (ys * out).sum() + (hs**2).sum() + carry.sum()

    def ours(weights, constants, carry, xs):
        return scan(step, weights, constants, carry, xs, reverse=reverse)

    def plain(weights, constants, carry, xs):
        def body(carry, x):
            return step(product(weights), constants, carry, x)

        return jax.lax.scan(body, carry, xs, reverse=reverse)

    arguments = weights, constants["shift"], draw(2, 4), xs[0]
    gradient = jax.value_and_grad(loss, argnums=(1, 2, 3, 4))
    for one, two in zip(
        jax.tree.leaves(gradient(ours, *arguments)),
        jax.tree.leaves(gradient(plain, *arguments)),
        strict=True,
    ):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)
