"""Linear attention against loops over its formula in float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_research import masks
from attn_research.feature_maps import Performer
from attn_research.linear import init_linear_state, linear_attention, linear_attention_step

pytestmark = pytest.mark.usefixtures("quick_compile")

W = np.random.default_rng(0).normal(size=(6, 4))
MAPS = {
    "elu_plus_one": lambda: "elu_plus_one",
    "performer": lambda: Performer(W.copy(), 0.7),  # a copy: JAX keeps constants across x64
    "function": lambda: lambda x: jnp.concatenate([jax.nn.relu(x), 1 + x * x], -1),
    "signed": lambda: lambda x: jnp.concatenate([jnp.ones_like(x), x / 4], -1),  # D + q.k / 16
}
PLAIN = {
    "elu_plus_one": lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))),
    "performer": lambda x: np.exp(0.7**0.5 * (x @ W.T) - 0.35 * (x * x).sum(-1, keepdims=True)),
    "function": lambda x: np.concatenate([np.maximum(x, 0), 1 + x * x], -1),
    "signed": lambda x: np.concatenate([np.ones_like(x), x / 4], -1),
}


def formula(name, query, key, value, mask=True):
    """phi(q_i) . sum_j phi(k_j) v_j / sum, a row at a time."""
    batch = np.broadcast_shapes(*(x.shape[:-3] for x in (query, key, value)))
    query, key, value = (np.broadcast_to(x, batch + x.shape[-3:]) for x in (query, key, value))
    (T, N), (S, K) = query.shape[-3:-1], key.shape[-3:-1]
    mask = np.broadcast_to(mask, (*batch, N, T, S))
    out = np.zeros((*batch, T, N, value.shape[-1]))
    for b in np.ndindex(*batch):
        for i, n in np.ndindex(T, N):
            phi_q, k = PLAIN[name](query[b][i, n]), n // (N // K)
            weights = [phi_q @ PLAIN[name](key[b][j, k]) * mask[b][n, i, j] for j in range(S)]
            if any(weights):
                out[b][i, n] = weights @ value[b][:, k] / sum(weights)
    return out


KEYS = np.random.default_rng(1).random((2, 4, 1, 6)) < 0.7  # its own for each head
REAL = np.array([0, 0, 1, 1, 0, 1], bool)
CASES = [
    (3, 5, None),
    (3, 6, KEYS),
    (3, 6, REAL),
    (5, 6, masks.lengths(np.array([6, 0]))),
    (7, 7, masks.causal()),
    (4, 4, masks.causal() & masks.lengths(np.array([3, 4]))),
    (4, 6, REAL & (masks.causal(1) & masks.causal(2))),
    (4, 6, masks.causal(2) & KEYS),
    (3, 7, masks.causal(2)),
    (4, 3, masks.causal(-2)),
    (3, 2, masks.causal(2**31 - 1)),
    (3, 0, masks.causal(-(2**31))),
    (4, 4, masks.causal(np.array([2, -1])) & masks.lengths(3)),
    (2, 5, masks.window(None, 1)),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_formula(case, draw):
    T, S, mask = CASES[case]
    drawn = draw(T=T, S=S, N=4, K=2)
    visible = True if mask is None else masks.as_mask(mask).as_array(T, S)
    name = list(MAPS)[case % len(MAPS)]
    want = formula(name, *drawn, np.asarray(visible))
    with jax.enable_x64(True):
        for known in (False, True) if isinstance(mask, masks.Band) else (False,):
            run = jax.jit(
                lambda *x, m, known=known: linear_attention(
                    *x, feature_map=MAPS[name](), mask=mask if known else m
                )
            )
            np.testing.assert_allclose(run(*drawn, m=mask), want, atol=1e-12)


@pytest.mark.parametrize(
    "shape",
    [
        dict(T=1, S=1, N=1),
        dict(T=1, S=7, N=3, K=1),
        dict(T=5, S=0),
        dict(T=0, S=3),
        dict(batch=(0,), T=3, S=3),
        dict(batch=(2, 1, 3), T=5, S=5, Dv=1),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["performer", "signed"])
def test_shapes(name, shape, draw):
    drawn = draw(**shape)
    T, S = drawn.query.shape[-3], drawn.key.shape[-3]
    for mask, visible in ((None, True), (masks.causal(), np.tri(T, S, dtype=bool))):
        run = jax.jit(lambda *x, m=mask: linear_attention(*x, feature_map=MAPS[name](), mask=m))
        want = formula(name, *drawn, visible)
        np.testing.assert_allclose(run(*drawn.cast(jnp.float32)), want, atol=1e-5)


def test_one_head_and_batch_axes_that_broadcast(draw):
    query, key, value = draw(T=3, S=3, N=2)
    mask = masks.causal() & np.array([True, False, True])
    visible = np.asarray(mask.as_array(3, 3))
    run = jax.jit(lambda *x: linear_attention(*x, mask=mask))
    for inputs in ((query[:1], key, value[:1]), (query, key[:1], value[:1])):
        want = formula("elu_plus_one", *inputs, visible)
        np.testing.assert_allclose(run(*inputs), want, atol=1e-5)
    want = formula("elu_plus_one", query, key, value, visible)[0, :, 1]
    np.testing.assert_allclose(run(*(x[0, :, 1] for x in (query, key, value))), want, atol=1e-5)


def test_the_chunk_size_changes_nothing(draw):
    drawn, name = draw(T=13, S=13, K=1), "performer"
    mask = masks.causal() & masks.lengths(np.array([13, 7]))
    want = formula(name, *drawn, np.asarray(mask.as_array(13, 13)))
    with jax.enable_x64(True):
        for size in (1, np.int64(4), 64):
            options = dict(feature_map=MAPS[name](), mask=mask, chunk_size=size)
            run = jax.jit(lambda *x, options=options: linear_attention(*x, **options))
            np.testing.assert_allclose(run(*drawn), want, atol=1e-12)


@pytest.mark.parametrize(("name", "prompt"), list(zip(MAPS, (3, 0, 3, 3), strict=True)))
def test_decoding_gives_the_rows_of_the_whole(name, prompt, draw):
    query, key, value = draw(T=5, S=5 + prompt, N=4, K=2)
    real = np.ones((2, 1, 1, 5 + prompt), bool)
    real[0, ..., : prompt and 2] = False  # padded on the left
    visible = real & np.tri(5, 5 + prompt, prompt, dtype=bool)
    want = formula(name, query, key, value, visible)
    with jax.enable_x64(True):

        @jax.jit
        def decode(query, key, value):
            phi = {"feature_map": MAPS[name]()}
            start = key[:, :prompt], value[:, :prompt]
            state = init_linear_state(*start, mask=real[..., :prompt], **phi)

            def step(state, xs):
                context, state = linear_attention_step(state, *xs, **phi)
                return state, context

            steps = query, key[:, prompt:], value[:, prompt:]
            state, rows = jax.lax.scan(step, state, [jnp.moveaxis(x, 1, 0) for x in steps])
            return jnp.moveaxis(rows, 0, 1), state, init_linear_state(key, value, mask=real, **phi)

        rows, state, whole = decode(query, key, value)
        np.testing.assert_allclose(rows, want, atol=1e-12)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9), state, whole)
        assert state.kv.shape[:2] + state.kv.shape[3:] == (2, 2, 3)


@pytest.mark.parametrize(
    ("name", "mask"),
    [*((name, "causal") for name in MAPS if name != "function"), ("function", "lengths")],
)
def test_gradients(name, mask, draw, rng):
    # not near 0, where elu has no second derivative
    apart = (x + np.copysign(0.1, x) for x in draw(T=3, S=3, K=1))
    drawn = dict(zip(("query", "key", "value"), apart, strict=True))
    mask = masks.lengths(np.array([2, 0])) if mask == "lengths" else masks.causal(-1)
    visible = np.asarray(mask.as_array(3, 3))
    pull = rng.normal(size=(2, 3, 2, 3))
    step = {k: rng.normal(size=x.shape) for k, x in drawn.items()}

    def loss(drawn):
        return (linear_attention(**drawn, feature_map=MAPS[name](), mask=mask) * pull).sum()

    def plain_loss(h):
        return (formula(name, *(drawn[k] + h * step[k] for k in drawn), visible) * pull).sum()

    @jax.jit
    def run(drawn):
        return jax.jvp(jax.value_and_grad(loss), (drawn,), (step,))

    with jax.enable_x64(True):
        (_, grads), (along, curve) = jax.device_get(run(drawn))
    want = (plain_loss(1e-5) - plain_loss(-1e-5)) / 2e-5
    assert along == pytest.approx(want, rel=1e-6, abs=1e-8)
    assert sum((grads[k] * step[k]).sum() for k in drawn) == pytest.approx(along, rel=1e-10)
    second = (plain_loss(1e-3) - 2 * plain_loss(0) + plain_loss(-1e-3)) / 1e-6
    got = sum((curve[k] * step[k]).sum() for k in drawn)
    assert got == pytest.approx(second, rel=1e-3, abs=1e-4)


def test_gradients_of_performers_parameters(draw, rng):
    drawn, step = draw(batch=(), T=3, S=3), rng.normal(size=W.shape)

    def loss(h):
        phi = Performer(W.copy() + h * step, 0.7 + h)
        return jnp.sin(linear_attention(*drawn, feature_map=phi, mask=masks.causal())).sum()

    with jax.enable_x64(True):
        run = jax.jit(loss)
        want = (run(1e-5) - run(-1e-5)) / 2e-5
        assert float(jax.jit(jax.grad(loss))(0.0)) == pytest.approx(float(want), rel=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_memory_is_linear(causal):
    mask = masks.causal() if causal else None

    def temporaries(T, of):
        x = jax.ShapeDtypeStruct((T, 2, 16), jnp.float32)
        run = jax.jit(of(lambda q, k, v: linear_attention(q, k, v, mask=mask, chunk_size=8)))
        return run.lower(x, x, x).compile().memory_analysis().temp_size_in_bytes

    def gradient(f):
        return jax.grad(lambda *x: jnp.sin(f(*x)).sum(), (0, 1, 2))

    for of in (lambda f: f, gradient)[: 1 + causal]:
        less, more = (temporaries(T, of) for T in (4096, 8192))
        assert more < 2.1 * less
        assert more < 8192 * 8192 * 4 / 10, "less than a tenth of the weights of one head"
        assert more < 8192 * 2 * 16 * 16 * 4, "less than a state for each position"


def test_what_is_refused(draw):
    query, key, value = inputs = draw(T=5, S=5).cast(jnp.float32)
    for mask in (masks.window(1, 0), np.eye(5, dtype=bool), masks.causal() | masks.lengths(2)):
        with pytest.raises(NotImplementedError, match="same for all queries.*ar.attend takes it"):
            linear_attention(*inputs, mask=mask)
    with pytest.raises(ValueError, match=r"mask must broadcast to .* \[2, 2, 5, 5\]: got \[4\]"):
        linear_attention(*inputs, mask=np.ones(4, bool))
    with pytest.raises(ValueError, match=r"mask must broadcast to .*: got \[3, 1, 1, 1\]"):
        linear_attention(*inputs, mask=masks.causal(np.zeros(3, int)))
    with pytest.raises(ValueError, match="chunk_size must be a power of two: got 24"):
        linear_attention(*inputs, chunk_size=24)
    with pytest.raises(ValueError, match="same length: key has 5 .*, value has 4"):
        linear_attention(query, key, value[:, :4])
    with pytest.raises(ValueError, match="same number of axes"):
        linear_attention(query, key[0], value)
    with pytest.raises(ValueError, match="the same for all queries: got one with ar.masks.causal"):
        init_linear_state(key, value, mask=masks.causal())
    with pytest.raises(ValueError, match=r"key must be \[..., S, K, Dk\]: got shape \(5, 4\)"):
        init_linear_state(key[0, :, 0], value[0, :, 0])
    state = jax.eval_shape(init_linear_state, key, value)
    with pytest.raises(ValueError, match=r"kv \[..., K, F, Dv\] = \[2, 6, 3\].*\[2, 2, 4, 3\]"):
        step = query[:, 0], key[:, 0], value[:, 0]
        linear_attention_step(state, *step, feature_map=MAPS["performer"]())
    layout = r"\[..., N, Dq\].* no axis of positions, .* state, \[2\]: got "
    for wrong in (
        (query[0, 0, 0], key[0, 0, 0], value[0, 0, 0]),
        (query[:, :1], key[:, :1], value[:, :1]),
        tuple(jnp.tile(x[:1, 0], (3, 1, 1)) for x in inputs),
    ):
        with pytest.raises(ValueError, match=layout):
            linear_attention_step(state, *wrong)
