"""By blocks the gradient computes logits again, in another order than they were computed in."""

import jax
import jax.numpy as jnp
import numpy as np

import attn_research as ar


def test_logits_that_come_out_larger_than_their_largest_have_finite_gradients(rng):
    """A digit of 1e38 is 1e31: the exponential of it would be inf."""

    @jax.jit
    def grads(q, k, v):
        return jax.grad(
            lambda q, k, v: ar.attend(q, k, v, implementation="blocked").sum(), argnums=(0, 1, 2)
        )(q, k, v)

    for _ in range(20):
        q, k = (np.clip(rng.normal(size=(2, n, h, 6)), -1, 1) for n, h in ((21, 4), (19, 2)))
        v = jnp.asarray(rng.normal(size=(2, 19, 2, 3)), jnp.float32)
        for grad in grads(*(jnp.asarray(x * 1e19, jnp.float32) for x in (q, k)), v):
            assert np.isfinite(grad).all()
