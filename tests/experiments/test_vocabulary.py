import json

import pytest

from experiments.errors import UserError
from experiments.vocabulary import (
    EOS,
    PAD,
    SOS,
    UNK,
    Characters,
    Pieces,
    Words,
    load_vocabulary,
)

TEXTS = [
    "the cat sat on the mat, and the dog sat by it.",
    "a très petit œuf: it's 3 o'clock!",
    "the dog, the cat and the mat",
]


def words():
    return Words(["twenty", "-three", ",", "thousand"], pattern=r"-?[^\s,;-]+|[,;]", glue="-,;"), [
        "twenty-three thousand, twenty",
        "twenty",
    ]


def characters():
    return Characters(sorted(set("".join(TEXTS)))), TEXTS


def pieces():
    return Pieces.learn(TEXTS, 330), TEXTS


@pytest.fixture(params=[words, characters, pieces], ids=lambda make: make.__name__)
def case(request):
    return request.param()


def test_specials_have_fixed_ids(case):
    vocabulary, _ = case
    assert (PAD, SOS, EOS, UNK) == (0, 1, 2, 3)
    assert vocabulary.tokens([PAD, SOS, EOS, UNK]) == ["<pad>", "<sos>", "<eos>", "<unk>"]


def test_text_survives(case):
    vocabulary, texts = case
    for text in texts:
        ids = vocabulary.encode(text)
        assert all(UNK < i < vocabulary.size for i in ids)
        assert vocabulary.decode(ids) == text
        assert vocabulary.encode(vocabulary.decode(ids)) == ids
        assert len(vocabulary.tokens(ids)) == len(ids)


def test_decode_stops_at_eos_and_skips_the_others(case):
    vocabulary, texts = case
    ids = vocabulary.encode(texts[0])
    half = len(ids) // 2
    mixed = [SOS, *ids[:half], PAD, UNK, *ids[half:], EOS, *ids, PAD]
    assert vocabulary.decode(mixed) == texts[0]
    assert vocabulary.decode([EOS, *ids]) == ""
    assert vocabulary.decode([]) == ""


def test_saved_is_the_same(case, tmp_path):
    vocabulary, texts = case
    path = tmp_path / "source.json"
    vocabulary.save(path)
    loaded = load_vocabulary(path)
    assert type(loaded) is type(vocabulary) and loaded.size == vocabulary.size
    every = range(vocabulary.size)
    assert loaded.tokens(every) == vocabulary.tokens(every)
    assert [loaded.encode(text) for text in texts] == [vocabulary.encode(text) for text in texts]
    assert loaded.decode(vocabulary.encode(texts[0])) == texts[0]
    assert [p.name for p in tmp_path.iterdir()] == ["source.json"]  # nothing partial is left


def test_unknown_symbols():
    assert words()[0].encode("twenty-four") == [4, UNK]
    assert Characters("ab").encode("abz") == [4, 5, UNK]


def test_pieces_spell_what_they_never_saw():
    vocabulary = pieces()[0]
    ids = vocabulary.encode("日本 ça")
    assert UNK not in ids
    assert vocabulary.decode(ids) == "日本 ça"


def test_pieces_are_deterministic():
    assert Pieces.learn(TEXTS, 330).model == Pieces.learn(TEXTS, 330).model
    assert Pieces.learn(TEXTS, 330).model != Pieces.learn(TEXTS[:2], 330).model


def test_pieces_of_a_small_text_are_fewer():
    assert 260 < Pieces.learn(TEXTS, 8000).size < 1000


def test_pieces_too_few_for_the_characters():
    with pytest.raises(UserError, match="vocabulary_size=100 is too small"):
        Pieces.learn(TEXTS, 100)


def test_repeated_symbol():
    with pytest.raises(ValueError, match="twice"):
        Words(["a", "b", "a"])


@pytest.mark.parametrize("text", ["", "{", "[1]", json.dumps({"kind": "runes", "symbols": []})])
def test_not_a_vocabulary(tmp_path, text):
    path = tmp_path / "v.json"
    path.write_text(text)
    with pytest.raises(UserError, match="v.json is not a saved vocabulary"):
        load_vocabulary(path)


def test_no_such_file(tmp_path):
    with pytest.raises(UserError, match="not a saved vocabulary"):
        load_vocabulary(tmp_path / "none.json")
