"""From sentences to subwords and back, and to batches of few shapes."""

import dataclasses
import functools
import io
from pathlib import Path

import keras
import numpy as np

from examples.errors import UsageError

PADDING, UNKNOWN, START, STOP = 0, 1, 2, 3
# A program is compiled for each length, so it is one of these: in training, which leaves longer
# pairs out, and in translating, where compiling counts for more.
LENGTHS = (12, 16, 20, 24, 32, 64)
SEARCH_LENGTHS = (16, 24, 32, 64)


def learn_tokenizer(sentences, vocabulary_size, **options):
    """A SentencePiece model, as bytes: one vocabulary for all sentences.

    A unigram model (Kudo 2018) of at most `vocabulary_size` pieces, with bytes for characters that
    are not among them, and without normalization: what is decoded is what was encoded, but for
    spaces at the ends and repeated ones. `options` are more of SentencePiece's own.
    """
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            vocab_size=vocabulary_size,
            hard_vocab_limit=False,
            byte_fallback=True,
            character_coverage=1.0,
            normalization_rule_name="identity",
            pad_id=PADDING,
            unk_id=UNKNOWN,
            bos_id=START,
            eos_id=STOP,
            minloglevel=2,
            **options,
        )
    except RuntimeError as error:
        reason = " ".join(str(error).split())[-200:]
        raise UsageError(
            f"No vocabulary of {vocabulary_size} subwords could be learned: {reason}"
        ) from None
    return model.getvalue()


class SentencePieceTokenizer(keras.layers.Layer):
    """A SentencePiece model, which a saved Keras model keeps inside its file.

    Args:
        proto: the model, as bytes; None in a layer that is about to be loaded.
    """

    # Files name the layer after the class, and the model after this.
    FILE = "vocabulary.spm"

    def __init__(self, proto=None, name="tokenizer"):
        super().__init__(name=name, trainable=False)
        self.built = True
        self._set_proto(proto)

    def _set_proto(self, proto):
        import sentencepiece

        self.proto = proto
        self.processor = proto and sentencepiece.SentencePieceProcessor(model_proto=proto)

    def save_assets(self, folder):
        (Path(folder) / self.FILE).write_bytes(self.proto)

    def load_assets(self, folder):
        self._set_proto((Path(folder) / self.FILE).read_bytes())

    def vocabulary_size(self):
        return self.processor.vocab_size()

    def id_to_token(self, index):
        return self.processor.id_to_piece(index)

    def knows(self, sentence):
        """Whether a word of it is made of more than single letters and bytes."""
        # The pieces of a word follow one another, the first with the sign of a space before it.
        for word in words(sentence):
            pieces = [
                piece
                for piece in map(self.id_to_token, self.processor.encode(word))
                if piece != _SPACE
            ]
            of_bytes = any(self.processor.is_byte(self.processor.piece_to_id(p)) for p in pieces)
            if not of_bytes and len(pieces) < max(2, len(word)):
                return True
        return False


_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


def words(sentence):
    """The words of a sentence: what is between spaces and has a letter or a digit."""
    return [word for word in sentence.split() if any(map(str.isalnum, word))]


def encode(tokenizer, sentences):
    """A list of token numbers for each sentence, without start and stop."""
    # SentencePiece has no piece for a null, and would give one number for each of its bytes.
    return tokenizer.processor.encode([sentence.replace("\0", " ") for sentence in sentences])


def decode(tokenizer, rows):
    """The sentence of each row of token numbers, up to its stop."""
    return tokenizer.processor.decode([_until_stop(row) for row in rows])


def _until_stop(row):
    kept = []
    for token in np.asarray(row).tolist():
        if token == STOP:
            break
        if token not in (PADDING, START):
            kept.append(token)
    return kept


@dataclasses.dataclass(frozen=True)
class EncodedPairs:
    """Token numbers of pairs, and the length of each side that a batch needs."""

    source: list
    target: list

    def __len__(self):
        return len(self.source)

    @functools.cached_property
    def sides(self):
        """(2, N): with the source's stop; with the target's start before it or its stop behind."""
        return np.array([[1 + len(row) for row in side] for side in (self.source, self.target)])

    @functools.cached_property
    def lengths(self):
        """(N,): of the longer side."""
        return self.sides.max(axis=0, initial=0)

    def not_too_long(self):
        """The indices of the pairs that training and measuring use."""
        return np.flatnonzero(self.lengths <= LENGTHS[-1])


