"""From sentences to subwords and back, and to batches of few shapes."""

import dataclasses
import io

import numpy as np

from examples.errors import UsageError

PADDING, UNKNOWN, START, STOP = 0, 1, 2, 3
# A batch has one of these lengths, so a program is compiled for each of them and no other.
LENGTHS = (16, 24, 32, 64)


def learn_tokenizer(sentences, vocabulary_size):
    """A SentencePiece model, as bytes: one vocabulary for both languages.

    A unigram model (Kudo 2018) of at most `vocabulary_size` pieces, with bytes for characters that
    are not among them, and without normalization: what is decoded is what was encoded, but for
    spaces at the ends and repeated ones.
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
        )
    except RuntimeError as error:
        reason = " ".join(str(error).split())[-200:]
        raise UsageError(
            f"No vocabulary of {vocabulary_size} subwords could be learned: {reason}"
        ) from None
    return model.getvalue()


def make_tokenizer(model):
    """The Keras layer of a SentencePiece model, given as bytes, or of one that is loaded later."""
    import keras_hub

    return keras_hub.tokenizers.SentencePieceTokenizer(proto=model, name="tokenizer")


def encode(tokenizer, sentences):
    """A list of token numbers for each sentence, without start and stop."""
    # TensorFlow's strings are bytes without end, of which a null is one; to a tokenizer it is not.
    clean = [sentence.replace("\0", " ") for sentence in sentences]
    return [list(row) for row in tokenizer.tokenize(clean)] if clean else []


def decode(tokenizer, rows):
    """The sentence of each row of token numbers, up to its stop."""
    rows = [_until_stop(row) for row in rows]
    return [tokenizer.detokenize(row) if row else "" for row in rows]


def _until_stop(row):
    said = []
    for token in np.asarray(row).tolist():
        if token == STOP:
            break
        if token not in (PADDING, START):
            said.append(token)
    return said


@dataclasses.dataclass(frozen=True)
class EncodedPairs:
    """Token numbers of pairs, and the length that a batch needs to hold each of them."""

    source: list
    target: list
    lengths: np.ndarray

    def __len__(self):
        return len(self.source)


def encode_pairs(tokenizer, pairs):
    """The `EncodedPairs` of sentences."""
    source, target = encode(tokenizer, pairs.source), encode(tokenizer, pairs.target)
    # One more for the source's stop; for the target's start before it, its stop behind it.
    lengths = [1 + max(len(s), len(t)) for s, t in zip(source, target, strict=True)]
    return EncodedPairs(source, target, np.array(lengths, "int64"))


def padded(rows, length, before=(), after=()):
    """Rows of token numbers with what stands before and after them, as an array, cut to length."""
    array = np.full((len(rows), length), PADDING, "int32")
    for place, row in enumerate(rows):
        whole = [*before, *row[: length - len(before) - len(after)], *after]
        array[place, : len(whole)] = whole
    return array


def batch(encoded, indices, length, rows):
    """((source, target after start), target until stop) of some pairs, padded to rows of length."""
    empty = [[]] * (rows - len(indices))
    source = [encoded.source[i] for i in indices]
    target = [encoded.target[i] for i in indices]
    sides = (
        padded(source, length, after=[STOP]),
        padded(target, length, before=[START]),
        padded(target, length, after=[STOP]),
    )
    source, given, wanted = (np.concatenate([side, padded(empty, length)]) for side in sides)
    return (source, given), wanted


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


def training_batches(encoded, batch_tokens, rng):
    """The batches of one epoch in random order, all of them with all of their rows."""
    order = rng.permutation(np.flatnonzero(encoded.lengths <= LENGTHS[-1]))
    found = buckets(encoded.lengths, order, batch_tokens)
    indices, length = found[-1]
    # Rows without tokens would make the others of their batch count for more.
    missing = rows_of(length, batch_tokens) - len(indices)
    found[-1] = (np.concatenate([indices, rng.choice(order, missing)]), length)
    return [found[i] for i in rng.permutation(len(found))]
