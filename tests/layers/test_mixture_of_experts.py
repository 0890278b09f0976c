"""`MixtureOfExperts` against its equation, whichever way it is computed."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from tests.arrays import numpy
from tests.definition import sigmoid
from tests.gradients import weight_gradients
from tests.models.stacks import randomize

D, E = 6, 8


def defined(layer, x):
    """The equation, position by position, in float64."""
    weights = {w.path.split("/", 1)[1]: numpy(w).astype("float64") for w in layer.weights}
    bias = lambda name: weights.get(f"{name}_bias", np.zeros((E, 1)))  # noqa: E731
    rows = x.reshape(-1, D).astype("float64")
    output = np.zeros_like(rows)
    numbers = rows @ weights["router/kernel"] + weights.get("router/bias", 0)
    for n, row in enumerate(rows):
        p = np.exp(numbers[n] - numbers[n].max())
        p = sigmoid(numbers[n]) if layer.scoring == "sigmoid" else p / p.sum()
        preferred = p + weights.get("correction_bias", 0)
        groups = preferred.reshape(layer.num_groups, -1)
        best = np.sort(groups, axis=1)[:, -2:].sum(axis=1)
        preferred = np.where((best >= np.sort(best)[-layer.top_groups])[:, None], groups, -np.inf)
        chosen = np.argsort(-preferred.ravel())[: layer.top_k]
        over = p[chosen].sum() if layer.normalize_weights else 1.0
        for share, e in zip(layer.scale * p[chosen] / over, chosen, strict=True):
            hidden = row @ weights["intermediate_kernel"][e] + bias("intermediate")[e]
            if layer.gated:
                gate = row @ weights["gate_kernel"][e] + bias("gate")[e]
                if layer.limit is not None:
                    gate = np.minimum(gate, layer.limit)
                    hidden = np.clip(hidden, -layer.limit, layer.limit)
                hidden = gate * sigmoid(gate) * (hidden + layer.offset)
            else:
                hidden = np.maximum(hidden, 0)
            output[n] += share * (hidden @ weights["output_kernel"][e] + bias("output")[e])
        if layer.shared_dim is not None:
            gate, linear = (
                row @ weights[f"shared/{name}/kernel"] for name in ("gate", "intermediate")
            )
            output[n] += (gate * sigmoid(gate) * linear) @ weights["shared/output/kernel"]
    return output.reshape(x.shape)


OPTIONS = {
    "plain": {},
    "gated": {"activation": "silu", "gated": True, "use_bias": False},
    "clipped": {"activation": "silu", "gated": True, "limit": 0.5, "offset": 1.0},
    "switch": {"normalize_weights": False},
    "deepseek": {
        "activation": "silu", "gated": True, "use_bias": False, "scoring": "sigmoid", "scale": 2.5,
        "use_correction_bias": True, "num_groups": 4, "top_groups": 2, "shared_dim": 3,
    },
    "groups of a softmax": {"num_groups": 2, "use_correction_bias": True},
}  # fmt: skip


# Of one position, the weights of its experts are read; of ten, all experts are computed.
@pytest.mark.parametrize("shape", [(1, 1, D), (3, D), (2, 5, D)])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_it_is_its_equation(options, shape):
    layer = ka.MixtureOfExperts(E, 3, 5, **options)
    layer.build(shape)
    randomize(layer)
    if layer.use_correction_bias:
        layer.correction_bias.assign(np.random.default_rng(1).normal(size=E) / 4)
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    np.testing.assert_allclose(numpy(layer(x)), defined(layer, x), atol=1e-5)


@pytest.mark.parametrize("normalize", [True, False])
def test_the_router_of_one_expert_learns_if_its_weight_is_a_probability_of_all(normalize):
    layer = ka.MixtureOfExperts(E, 1, 5, normalize_weights=normalize)
    layer.build((None, D))
    randomize(layer)
    x = np.random.default_rng(0).normal(size=(4, D)).astype("float32")
    upstream = np.random.default_rng(1).normal(size=(4, D)).astype("float32")
    up = keras.ops.convert_to_tensor(upstream)
    found, _ = weight_gradients(layer, lambda: layer(x) * up)
    bias = layer.router.bias
    [gradient] = [g for v, g in zip(layer.trainable_weights, found, strict=True) if v is bias]
    # By differences of the equation.
    expected, step = [], 1e-3
    for n in range(E):
        value, ends = numpy(bias), []
        for sign in (1, -1):
            bias.assign(value + sign * step * np.eye(E)[n])
            ends.append((defined(layer, x) * upstream).sum())
        bias.assign(value)
        expected.append((ends[0] - ends[1]) / (2 * step))
    np.testing.assert_allclose(gradient, expected, atol=2e-3)
    assert (np.abs(gradient).max() > 1e-2) is not normalize
    layer(x)
    if normalize:
        with pytest.warns(UserWarning, match=r"no gradient .*normalize_weights=False.*top_k=1"):
            layer(x, training=True)
    else:
        layer(x, training=True)


def test_experts_are_drawn_apart():
    for initializer in ("glorot_uniform", keras.initializers.GlorotUniform(seed=1)):
        layer = ka.MixtureOfExperts(E, 3, 5, kernel_initializer=initializer)
        layer.build((None, D))
        kernels = numpy(layer.intermediate_kernel)
        assert len({kernel.tobytes() for kernel in kernels}) == E
        # As wide as that of one matrix.
        assert 0.5 < np.abs(kernels).max() / (6 / (D + 5)) ** 0.5 <= 1
