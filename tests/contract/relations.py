"""What holds for every entry in every place: functions of a subject, listed in `RELATIONS`."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable

import keras
import numpy as np

from keras_attention.layers import traits
from keras_attention.sequences import masks
from tests.arrays import numpy
from tests.contract import places, registry, rows
from tests.contract.registry import B, D, N, T

ATOL = 2e-5
# Where a layer is called, and nothing around it.
LAYERS = "alone", "context"


def close(found, expected, tolerance=ATOL, name=""):
    """Equal, but for rounding relative to the largest number, if above 1."""
    assert found.shape == expected.shape, (name, found.shape, expected.shape)
    scale = max(1.0, np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * scale, err_msg=name)


def of_tokens(found):
    """Whether outputs (B, …) have an axis of tokens, perhaps after one of a class."""
    return found.ndim > 2 and found.shape[1] in (T, T + 1)


def real(found, row, mask=rows.MASK):
    """What a row of outputs has at real tokens, or all of it where it is not of tokens."""
    if not of_tokens(found):
        return found[row]
    before = found.shape[1] - T
    return np.concatenate([found[row, :before], found[row, before:][mask[row]]])


def agree(found, expected, tolerance=ATOL, which=range(B)):
    """Two batches, or a batch and the text in each side's row of it."""
    for row in which:
        if len(expected) == B:
            other = real(expected, row)
        elif row in rows.TEXTS:
            other = expected[rows.OF_SIDE[row]]
        else:
            continue
        close(real(found, row), other, tolerance, f"row {row}, {rows.ROWS[row]}")


# Rows and padding


def rows_are_their_own(subject):
    """R1: other rows, with other padding, change nothing in a row."""
    x, other = (rows.batch(subject.entry.ids, seed=seed) for seed in (0, 5))
    for odd in (0, 1):
        changed = np.arange(B) % 2 == odd
        flag = changed.reshape(-1, *[1] * (x.ndim - 1))
        mask = np.where(changed[:, None], rows.MASK[::-1], rows.MASK)
        found = subject.call(np.where(flag, other[::-1], x), mask)[0]
        agree(found, subject.dirty()[0], which=np.flatnonzero(~changed))


def padding_does_not_exist(subject):
    """R2: padding, wherever and whatever it is, gives the text alone, or at its places."""
    found = subject.dirty()[0]
    agree(found, subject.reference()[0])
    assert np.isfinite(real(found, B - 1)).all()
    if subject.entry.mechanism and subject.place in LAYERS:
        # A padded query, and one without keys.
        assert not found[B - 1 if subject.place == "context" else ~rows.MASK].any()


def pairs_are_of_tokens(subject):
    """R2: an array of pairs, (B, T, T), goes with its tokens."""
    seen = np.random.default_rng(1).random((3, N, N)) < 0.7
    found = subject.call(rows.batch(), rows.MASK, attention_mask=in_rows(seen))[0]
    agree(found, subject.reference(attention_mask=seen)[0])
    # Nothing is seen in the first row; what sees few has no key there, where it is causal.
    if subject.entry.name not in registry.FIRST_TOKENS:
        assert np.abs(found[0] - subject.dirty()[0][0]).max() > 1e-4


def in_rows(numbers):
    """Those of the text of each side, (3, N, …) for tokens or pairs, in the rows of the batch."""
    found = np.zeros((B, *[T] * (numbers.ndim - 1)), numbers.dtype)
    for row, side in rows.OF_SIDE.items():
        at = [np.flatnonzero(rows.MASK[row])] * (numbers.ndim - 1)
        found[np.ix_([row], *at)] = numbers[side]
    return found


