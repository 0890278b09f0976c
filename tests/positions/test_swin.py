"""A layer of Swin, in `transformers`, and attention in windows of a grid with its weights."""

import keras
import numpy as np
import pytest

from keras_attention import MultiHeadAttention, patterns, positions
from keras_attention.kernels import strategies
from tests.arrays import numpy

pytestmark = pytest.mark.ci

H, K, D = 4, 8, 32


@pytest.mark.parametrize("shift", [0, 2])
def test_windows_are_those_of_swin(shift):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers import SwinConfig
    from transformers.models.swin.modeling_swin import SwinLayer

    torch.manual_seed(0)
    theirs = SwinLayer(SwinConfig(window_size=4), D, (8, 8), H, shift_size=shift).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x = torch.randn(2, 64, D)
    with torch.no_grad():
        attended = []
        theirs.layernorm_after.register_forward_pre_hook(lambda _, given: attended.append(given[0]))
        theirs(x, (8, 8))
        expected = attended[0] - x
        normed = theirs.layernorm_before(x).numpy()

    ours = MultiHeadAttention(
        H, K, pattern=patterns.GridWindow((8, 8), 4, shift),
        position=positions.GridRelativeBias((8, 8), 4),
    )  # fmt: skip
    ours.build(normed.shape)
    attention = theirs.attention
    for name in ("query", "key", "value", "output"):
        linear = getattr(attention, f"{name[0]}_proj")
        weight, bias = (array.detach().numpy() for array in (linear.weight, linear.bias))
        shape, of_bias = ((H, K, D), (D,)) if name == "output" else ((D, H, K), (H, K))
        weights = [weight.T.reshape(shape), bias.reshape(of_bias)]
        getattr(ours, f"{name}_dense").set_weights(weights)
    table = attention.relative_position_bias.relative_position_bias_table
    ours.position.embeddings.assign(table.detach().numpy())
    with strategies.using(few=0):
        found = numpy(ours(keras.ops.convert_to_tensor(normed)))
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-4)


def test_rows_of_the_table_are_those_of_swin_and_beit():
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers.models.beit.modeling_beit import BeitRelativePositionBias
    from transformers.models.swin.modeling_swin import SwinRelativePositionBias

    at = np.arange(17)
    beit = BeitRelativePositionBias.generate_relative_position_index((4, 4)).numpy()
    rows = positions.GridRelativeBias((4, 4), prefix=1).rows(at[:, None], at)
    np.testing.assert_array_equal(numpy(rows), beit)
    swin = SwinRelativePositionBias(1, (4, 4)).relative_position_index.numpy().reshape(16, 16)
    rows = positions.GridRelativeBias((4, 4)).rows(at[:16, None], at[:16])
    np.testing.assert_array_equal(numpy(rows), swin)
