"""Vocabularies: text to ids and back. The first four ids mean the same in all of them.

PAD 0   fills a row behind its end; never predicted, never attended to
SOS 1   what a decoder is fed before the first token
EOS 2   ends a sentence, source and target alike
UNK 3   a symbol that the vocabulary has not got
"""

import abc
import base64
import io
import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments import runs
from experiments.errors import UserError

PAD, SOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ("<pad>", "<sos>", "<eos>", "<unk>")


class Vocabulary(abc.ABC):
    """`size` ids, the four specials included. `decode(encode(text)) == text` for every text of the
    task it was made for."""

    kind: str  # written in the saved file
    size: int

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of a text, without <sos> and <eos>."""

    @abc.abstractmethod
    def _label(self, index: int) -> str:
        """What one id that is not a special is called."""

    @abc.abstractmethod
    def _join(self, ids: list[int]) -> str:
        """The text of ids among which there is no special."""

    @abc.abstractmethod
    def _state(self) -> dict[str, Any]:
        """The keyword arguments that make it again, as JSON has them."""

    def decode(self, ids: Iterable[int]) -> str:
        """The detokenized text up to the first <eos>; other specials are left out."""
        kept = []
        for index in map(int, ids):
            if index == EOS:
                break
            if index >= len(SPECIALS):
                kept.append(index)
        return self._join(kept)

    @abc.abstractmethod
    def unknown(self, text: str) -> list[str]:
        """The parts of a text that `encode` has no id for."""

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """A label for every id, specials included: the axis of a heatmap."""
        return [SPECIALS[i] if i < len(SPECIALS) else self._label(i) for i in map(int, ids)]

    def save(self, path: str | os.PathLike) -> None:
        """Writes one JSON file that says all there is to it; a reader sees the whole of it or the
        file that was there before."""
        state = {"kind": self.kind, **self._state()}
        runs.write_text(Path(path), json.dumps(state, ensure_ascii=False))


class _Table(Vocabulary):
    """A vocabulary that is a list of symbols."""

    def __init__(self, symbols: Sequence[str]):
        self.symbols = tuple(symbols)
        self.size = len(SPECIALS) + len(self.symbols)
        self._ids = {symbol: i for i, symbol in enumerate(self.symbols, len(SPECIALS))}
        if len(self._ids) < len(self.symbols):
            raise ValueError("a symbol stands twice in the vocabulary")

    def _label(self, index: int) -> str:
        return self.symbols[index - len(SPECIALS)]

    @abc.abstractmethod
    def _parts(self, text: str) -> Iterable[str]:
        """The text cut into symbols."""

    def encode(self, text: str) -> list[int]:
        ids = self._ids
        return [ids.get(symbol, UNK) for symbol in self._parts(text)]

    def unknown(self, text: str) -> list[str]:
        return [symbol for symbol in self._parts(text) if symbol not in self._ids]


class Words(_Table):
    """Tokens are the matches of `pattern`. Joined, they have a space between them, except before a
    token that begins with a character of `glue`.

    >>> words = Words(["twenty", "-three", ","], pattern=r"-?[^-, ]+|,", glue="-,")
    >>> words.encode("twenty-three, twenty"), words.decode([4, 5, 6, 4])
    ([4, 5, 6, 4], 'twenty-three, twenty')
    """

    kind = "words"

    def __init__(self, symbols: Sequence[str], *, pattern: str = r"\S+", glue: str = ""):
        super().__init__(symbols)
        self.pattern, self.glue = pattern, glue
        self.split = re.compile(pattern).findall

    def _parts(self, text: str) -> Iterable[str]:
        return self.split(text)

    def _join(self, ids: list[int]) -> str:
        words = [self._label(i) for i in ids]
        return "".join(w if w[0] in self.glue else f" {w}" for w in words).strip()

    def _state(self) -> dict[str, Any]:
        return {"symbols": self.symbols, "pattern": self.pattern, "glue": self.glue}


class Characters(_Table):
    """Tokens are single characters.

    >>> Characters("ab ").encode("a bc")
    [4, 6, 5, 3]
    """

    kind = "characters"

    def _parts(self, text: str) -> Iterable[str]:
        return text

    def _join(self, ids: list[int]) -> str:
        return "".join(self._label(i) for i in ids)

    def _state(self) -> dict[str, Any]:
        return {"symbols": self.symbols}


class Pieces(Vocabulary):
    """Byte pair encoding (Sennrich et al. 2016) by sentencepiece; a character that training did not
    show is spelt in bytes, so that nothing is ever lost. `model` is the file sentencepiece writes.
    Text is taken as it is, but for runs of spaces, which count as one."""

    kind = "pieces"

    def __init__(self, model: bytes):
        import sentencepiece

        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.size = self._processor.get_piece_size()

    @classmethod
    def learn(cls, texts: Iterable[str], size: int) -> "Pieces":
        """At most `size` pieces, fewer where the texts have no more to merge. The same texts give
        the same pieces. Raises `UserError` where `size` is too small for the characters of the
        texts."""
        import sentencepiece

        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(texts),
                model_writer=model,
                model_type="bpe",
                vocab_size=size,
                hard_vocab_limit=False,
                byte_fallback=True,
                character_coverage=1.0,
                normalization_rule_name="identity",
                max_sentence_length=1 << 16,
                num_threads=1,
                pad_id=PAD,
                bos_id=SOS,
                eos_id=EOS,
                unk_id=UNK,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise UserError(
                f"task.vocabulary_size={size} is too small for pieces: bytes and single characters "
                "alone are more"
            ) from error
        return cls(model.getvalue())

    def encode(self, text: str) -> list[int]:
        return self._processor.encode(text)

    def unknown(self, text: str) -> list[str]:
        return []  # what has no piece is spelt in bytes

    def _label(self, index: int) -> str:
        return self._processor.id_to_piece(index)

    def _join(self, ids: list[int]) -> str:
        return self._processor.decode(ids)

    def _state(self) -> dict[str, Any]:
        return {"model": base64.b64encode(self.model).decode()}


def load_vocabulary(path: str | os.PathLike) -> Vocabulary:
    """What `save` wrote. Raises `UserError` where there is no such file or it is another thing."""
    try:
        state = json.loads(Path(path).read_text(encoding="utf-8"))
        kind = state.pop("kind")
        if kind == Pieces.kind:
            return Pieces(base64.b64decode(state["model"]))
        return {Words.kind: Words, Characters.kind: Characters}[kind](**state)
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RuntimeError,
        re.error,
    ) as error:
        raise UserError(f"{path} is not a saved vocabulary: {error}") from error
