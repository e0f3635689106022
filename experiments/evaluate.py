"""Evaluation of a model on a split: teacher forcing for loss and token accuracy, greedy decoding
for exact match, BLEU and chrF."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments import batches, decode, metrics, traced
from experiments.config import Config
from experiments.vocabulary import EOS

BATCH_SIZE = 128  # sentences decoded together; no result depends on it


class Evaluation(NamedTuple):
    summary: dict[str, Any]  # loss, token_accuracy, exact_match, bleu, chrf and their signatures
    by_length: list[dict[str, Any]]  # the same, a row a range of source lengths
    hypotheses: list[str]  # detokenized, in the order of the split


def make(
    model: Any, config: Config, max_length: int, replicated: Any, sharded: Any
) -> Callable[[Any, Any, Any, str], Evaluation]:
    """The function (params, numbers, task, split name) -> Evaluation; `numbers` as in traced.py.

    Parameters are `replicated` and batches `sharded` over the devices (shardings of jax); programs
    are compiled once a shape and kept.
    """

    @functools.partial(jax.jit, in_shardings=(replicated, replicated, sharded))
    def score(params: Any, numbers: Any, batch: batches.Batch) -> tuple[jax.Array, jax.Array]:
        return teacher_forced(model, params, traced.put(config, numbers).model, batch)

    @functools.partial(jax.jit, in_shardings=(replicated, replicated, sharded, sharded))
    def translate(params: Any, numbers: Any, source: jax.Array, length: jax.Array) -> jax.Array:
        own = traced.put(config, numbers).model
        return decode.greedy(model, params, own, source, length, max_length).tokens

    def evaluate(params: Any, numbers: Any, task: Any, split_name: str) -> Evaluation:
        split = task.splits[split_name]
        losses, correct = np.zeros(len(split)), np.zeros(len(split), int)
        tokens: list[list[int]] = [[]] * len(split)
        devices = jax.local_device_count()
        rows = -(-BATCH_SIZE // devices) * devices
        shapes = batches.eval_shapes([task.splits["validation"], task.splits["test"]], rows)
        pending = []
        for indices, batch in batches.eval_batches(split, rows, shapes):
            translated = translate(params, numbers, batch.source, batch.source_length)
            pending.append((indices, score(params, numbers, batch), translated))
        for indices, scored, translated in pending:
            real = indices >= 0
            where = indices[real]
            losses[where], correct[where] = (np.asarray(x)[real] for x in scored)
            for index, row in zip(where, np.asarray(translated)[real].tolist(), strict=True):
                tokens[index] = row
        references = [[*ids, EOS] for ids in split.target_ids]
        totals = [len(ids) for ids in references]
        hypotheses = [task.target.decode(ids) for ids in tokens]
        measured = metrics.translation_metrics(
            hypotheses,
            split.target_text,
            tokens,
            references,
            [len(ids) for ids in split.source_ids],
            eos_id=EOS,
            token_counts=list(zip(correct.tolist(), totals, strict=True)),
        )
        loss = {"loss": float(losses.sum() / sum(totals))}
        return Evaluation(loss | measured.summary, measured.by_length, hypotheses)

    return evaluate


def token_losses(logits: jax.Array, target: Any, length: Any) -> jax.Array:
    """Cross entropy in nats of each target token, [B, T]; 0 at padding."""
    picked = jnp.take_along_axis(logits, target[..., None], axis=-1)[..., 0]
    real = jnp.arange(target.shape[1]) < length[:, None]
    return jnp.where(real, jax.nn.logsumexp(logits, axis=-1) - picked, 0)


def teacher_forced(
    model: Any, params: Any, config: Any, batch: batches.Batch
) -> tuple[jax.Array, jax.Array]:
    """(summed loss [B] float32, correct tokens [B] int32) of each sentence, <eos> counted."""
    logits = model.apply(params, config, *batch)
    losses = token_losses(logits, batch.target, batch.target_length)
    real = jnp.arange(batch.target.shape[1]) < batch.target_length[:, None]
    right = real & (jnp.argmax(logits, axis=-1) == batch.target)
    return losses.sum(axis=1), right.sum(axis=1)