def layers_count_tokens(subject):
    """R2: with `positions="tokens"`, padding does not exist for a layer either.

    Nor for arrays of pairs and for texts.
    """
    given, rng = {}, np.random.default_rng(1)
    if subject.entry.traits.attention_mask:
        given["attention_mask"] = rng.random((3, N, N)) < 0.7
        if "attention_bias" in inspect.signature(subject.layer.call).parameters:
            given["attention_bias"] = rows.numbers(3, N, N, seed=2)
    if subject.entry.traits.segment_ids:
        given["segment_ids"] = rng.integers(0, 2, (3, N)).astype("int32")
    if not (given and keras.backend.backend() == "jax"):  # which compiles each kind of call
        found = subject.call(rows.batch(), rows.MASK, positions="tokens")[0]
        agree(found, subject.alone()[0])
    wide = {name: in_rows(numbers) for name, numbers in given.items()}
    found = subject.call(rows.batch(), rows.MASK, positions="tokens", **wide)[0]
    agree(found, subject.call(rows.text(), positions="tokens", **given)[0])


def masks_are_one_thing(subject):
    """Carried by a tensor, given by name, of one row for all: one mask, which outputs carry."""
    x, name = rows.batch(subject.entry.ids, garbage=False), subject.mask_name
    outputs = []
    if name:
        outputs.append(subject.run(x, **{name: rows.MASK}))
        odd = np.arange(T) % 2 == 1
        outputs.append(subject.run(x, rows.MASK | odd, **{name: rows.MASK | ~odd}))
        one, all_rows = (subject.call(x, **{name: m}) for m in (rows.MASK[5:6], rows.MASK[[5] * B]))
        close(one[0], all_rows[0])
    traits, place = subject.entry.traits, subject.place
    # What counts the keys of a row counts those that only a mask of pairs leaves out.
    counts = traits.length or subject.entry.name == "LocalAttention-predictive"
    if subject.entry.mechanism and traits.attention_mask and not counts and place in LAYERS:
        agree(subject.call(rows.batch(), attention_mask=rows.MASK[:, None])[0], subject.dirty()[0])
    x, mask = map(keras.ops.convert_to_tensor, (x, rows.MASK))
    outputs.append(subject.run(masks.carry(x, mask)))
    assert masks.implicit(x) is mask
    for output in (keras.tree.flatten(found)[0] for found in outputs):
        agree(numpy(output), subject.zeros()[0])
        carried = masks.implicit(output)
        if of_tokens(output) and subject.entry.call not in (
            registry.of_pointer,
            registry.of_reward,
        ):
            found = numpy(carried)[:, output.shape[1] - T :]
            np.testing.assert_array_equal(found.reshape(B, T), rows.MASK)


def pieces_are_the_whole(subject, tolerance=ATOL):
    """R3: tokens in pieces, with padding inside or none, through a cache or a state.

    Others that a cache has had in between, before it was cut back, change nothing. Where nothing
    but the rotation of each token alone depends on positions, a call gives those of its tokens.
    """
    x = rows.batch(subject.entry.ids)
    found = in_pieces(subject, x, rows.MASK)
    agree(found, subject.alone()[0], tolerance)
    agree(found, subject.dirty()[0], tolerance, which=[0])
    if subject.place == "alone" and keras.backend.backend() != "jax":
        x = rows.numbers(B, T, D, ids=subject.entry.ids, seed=8)
        close(in_pieces(subject, x), subject.call(x)[0], tolerance)
    known = traits.of(subject.inner)
    rotates = known.cached_positions and "positions" not in known.refused and subject.inner.position
    if subject.place == "alone" and rotates:
        at = 3 * np.arange(T, dtype="int32") + np.arange(B, dtype="int32")[:, None]
        expected = subject.call(x, rows.MASK, positions=at)[0]
        agree(in_pieces(subject, x, rows.MASK, at), expected, tolerance)


def in_pieces(subject, x, mask=None, positions=None):
    found, state = [], subject.start()
    for first, end in ((0, 2), (2, 2), (2, 3), (3, 5), (5, 7)):
        at = slice(first, end)
        of_piece = None if mask is None else mask[:, at]
        given = {} if positions is None else {"positions": positions[:, at]}
        piece, state = subject.append(x[:, at], of_piece, state, **given)
        found.append(piece)
        if end == 3:
            of_piece = None if mask is None else mask[:, :2]
            state = subject.cut_back(state, x[:, :2], of_piece)
    return np.concatenate(found, axis=1)


