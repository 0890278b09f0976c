"""On PyTorch a kernel reads values to save passes over arrays: never where it is traced."""

import keras
import numpy as np
import pytest

if keras.config.backend() != "torch":
    pytest.skip("the other backends compile", allow_module_level=True)

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from keras_attention.backend import backend
from tests import problems

B, T, H, K = 3, 5, 2, 4
LIMIT = 1e17
# More elements than are clipped without being read.
LARGE = (3, 200, 120)


def attend(query, mask):
    return problems.attend(query, query, query, mask=mask, kernel="fused").output


def random(*shape):
    return torch.as_tensor(np.random.default_rng(0).normal(size=shape).astype("float32"))


FULL = torch.ones((B, 1, 1, T), dtype=torch.bool)
EMPTY = FULL.clone()
EMPTY[1] = False


@pytest.mark.parametrize("mode", ["real", "fake", "compiled"])
def test_a_recorded_mask_may_change(mode):
    query = random(B, T, H, K)
    for recorded in (FULL, EMPTY):
        if mode == "compiled":
            program = torch.compile(attend, backend="eager")
            program(query, recorded)
        else:
            program = make_fx(attend, tracing_mode=mode)(query, recorded)
        for changed in (FULL, EMPTY):
            torch.testing.assert_close(program(query, changed), attend(query, changed))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_mapped_mask():
    query, mask = random(B, T, H, K), torch.stack([FULL, EMPTY])
    # PyTorch's kernel is left alone inside transforms.
    mapped = torch.func.vmap(lambda mask: problems.attend(query, query, query, mask=mask).output)
    torch.testing.assert_close(mapped(mask), torch.stack([attend(query, one) for one in mask]))


LAID_OUT = {
    "as it is": lambda x: x,
    "transposed": lambda x: x.transpose(0, 2),
    "cut": lambda x: x[:, ::2],
    "expanded": lambda x: x[:1].expand(LARGE),
}


@pytest.mark.parametrize("order", LAID_OUT)
def test_what_is_beyond_is_clipped(order):
    for beyond in (None, 3e17, -3e17, float("inf"), float("nan")):
        array = random(*LARGE)
        if beyond is not None:
            array[0, 2, 3] = beyond
        array.requires_grad_()
        given = LAID_OUT[order](array)
        found = backend.clip(given, LIMIT)
        torch.testing.assert_close(found, torch.clip(given, -LIMIT, LIMIT), equal_nan=True)
        (gradient,) = torch.autograd.grad(found.sum(), array)
        expected = torch.autograd.grad(given.sum(), array)[0].clone()
        if beyond is not None:
            expected[0, 2, 3] = 0
        if beyond != beyond:
            gradient[0, 2, 3] = 0  # That of NaN is of no use.
        torch.testing.assert_close(gradient, expected)


def test_clipping_is_recorded_for_other_values():
    small, huge = random(*LARGE), 1e20 * random(*LARGE)
    program = make_fx(lambda x: backend.clip(x, LIMIT))(small)
    assert float(program(huge).abs().max()) == np.float32(LIMIT)


@pytest.mark.parametrize("rate", [1e-6, 0.1, 0.5, 0.999999])
def test_dropout_keeps_its_share_of_any_number_of_weights(rate):
    for shape in ((3, 5), (1,), (7, 1001)):
        mask = backend.dropout_mask(11, 0, shape, rate)
        assert mask.shape == shape and mask.dtype == torch.bool
    kept = float(backend.dropout_mask(11, 1, (1000, 1000), rate).float().mean())
    assert abs(kept - (1 - rate)) < 0.002 + 2**-16
    assert not torch.equal(*(backend.dropout_mask(11, n, (64, 64), 0.5) for n in (0, 1)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exp_of_masked_scores_is_zero(dtype):
    dtype = getattr(torch, dtype)
    least = float(np.log(torch.finfo(dtype).tiny))
    masked = torch.tensor([-1.5e38, -float("inf"), least - 20, least], dtype=dtype)
    array = torch.cat([masked.repeat(25), torch.linspace(-60, 0.5, 101, dtype=dtype)])
    found = backend.exp(array.clone(), highest=0.0)
    assert (found[:100] == 0).all()
    torch.testing.assert_close(found[100:], torch.exp(array[100:].clamp(max=0.0)))
    array.requires_grad_()
    traced = backend.exp(array)
    traced.sum().backward()
    assert (traced[:100] == 0).all() and (array.grad[:100] == 0).all()
    torch.testing.assert_close(array.grad[100:], torch.exp(array.detach()[100:]))
    assert backend.exp(torch.tensor([float("nan")], dtype=dtype)).isnan().all()
