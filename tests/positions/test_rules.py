"""Positions: the slopes of ALiBi, the buckets of T5 and DeBERTa, the first angles of RoPE-Mixed."""

import numpy as np
import pytest

from keras_attention.positions import ALiBi, Disentangled, MixedRotary, RelativeBias
from tests.arrays import numpy
from tests.definition import bucket, slopes
from tests.positions.test_equations import deberta


def test_slopes_are_those_of_the_rule():
    for max_bias in (8.0, 4):
        for heads in (*range(1, 9), 12, 16, 20, 32, 71):
            found = ALiBi(max_bias).slopes(heads)
            np.testing.assert_allclose(found, slopes(heads, max_bias), rtol=1e-12)


def test_slopes_are_those_of_the_paper():
    # Section 3: "for 8 heads, 1/2, 1/4, …, 1/256; for 16 heads, 1/2^0.5, 1/2, 1/2^1.5 …".
    np.testing.assert_allclose(ALiBi().slopes(8), 0.5 ** np.arange(1, 9))
    np.testing.assert_allclose(ALiBi().slopes(16), 0.5 ** (np.arange(1, 17) / 2))
    expected = [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    np.testing.assert_allclose(ALiBi().slopes(6), expected)


# T5's own numbers, numbers that leave little room, and some whose edges fall on no round distance.
@pytest.mark.parametrize(
    "rule",
    [
        *((32, 128, True), (32, 128, False), (32, 256, True), (16, 20, True)),
        *((64, 1000, False), (4, 2, True), (2, 5, False), (7, 90, False)),
    ],
    ids=str,
)
def test_buckets_are_those_of_the_rule(rule):
    far = rule[1]
    found = RelativeBias(*rule).buckets()
    assert found.dtype == "int32"
    expected = [bucket(offset, *rule) for offset in range(-far, far + 1)]
    np.testing.assert_array_equal(found, expected)
    # What lies further than the table has the bucket of its ends.
    for offset in (far + 1, 2 * far, 10**6):
        assert bucket(offset, *rule) == found[-1] and bucket(-offset, *rule) == found[0]


def test_some_buckets_of_t5_are_known():
    near = RelativeBias().buckets()[128:]
    np.testing.assert_array_equal(near[:13], [0, *range(17, 24), 24, 24, 24, 24, 25])
    np.testing.assert_array_equal(near[[16, 23, 32, 64, 90, 91, 128]], [26, 27, 28, 30, 30, 31, 31])
    past = RelativeBias(bidirectional=False).buckets()[128::-1]
    np.testing.assert_array_equal(past[:18], [*range(16), 16, 16])
    np.testing.assert_array_equal(past[[18, 19, 21, 113, 128]], [16, 17, 18, 31, 31])
    assert not RelativeBias(bidirectional=False).buckets()[128:].any()


@pytest.mark.parametrize("rule", [(8, 6), (16, 20), (16, None), (4, 9), (512, 512), (128, 1000)])
def test_rows_of_deberta_are_those_of_the_equations(rule):
    found = Disentangled(*rule).rows()
    last = len(found) // 2
    # Keys come after the query where i − j is negative.
    np.testing.assert_array_equal(found, [deberta(-d, *rule) for d in range(-last, last + 1)])
    assert {deberta(-d, *rule) for d in (-10 * last, 10 * last)} == {found[0], found[-1]}
    assert (found[0], found[-1]) == ((rule[0] - 1, 0) if rule[0] > 4 else (3, 1))


def test_mixed_angles_begin_in_random_directions():
    position = MixedRotary((3, 4))
    position.build((1, None, 4, 8), (1, None, 2, 8))
    theta = numpy(position.frequencies)
    lengths = np.tile(10.0 ** (-2 * np.arange(4) / 8), (2, 1))
    np.testing.assert_allclose(np.linalg.norm(theta, axis=1), lengths, rtol=1e-5)
    assert len(np.unique((theta / lengths[:, None]).round(3))) == theta.size
