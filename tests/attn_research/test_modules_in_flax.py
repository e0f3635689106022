"""The modules under Flax's transformations, and from NNX."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import attn_research as ar

pytestmark = pytest.mark.usefixtures("quick_compile")


class Block(nn.Module):
    decode: bool = False

    @nn.compact
    def __call__(self, x, _):
        layer = nn.remat(ar.SelfAttention)(2, score="additive", decode=self.decode, name="layer")
        return x + layer(x, mask=ar.masks.causal()), None


def test_remat_and_scan_over_layers(rng):
    axes = {"params": 0, "cache": 0}
    stack = nn.scan(Block, variable_axes=axes, split_rngs={"params": True}, length=3)
    x = jnp.asarray(rng.normal(size=(2, 5, 8)), jnp.float32)
    variables = jax.jit(stack(decode=True).init)(jax.random.key(0), x, None)
    params = {"params": variables["params"]}

    def scanned(params):
        y, _ = stack().apply(params, x, None)
        return jnp.sin(y).sum(), y

    def one_by_one(params):
        y = x
        for i in range(3):
            own = jax.tree.map(lambda p, i=i: p[i], params["params"]["layer"])
            layer = ar.SelfAttention(2, score="additive")
            y = y + layer.apply({"params": own}, y, mask=ar.masks.causal())
        return jnp.sin(y).sum(), y

    (got, want) = (jax.jit(jax.grad(f, has_aux=True))(params) for f in (scanned, one_by_one))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    decode = jax.jit(lambda held, x: stack(decode=True).apply(held, x, None, mutable=["cache"]))
    held = variables
    for rows in (slice(0, 3), slice(3, 5)):
        (y, _), cache = decode(held, x[:, rows])
        np.testing.assert_allclose(y, want[1][:, rows], atol=1e-5)
        held = params | cache


def test_from_nnx(rng):
    layer = ar.SelfAttention(num_heads=2, score="additive", scale="learned", talking_heads=True)
    x = jnp.asarray(rng.normal(size=(2, 5, 8)), jnp.float32)
    model = nnx.bridge.ToNNX(layer, rngs=nnx.Rngs(0)).lazy_init(x)
    params = jax.tree.map(jnp.asarray, nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    wanted = jax.eval_shape(layer.init, jax.random.key(0), x)["params"]
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, wanted)

    def loss(apply):
        return jnp.sin(apply(x, mask=ar.masks.causal())).sum()

    @jax.jit
    def of_linen(params):
        return jax.value_and_grad(lambda p: loss(layer.bind({"params": p})))(params)

    got = nnx.jit(nnx.value_and_grad(loss))(model)
    want = of_linen(params)
    np.testing.assert_allclose(got[0], want[0], atol=1e-5)
    grads = nnx.to_pure_dict(got[1])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), grads, want[1])
    assert all(np.abs(g).max() > 0 for g in jax.tree.leaves(grads["score"]))


def test_decoding_from_nnx(rng):
    layer = ar.SelfAttention(num_heads=2, decode=True)
    x = jnp.asarray(rng.normal(size=(2, 5, 8)), jnp.float32)
    model = nnx.bridge.ToNNX(layer, rngs=nnx.Rngs(0)).lazy_init(x)
    params = jax.tree.map(jnp.asarray, nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    want = ar.SelfAttention(num_heads=2).apply({"params": params}, x, mask=ar.masks.causal())
    step = nnx.jit(lambda model, x: model(x, mutable=["cache"]))
    for rows in (slice(0, 3), slice(3, 5)):
        np.testing.assert_allclose(step(model, x[:, rows]), want[:, rows], atol=1e-5)