def a_memory_is_the_call(subject):
    """R3: a context that is projected once, for queries of a layer or for the steps of a cell."""
    x = rows.batch(subject.entry.ids)
    if subject.place == "context":
        return agree(subject.from_memory(), subject.dirty()[0])
    # The outputs of a cell are [context; state], and the state is the query.
    found, states = np.split(subject.dirty()[0], [-D], axis=-1)
    x = masks.carry(*map(keras.ops.convert_to_tensor, (x, rows.MASK)))
    agree(numpy(subject.inner(keras.ops.convert_to_tensor(states), x)), found)


def the_future_is_hidden(subject, tolerance=ATOL):
    """R10: what comes later changes nothing, in outputs and weights, and does change itself."""
    scores = {"return_attention_scores": True} if subject.returns_scores else {}
    ids = subject.entry.ids
    plain, other = (rows.numbers(B, T, D, ids=ids, seed=seed) for seed in (8, 9))
    # Another kernel may have no weights.
    padded = rows.batch(ids), rows.MASK, {}
    for x, mask, given in (padded, (plain, np.ones((B, T), bool), scores)):
        later = mask & (np.cumsum(mask, axis=1) > 2)
        early = mask & ~later
        changed = np.where(later if ids else later[..., None], other, x)
        at = None if mask.all() else mask
        expected, found = (subject.call(x, at, **given) for x in (x, changed))
        for row in range(B):
            close(found[0][row, early[row]], expected[0][row, early[row]], tolerance)
            if given:
                close(*(x[1][row][:, early[row]] for x in (found, expected)), tolerance)
                assert not found[1][row][:, np.triu(np.ones((T, T), bool), 1)].any()
        # Combinations may look at the first tokens alone.
        if subject.entry.name in registry.ENTRIES.keys() - registry.FIRST_TOKENS:
            assert np.abs(found[0][0, -1] - expected[0][0, -1]).max() > 1e-4


@dataclasses.dataclass
class Relation:
    """A check of subjects.

    Args:
        check: a function of a `Subject`.
        where: the places in which it is checked.
        when: whether it says something of an entry in a place.
        causal: which forms of an entry are checked.
    """

    check: Callable
    where: Iterable = ("alone",)
    when: Callable = lambda entry, place: True
    causal: tuple = (False,)

    def applies(self, entry, place):
        return place in self.where and any(self._forms(entry, place)) and self.when(entry, place)

    def _forms(self, entry, place):
        may_be = entry.traits.may_be_causal and place in ATTENTION
        return [not x or may_be for x in self.causal]

    def __call__(self, entry, place):
        forms = zip(self.causal, self._forms(entry, place), strict=True)
        for causal in [causal for causal, there in forms if there]:
            self.check(places.subject(entry, place, causal))


def takes_pieces(entry, place):
    return not places.refuses_pieces(entry, place)


def counts_pairs(entry, place):
    traits = entry.traits
    by_positions = place == "stack" or traits.positions
    return entry.mechanism and traits.attention_mask and by_positions and not traits.cells


ATTENTION, BOTH = ("alone", "block", "stack"), (False, True)
RELATIONS = {
    "rows": Relation(rows_are_their_own, places.PLACES),
    "padding": Relation(padding_does_not_exist, places.PLACES, causal=BOTH),
    "tokens": Relation(
        layers_count_tokens, ATTENTION[:2], lambda e, _: e.mechanism and not e.traits.cells, BOTH
    ),
    "pairs": Relation(pairs_are_of_tokens, ATTENTION, counts_pairs, BOTH),
    "masks": Relation(masks_are_one_thing, places.PLACES),
    "memory": Relation(a_memory_is_the_call, ("context", "cell"), takes_pieces),
    "pieces": Relation(pieces_are_the_whole, places.PLACES, takes_pieces, (True,)),
    "future": Relation(the_future_is_hidden, places.PLACES, causal=(True,)),
}
