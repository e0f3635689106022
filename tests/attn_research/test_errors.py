"""Wrong arguments are one clear line, before anything is computed."""

import jax
import jax.numpy as jnp
import pytest

import attn_research as ar


def x(*shape, dtype=jnp.float32):
    return jnp.ones(shape, dtype)


Q, K, V = x(2, 3, 4, 8), x(2, 5, 4, 8), x(2, 5, 4, 6)
ADDITIVE = {"query": x(8, 7), "key": x(8, 7), "v": x(7)}

WRONG = [
    ((Q, K, V), dict(score="aditive"), ValueError, "unknown score 'aditive': did you mean 'additi"),
    ((Q, K, V), dict(score=3), TypeError, "score must be a name or a function: got int"),
    ((Q, K, V), dict(normalizer="softmx"), ValueError, "unknown normalizer .*'softmax'"),
    ((Q, K, V), dict(implementation="blokked"), ValueError, "unknown implementation .*: 'dense'"),
    ((Q, K, V), dict(scale="rsqrt"), ValueError, "unknown scale 'rsqrt': did you mean 'rsqrt_dim'"),
    ((Q, K, V), dict(scale=x(2)), ValueError, r"scale must be .* of the 4 heads: got shape \(2,\)"),
    ((Q, K, V), dict(scale=True), TypeError, "scale must be .*: got bool"),
    ((Q, K, V), dict(softcap=0.0), ValueError, "softcap must be positive"),
    (
        (Q, K, V),
        dict(bias=x(3, 3)),
        ValueError,
        r"bias must broadcast to .*\[2, 4, 3, 5\]: got \[3",
    ),
    ((Q, K, V), dict(bias=x(3, 5) > 0), TypeError, "bias must be floating: got bool; .*mask="),
    ((Q, K, V), dict(score="additive"), ValueError, "needs score_params .*ar.init_score"),
    ((Q, K, V), dict(score_params={"v": x(3)}), ValueError, "'dot' has no parameters"),
    (
        (Q, K, V),
        dict(score="additive", score_params=ADDITIVE | {"v": x(6)}),
        ValueError,
        r"score_params\['v'\] .* must have shape \[7\]: got \[6\]",
    ),
    (
        (Q, K, V),
        dict(score="general", score_params=ar.PerHead({"kernel": x(3, 8, 8)})),
        ValueError,
        "3 heads on axis 0, query has 4",
    ),
    (
        (Q, K, V),
        dict(score="general", score_params={"kernel": x(4, 8, 8)}),
        ValueError,
        "ar.PerHead",
    ),
    (
        (Q, x(2, 5, 4, 16), V),
        {},
        ValueError,
        "'dot' needs equal .*query has 8, key has 16; use .*gen",
    ),
    ((Q, x(2, 5, 3, 8), V), {}, ValueError, "query has 4 on axis -2, key has 3"),
    ((Q, K, x(2, 6, 4, 8)), {}, ValueError, "key has 5 positions on axis -3, value has 6"),
    ((Q, K, x(2, 5, 2, 8)), {}, ValueError, "key has 4 on axis -2, value has 2"),
    ((Q, x(3, 5, 4, 8), V), {}, ValueError, r"batch axes .*query has \(2,\), key has \(3,\)"),
    ((Q, x(5, 8), V), {}, ValueError, "same number of axes: query has 4 .*, key 2"),
    (
        (x(2, 4, 3, 8), x(2, 4, 5, 8), x(2, 4, 5, 8)),
        {},
        ValueError,
        r"query has 3 on axis -2, key has 5; heads and length look swapped .*swapaxes\(-2, -3\)",
    ),
    ((Q, K, x(2, 4, 5, 8)), {}, ValueError, "5 positions on axis -3, value has 4; heads and le"),
    ((x(2, 3, 8), x(2, 5, 8), x(2, 5, 8)), {}, ValueError, r"an axis of heads: x\[..., None, :"),
    ((Q, K, V), dict(mask=x(2, 3, 5) > 0), ValueError, r"use mask\[:, None\]"),
    ((Q, K, V), dict(mask=x(2, 5) > 0), ValueError, r"use mask\[:, None, None, :\]"),
    ((Q, K, V), dict(bias=x(5, 3)), ValueError, r"queries come before keys: use bias.swapaxes"),
    ((Q, K, V), dict(scale=1e39), ValueError, r"finite number of float32: got 1e\+39"),
    ((Q, K, V), dict(scale=float("nan")), ValueError, "finite number of float32: got nan"),
    ((Q, K, V), dict(scale=ar.log_n(x(3))), ValueError, r"4 heads: got shape \(3,\)"),
    ((Q, K, V), dict(softcap=float("inf")), ValueError, "softcap must be positive and finite"),
    ((Q, K, V), dict(dropout_rate=0.1), ValueError, "dropout_rate needs dropout_key"),
    ((Q, K, V), dict(dropout_rate=1.0), ValueError, r"dropout_rate must be in \[0, 1\): got 1.0"),
    ((Q, K, V), dict(dropout_rate=0.5, dropout_key=3), TypeError, "jax.random key: got int"),
    ((Q, K, V), dict(normalizer=3), TypeError, "normalizer must be a name .*: got int"),
    ((Q, K, V), dict(score_state=0), ValueError, "score_state is not for score 'dot'"),
    ((Q, K, V), dict(talking_heads=x(4, 4)), TypeError, "must be ar.TalkingHeads: got Array"),
    (
        (Q, K, V),
        dict(talking_heads=ar.TalkingHeads(after=x(3, 4))),
        ValueError,
        r"talking_heads.after must be \[N, N\] = \[4, 4\]: got \[3, 4\]",
    ),
    ((x(8), K, V), {}, ValueError, r"query must be .*: got shape \(8,\)"),
    ((Q, K, V.astype(int)), {}, TypeError, "value must be floating: got int32; use value.astype"),
    (
        (Q, K, V),
        dict(score=lambda p, q, k: k @ q.T),
        ValueError,
        r"logits \[T, S\] = \[3, 5\] .*: got \[5, 3\]",
    ),
]


