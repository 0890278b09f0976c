"""Every public layer passes one suite."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from tests import conformance
from tests.layers.conformance_cases import CASES
from tests.pairwise import pairwise

every_case = pytest.mark.parametrize("case", CASES, ids=str)


@every_case
def test_symbolic_shapes_are_the_eager_ones(case):
    conformance.check_symbolic_shapes_are_the_eager_ones(case)


@pytest.mark.parametrize("case", [c for c in CASES if c.other_arguments is not None], ids=str)
def test_every_argument_is_in_the_config(case):
    conformance.check_every_argument_is_in_the_config(case)


@every_case
def test_h5_files(case, tmp_path):
    conformance.check_h5_files(case, tmp_path / "model.h5")


@every_case
def test_masks_are_read_carried_and_never_written(case):
    conformance.check_masks_are_read_carried_and_never_written(case)


@every_case
def test_masks_of_other_shapes_are_refused(case):
    conformance.check_masks_of_other_shapes_are_refused(case)


@every_case
def test_symbols_are_refused_what_arrays_are(case):
    conformance.check_symbols_are_refused_what_arrays_are(case)


@every_case
def test_a_mask_of_one_row_is_that_of_all(case):
    conformance.check_a_mask_of_one_row_is_that_of_all(case)


FLOATS = [case for case in CASES if case.float_inputs]
GARBAGE = [("float32", np.nan), ("mixed_bfloat16", np.inf), ("mixed_float16", 1e38)]


@pytest.mark.parametrize("case, garbage", pairwise(FLOATS, GARBAGE), ids=str)
def test_padding_may_hold_anything(case, garbage):
    conformance.check_padding_may_hold_anything(case, *garbage)


@pytest.mark.parametrize(
    "case, policy", pairwise(CASES, ["mixed_float16", "mixed_bfloat16"]), ids=str
)
def test_mixed_precision(case, policy):
    conformance.check_mixed_precision(case, policy)


@every_case
def test_empty_rows(case):
    conformance.check_empty_rows(case)


@every_case
def test_no_rows_and_no_positions(case):
    conformance.check_no_rows_and_no_positions(case)


@pytest.mark.parametrize("case", [c for c in CASES if hasattr(c.layer, "make_cache")], ids=str)
def test_pieces_are_the_whole(case):
    conformance.check_pieces_are_the_whole(case)


# A cell is no layer of sequences, a recurrent layer has a memory, a loss takes rewards, and patches
# are of images: test_attention_cell, test_attention_rnn, test_hard_attention and
# test_patch_embedding check them.
OTHERS = {"AttentionCell", "AttentionRNN", "PatchEmbedding", "ReinforceLoss"}
# Outputs are of float32 in every policy, and one takes four inputs: test_pointers.
OTHERS |= {"PointerGenerator", "PointerHead"}
# Of tokens; see tests/models.
OTHERS |= {"Decoder", "Embeddings", "Encoder", "EncoderDecoder", "Logits"}


def test_every_public_layer_has_a_case():
    public = {
        value
        for value in map(ka.__dict__.get, ka.__all__)
        if isinstance(value, type)
        and issubclass(value, keras.layers.Layer)
        and value.__name__ not in OTHERS
    }
    assert public == {case.layer for case in CASES}
    assert public == {case.layer for case in CASES if case.other_arguments is not None}
