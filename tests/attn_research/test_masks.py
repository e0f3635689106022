"""Masks: their contents by hand, how they combine, and that they pass through jit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar
from attn_research import masks, reference


@pytest.mark.parametrize("offset", [0, 2, -1])
@pytest.mark.parametrize(("T", "S"), [(3, 3), (2, 5), (4, 1)])
def test_causal(offset, T, S):
    want = [[j <= i + offset for j in range(S)] for i in range(T)]
    np.testing.assert_array_equal(masks.causal(offset).as_array(T, S), want)


def test_causal_with_an_offset_for_each_batch_element():
    got = masks.causal(jnp.array([0, 2])).as_array(2, 4)
    assert got.shape == (2, 1, 2, 4)
    np.testing.assert_array_equal(got[1, 0], masks.causal(2).as_array(2, 4))


def test_lengths():
    got = masks.lengths([[0, 1], [2, 9]]).as_array(7, 3)
    want = [[[0, 0, 0], [1, 0, 0]], [[1, 1, 0], [1, 1, 1]]]
    np.testing.assert_array_equal(got[:, :, 0, 0], np.array(want, bool))


def test_combinations(rng):
    a, b = rng.random((4, 5)) < 0.5, rng.random((2, 1, 1, 5)) < 0.5
    x, y = masks.dense(a), masks.dense(jnp.asarray(b))
    for got, want in [
        (x & y, a & b),
        (x | y, a | b),
        (~x, ~a),
        (x & b, a & b),
        (a & y, a & b),
        (jnp.asarray(a) | y, a | b),
        (~(x & masks.lengths(3)), ~(a & (np.arange(5) < 3))),
    ]:
        assert isinstance(got, masks.Mask)
        np.testing.assert_array_equal(*np.broadcast_arrays(got.as_array(4, 5), want))


def test_masks_are_pytrees_and_plain_arrays_are_masks(draw):
    drawn = draw(N=1)
    query, key, value = drawn.cast(jnp.float32)
    mask = masks.lengths(jnp.array([4, 0])) & ~masks.causal(-1)
    array = np.array(jnp.broadcast_to(mask.as_array(3, 5), (2, 1, 3, 5)))
    want = reference.attention(*drawn, mask=array)[0]
    run = jax.jit(lambda q, k, v, m: ar.attend(q, k, v, mask=m))
    np.testing.assert_allclose(run(query, key, value, mask), want, atol=2e-6)
    np.testing.assert_allclose(run(query, key, value, array), want, atol=2e-6)


def test_wrong_masks_are_errors(draw):
    drawn = draw().cast(jnp.float32)
    with pytest.raises(TypeError, match="mask must be boolean .*float32.*bias="):
        ar.attend(*drawn, mask=jnp.zeros((3, 5)))
    with pytest.raises(TypeError, match="boolean array or made by ar.masks: got str"):
        ar.attend(*drawn, mask="causal")
    with pytest.raises(ValueError, match=r"mask must broadcast to .* \[2, 2, 3, 5\]: got \[4, 5\]"):
        ar.attend(*drawn, mask=np.ones((4, 5), bool))
    with pytest.raises(ValueError, match=r"use mask\[:, None, None, :\]"):
        ar.attend(*drawn, mask=np.ones((2, 5), bool))
    with pytest.raises(TypeError, match="must be integers: got float"):
        masks.lengths(jnp.array([1.0]))
