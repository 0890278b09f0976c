"""`torch.nn.MultiheadAttention` whose parts or attributes were changed after it was made."""

import keras
import numpy as np
import pytest

from keras_attention import convert
from tests.convert.both import torch_random

torch = pytest.importorskip("torch")


def module(**options):
    return torch_random(torch.nn.MultiheadAttention(8, 2, batch_first=True, **options), torch)


@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True)])
def test_biases_on_one_side_of_the_heads_alone(before, after):
    peer = module(bias=before)
    peer.out_proj = torch_random(torch.nn.Linear(8, 8, bias=after), torch)
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    expected = peer.eval()(*[torch.tensor(x)] * 3)[0].detach().numpy()
    found = keras.ops.convert_to_numpy(convert.from_torch(peer)(x))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_another_number_of_heads_than_its_head_size_is_for():
    peer = module()
    peer.num_heads = 4
    with pytest.raises(
        ValueError, match=r"it has num_heads=4 and head_dim=4, whose product is not embed_dim=8\."
    ):
        convert.from_torch(peer)
