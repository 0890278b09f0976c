"""Subwords and batches of the translation example."""

import importlib.util
import itertools

import numpy as np
import pytest

if not all(map(importlib.util.find_spec, ("sentencepiece", "sacrebleu", "sacremoses"))):
    pytest.skip("the example needs the extra `translation`", allow_module_level=True)

from examples.errors import UsageError
from examples.translation import sample as translation_sample
from examples.translation import text
from examples.translation import training as translation_training

STRANGE = [
    "Zoë läuft für 5 € durch die Straße.",
    "日本 🙂",
    "A\u00a0B",
    "<s> ▁ </s>",
    "x" * 300,
    "",
]


def test_what_is_decoded_is_what_was_encoded(tokenizer):
    sentences = [*translation_sample.generate(50, 9)[1], *STRANGE[:3], *STRANGE[4:]]
    assert text.decode(tokenizer, text.encode(tokenizer, sentences)) == sentences
    rows = text.encode(tokenizer, STRANGE)
    assert all(token > text.STOP for row in rows for token in row)
    stopped = [[*row, text.STOP, 77, text.PADDING] for row in text.encode(tokenizer, sentences)]
    assert text.decode(tokenizer, stopped) == sentences
    assert text.decode(tokenizer, text.encode(tokenizer, ["a\0b", " a   b "])) == ["a b", "a b"]


def test_small_texts_have_small_vocabularies():
    tokenizer = text.SentencePieceTokenizer(text.learn_tokenizer(["ein hund", "a dog"], 6000))
    assert tokenizer.vocabulary_size() < 400
    with pytest.raises(UsageError, match="No vocabulary of 100 subwords"):
        text.learn_tokenizer(["ein hund", "a dog"], 100)


def test_words_and_what_is_known(tokenizer):
    assert text.words(" A man, ?! 3 ") == ["A", "man,", "3"] and text.words("?! …") == []
    assert all(map(tokenizer.knows, ["A man runs.", "日本 man", "A", "Männer"]))
    assert not any(map(tokenizer.knows, ["", "?!", "日本", "日本 語", "Ωμέγα"]))


def some_pairs(count, longest):
    """Pairs of lengths between 1 and `longest`."""
    rng = np.random.default_rng(0)
    sides = [[[5] * n for n in rng.integers(1, longest + 1, size=count)] for _ in range(2)]
    return text.EncodedPairs(*sides)


@pytest.mark.parametrize("few_shapes", [False, True])
def test_every_pair_is_in_one_batch_of_its_length(few_shapes):
    pairs = some_pairs(500, 60)
    found = text.batches(pairs, np.arange(500), 256, few_shapes)
    assert sorted(index for batch in found for index in batch.indices) == list(range(500))
    for number, batch in enumerate(found):
        rows, source, target = batch.shape
        longest = pairs.sides[:, batch.indices].max(axis=1).tolist()
        assert rows == 1 or rows * max(source, target) <= 256
        if few_shapes:
            assert source == target in text.LENGTHS and max(longest) <= source
            assert rows == text.rows_of(source, 256) or number == len(found) - 1
        else:
            assert [source, target] == longest
    if not few_shapes:
        # Like lengths are together: hardly any position of a target is padding.
        positions = sum(np.prod(batch.shape[::2]) for batch in found)
        assert pairs.sides[1].sum() > 0.9 * positions


def test_a_pair_longer_than_a_batch_is_a_batch():
    pairs = text.EncodedPairs([[5] * 90, [5]], [[5], [5]])
    assert [batch.shape for batch in text.batches(pairs, [0, 1], 64)] == [(1, 2, 2), (1, 91, 2)]


def test_the_order_of_an_epoch_depends_on_the_generator():
    pairs = some_pairs(300, 100)
    found, again, other = (
        [
            batch.indices.tolist()
            for batch in text.training_batches(pairs, 256, np.random.default_rng(seed))
        ]
        for seed in (1, 1, 2)
    )
    assert found == again != other
    seen = sorted(itertools.chain(*found))
    assert seen == sorted(itertools.chain(*other)) == pairs.not_too_long().tolist()
    assert pairs.lengths[seen].max() <= text.LENGTHS[-1] < pairs.lengths.max()


def test_a_batch_is_shifted_by_one():
    pairs = text.EncodedPairs([[5, 6], [5]], [[7, 8, 9], [7]])
    (source, given), wanted = text.Batch(np.array([0, 1]), 4, 5).arrays(pairs)
    assert source.tolist() == [[5, 6, 3, 0], [5, 3, 0, 0]]
    assert given.tolist() == [[2, 7, 8, 9, 0], [2, 7, 0, 0, 0]]
    assert wanted.tolist() == [[7, 8, 9, 3, 0], [7, 3, 0, 0, 0]]


@pytest.mark.parametrize("sizes", [(5, 5), (1, 5), (5, 1), (1, 1), (2, 2)])
def test_the_first_batches_show_what_varies(sizes):
    rng = np.random.default_rng(0)
    for _ in range(50):
        lengths = [tuple(int(rng.integers(1, 1 + size)) for size in sizes) for _ in range(4)]
        batches = [text.Batch(np.arange(2), *both) for both in lengths]
        found = translation_training._varied_first(batches)
        assert sorted(map(id, found)) == sorted(map(id, batches))
        first, second = (batch.shape[1:] for batch in found[:2])
        for side in range(2):
            assert (first[side] == second[side]) == (len({both[side] for both in lengths}) == 1)