def encode_pairs(tokenizer, pairs):
    """The `EncodedPairs` of sentences."""
    return EncodedPairs(encode(tokenizer, pairs.source), encode(tokenizer, pairs.target))


def padded(rows, length, before=(), after=()):
    """Rows of token numbers with what comes before and after them, as an array, cut to length."""
    array = np.full((len(rows), length), PADDING, "int32")
    for index, row in enumerate(rows):
        whole = [*before, *row[: length - len(before) - len(after)], *after]
        array[index, : len(whole)] = whole
    return array


@dataclasses.dataclass(frozen=True)
class Batch:
    """Which pairs, and the shape that they are padded to.

    Attributes:
        indices: of the pairs.
        source_length, target_length: what each side is padded to.
    """

    indices: np.ndarray
    source_length: int
    target_length: int

    @property
    def shape(self):
        return len(self.indices), self.source_length, self.target_length

    def arrays(self, encoded, rows=None):
        """((source, target after start), target until stop), with rows of padding up to `rows`."""
        source = [encoded.source[i] for i in self.indices]
        target = [encoded.target[i] for i in self.indices]
        given = padded(target, self.target_length, before=[START])
        wanted = padded(target, self.target_length, after=[STOP])
        read = padded(source, self.source_length, after=[STOP])
        more = ((0, (rows or len(self.indices)) - len(self.indices)), (0, 0))
        read, given, wanted = (
            np.pad(x, more, constant_values=PADDING) for x in (read, given, wanted)
        )
        return (read, given), wanted


def batches(encoded, order, batch_tokens, few_shapes=False):
    """Batches of pairs of like lengths, each pair in one of them.

    Args:
        encoded: the `EncodedPairs`.
        order: the indices of pairs, in the order in which those of equal lengths are taken.
        batch_tokens: rows of a batch times its length, at most.
        few_shapes: whether a program is compiled for each shape. Then both sides are padded to one
            of `LENGTHS`, and all batches of a length but the last have as many rows; otherwise each
            side is as long as its longest sentence.
    """
    order = np.asarray(order, "int64")
    if few_shapes:
        return [
            Batch(part, length, length)
            for part, length in buckets(encoded.lengths, order, batch_tokens)
        ]
    source, target = encoded.sides[:, order]
    order = order[np.lexsort((source, target))]
    found = []
    while len(order):
        # The longer side counts, as it would where both are padded alike.
        longest = np.maximum.accumulate(encoded.lengths[order[:batch_tokens]])
        rows = max(1, np.sum(longest * np.arange(1, len(longest) + 1) <= batch_tokens))
        part, order = order[:rows], order[rows:]
        found.append(Batch(part, *encoded.sides[:, part].max(axis=1).tolist()))
    return found


def rows_of(length, batch_tokens):
    """How many rows a batch of this length has."""
    return max(1, batch_tokens // length)


def buckets(lengths, order, batch_tokens):
    """Batches of pairs of like length: a list of (indices, length), each pair in one of them.

    Each has as many rows as `rows_of` says, but for the last one of the greatest length in use:
    what is left over of a length fills up the batches of the next one.

    Args:
        lengths: of all pairs, an array.
        order: the indices of pairs, in the order that they are to be taken in.
        batch_tokens: rows of a batch times its length, at most.
    """
    order = np.asarray(order)
    bounds = [length for length in LENGTHS if length < lengths[order].max()]
    bounds = LENGTHS[: len(bounds) + 1]
    found, left = [], order[:0]
    for shorter, length in zip((0, *bounds), bounds, strict=False):
        fitting = order[(lengths[order] > shorter) & (lengths[order] <= length)]
        waiting = np.concatenate([left, fitting])
        rows = rows_of(length, batch_tokens)
        whole = len(waiting) // rows * rows
        found += [(part, length) for part in waiting[:whole].reshape(-1, rows)]
        left = waiting[whole:]
    return [*found, (left, bounds[-1])] if len(left) else found


def training_batches(encoded, batch_tokens, rng, few_shapes=False):
    """The `batches` of one epoch in random order."""
    order = rng.permutation(encoded.not_too_long())
    found = batches(encoded, order, batch_tokens, few_shapes)
    return [found[i] for i in rng.permutation(len(found))]