def test_square_matrices_are_not_said_to_be_swapped():
    with pytest.raises(ValueError, match=r"bias must broadcast to .*: got \[3, 1, 5, 5\]$"):
        ar.attend(K, K, V, bias=x(3, 1, 5, 5))


@pytest.mark.parametrize(
    ("arrays", "options", "error", "message"), WRONG, ids=lambda x: str(x)[:20]
)
def test_one_clear_line(arrays, options, error, message):
    with pytest.raises(error, match=message) as caught:
        jax.eval_shape(lambda: ar.attend(*arrays, **options))
    assert "\n" not in str(caught.value)


def test_init_score():
    key = jax.random.key(0)
    with pytest.raises(TypeError, match="unknown option of score 'additive' 'dims': did you mean"):
        ar.init_score("additive", key, 4, 4, dims=3)
    with pytest.raises(TypeError, match="unknown option of score 'dot' 'dim': There are: none"):
        ar.init_score("dot", key, 4, 4, dim=3)
    with pytest.raises(ValueError, match="query has 4, key has 5"):
        ar.init_score("dot", key, 4, 5)
    with pytest.raises(ValueError, match="num_heads must be a positive integer: got 0"):
        ar.init_score("additive", key, 4, 5, num_heads=0)


def test_options_are_keywords_only():
    with pytest.raises(TypeError):
        ar.attend(Q, K, V, "dot")


def test_a_function_of_a_wrong_shape_is_told_so_by_blocks_too():
    x = jnp.ones((700, 2, 4)), jnp.ones((900, 2, 4))
    for implementation in (None, "blocked", "blocked_any_mode"):
        with pytest.raises(ValueError, match=r"logits \[T, S\] = \[700, 900\] .* got \[900, 700\]"):
            ar.attend(
                *(x[0], x[1], x[1]),
                score=lambda params, q, k: k @ q.T,
                implementation=implementation,
            )
