"""Converters: what the new layer gives is what the old one gave, asked of the old one itself."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import convert
from tests.gradients import weight_gradients

keras_hub = pytest.importorskip("keras_hub")

ops = keras.ops

B, T, S, D, E = 2, 5, 7, 8, 6


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def randomize(layer):
    """Gives every weight a random value: biases start as zeros, and would not be compared."""
    for seed, variable in enumerate(layer.weights):
        if "seed" not in variable.path:
            variable.assign(random(*variable.shape, seed=seed) / 2)


X, MEMORY, KEY = random(B, T, D), random(B, S, E, seed=1), random(B, S, D, seed=2)
PADDING = np.array([[True] * 4 + [False], [True] * 2 + [False] * 3])
MEMORY_PADDING = np.arange(S) < np.array([[S], [3]])
PAIRS = np.random.default_rng(3).random((B, T, S)) < 0.5
PAIRS[..., 0] = True


def array(x):
    return ops.convert_to_numpy(x)


def close(ours, theirs, tolerance=2e-5):
    np.testing.assert_allclose(array(ours), array(theirs), rtol=tolerance, atol=tolerance)


def reloaded(layer, tmp_path, *shapes):
    """The layer as it is read from the file of a model."""
    symbols = [keras.Input(shape[1:]) for shape in shapes]
    model = keras.Model(symbols, layer(*symbols))
    model.save(tmp_path / "model.keras")
    return keras.saving.load_model(tmp_path / "model.keras").get_layer(layer.name)


# Keras

HEADS = {
    "plain": {},
    "value_dim": {"value_dim": 3},
    "no bias": {"use_bias": False},
    "gate": {"use_gate": True},
    "window": {"sliding_window": 2},
    "output_shape": {"output_shape": 5},
    "dropout": {"dropout": 0.5, "seed": 1},
}
CALLS = {
    "no mask": {},
    "causal": {"use_causal_mask": True},
    "pairs": {"attention_mask": PAIRS},
    "causal pairs": {"attention_mask": PAIRS, "use_causal_mask": True},
}


@pytest.mark.parametrize("kwargs", HEADS.values(), ids=HEADS)
def test_multi_head_attention_of_keras(kwargs):
    theirs = keras.layers.MultiHeadAttention(2, 4, name="theirs", **kwargs)
    # With its scores: on JAX, Keras fails otherwise where value_dim is not key_dim.
    theirs(X, MEMORY, KEY, return_attention_scores=True)
    randomize(theirs)
    ours = convert.from_keras(theirs)
    for call in CALLS.values():
        expected = theirs(X, MEMORY, KEY, return_attention_scores=True, **call)
        given = ours(X, MEMORY, KEY, return_attention_scores=True, **call)
        for our, their in zip(given, expected, strict=True):
            close(our, their)
    assert type(ours) is ka.MultiHeadAttention and ours.name == "theirs"
    assert (ours.dropout, ours.seed) == (theirs.dropout, theirs.seed)


def test_over_several_axes():
    images = random(B, 3, 4, D)
    theirs = keras.layers.MultiHeadAttention(2, 4, attention_axes=(2,))
    expected = theirs(images, images)
    close(convert.from_keras(theirs)(images), expected)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_grouped_query_attention(groups):
    theirs = keras.layers.GroupQueryAttention(4, 4, groups, use_gate=True)
    memory = random(B, S, D, seed=1)
    theirs(X, memory)
    randomize(theirs)
    ours = convert.from_keras(theirs)
    for call in CALLS.values():
        close(ours(X, memory, **call), theirs(X, memory, **call))
    assert ours.num_key_value_heads == groups


def test_what_lora_added_is_in_the_kernel():
    theirs = keras.layers.MultiHeadAttention(2, 4)
    theirs(X, X)
    theirs.query_dense.enable_lora(2)
    randomize(theirs)
    ours = convert.from_keras(theirs)
    close(ours(X), theirs(X, X))
    assert len(ours.weights) == 8


WITHOUT_HEADS = {
    "dot": lambda: keras.layers.Attention(),
    "dot, scaled": lambda: keras.layers.Attention(use_scale=True, dropout=0.5, seed=1),
    "concat": lambda: keras.layers.Attention(score_mode="concat"),
    "concat, scaled": lambda: keras.layers.Attention(score_mode="concat", use_scale=True),
    "additive": lambda: keras.layers.AdditiveAttention(),
    "additive, not scaled": lambda: keras.layers.AdditiveAttention(use_scale=False),
}


@pytest.mark.parametrize("make", WITHOUT_HEADS.values(), ids=WITHOUT_HEADS)
def test_attention_of_keras(make):
    theirs = make()
    value = random(B, S, E, seed=4)
    theirs([X, value, KEY])
    randomize(theirs)
    ours = convert.from_keras(theirs)
    for causal in (False, True):
        expected, expected_scores = theirs(
            [X, value, KEY],
            mask=[PADDING, MEMORY_PADDING],
            use_causal_mask=causal,
            return_attention_scores=True,
        )
        output, scores = ours(
            [X, value, KEY],
            query_mask=PADDING,
            value_mask=MEMORY_PADDING,
            use_causal_mask=causal,
            return_attention_scores=True,
        )
        close(output, expected)
        # Those of padded queries are zero here.
        close(array(scores)[:, 0][PADDING], array(expected_scores)[PADDING])


def test_implicit_masks_count_in_the_new_layer():
    ids = np.array([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8]])
    x = keras.layers.Embedding(10, D, mask_zero=True)(ids)
    theirs = keras.layers.MultiHeadAttention(2, 4)
    ours = convert.from_keras(_built(theirs, X))
    expected = theirs(array(x), array(x), attention_mask=(ids != 0)[:, None])
    close(array(ours(x))[ids != 0], array(expected)[ids != 0])


def _built(layer, *arrays):
    layer(arrays[0], arrays[-1])
    randomize(layer)
    return layer


def test_a_query_without_keys_is_zero_here_whatever_the_peer_gives():
    theirs = _built(keras.layers.MultiHeadAttention(2, 4), X)
    nothing = np.zeros((B, T, T), bool)
    assert np.abs(array(theirs(X, X, attention_mask=nothing))).max() > 0
    assert not array(convert.from_keras(theirs)(X, attention_mask=nothing)).any()


def test_gradients_are_equal():
    theirs = _built(keras.layers.MultiHeadAttention(2, 4), X, MEMORY)
    ours = convert.from_keras(theirs)
    target = ops.convert_to_tensor(random(B, T, D, seed=5))

    def gradients(layer):
        def loss():
            return ops.mean(ops.square(layer(X, MEMORY, attention_mask=PAIRS) - target))

        return weight_gradients(layer, loss)[0]

    for our, their in zip(gradients(ours), gradients(theirs), strict=True):
        close(our, their)


def test_dtype_policy_and_initializers_are_kept():
    theirs = keras.layers.MultiHeadAttention(
        2, 4, kernel_initializer="he_normal", kernel_regularizer="l2", dtype="mixed_bfloat16"
    )
    ours = convert.from_keras(_built(theirs, X))
    assert ours.compute_dtype == "bfloat16" and ours.variable_dtype == "float32"
    assert ours.kernel_initializer.get_config() == keras.initializers.HeNormal().get_config()
    assert ours.kernel_regularizer.get_config() == theirs._kernel_regularizer.get_config()


def test_the_new_layer_is_saved_and_loaded(tmp_path):
    theirs = _built(keras.layers.MultiHeadAttention(2, 4), X, MEMORY)
    loaded = reloaded(convert.from_keras(theirs), tmp_path, X.shape, MEMORY.shape)
    close(loaded(X, MEMORY), theirs(X, MEMORY))
    theirs = keras.layers.AdditiveAttention()
    expected = theirs([X, KEY])
    loaded = reloaded(convert.from_keras(theirs), tmp_path, X.shape, KEY.shape)
    close(loaded(X, KEY), expected)


# KerasHub


@pytest.mark.parametrize("normalize_first", [False, True], ids=["post", "pre"])
def test_transformer_encoder(normalize_first, tmp_path):
    theirs = keras_hub.layers.TransformerEncoder(
        12,
        2,
        dropout=0.1,
        activation="gelu",
        layer_norm_epsilon=1e-3,
        normalize_first=normalize_first,
        name="encoder",
    )
    theirs(X)
    randomize(theirs)
    ours = convert.from_keras_hub(theirs)
    close(ours(X), theirs(X))
    pairs = PAIRS[:, :, :T]
    expected = array(theirs(X, padding_mask=PADDING, attention_mask=pairs))
    output = array(ours(X, mask=PADDING, attention_mask=pairs))
    close(output[PADDING], expected[PADDING])
    close(reloaded(ours, tmp_path, X.shape)(X), theirs(X))
    assert (ours.dropout, ours.name) == (0.1, "encoder")


@pytest.mark.parametrize("cross", [False, True], ids=["alone", "cross"])
@pytest.mark.parametrize("normalize_first", [False, True], ids=["post", "pre"])
def test_transformer_decoder(normalize_first, cross, tmp_path):
    theirs = keras_hub.layers.TransformerDecoder(12, 2, normalize_first=normalize_first)
    memory = [MEMORY] if cross else []
    theirs(X, *memory)
    randomize(theirs)
    ours = convert.from_keras_hub(theirs)
    expected = theirs(X, *memory)
    close(ours(X, *memory), expected)
    masks = {"encoder_padding_mask": MEMORY_PADDING} if cross else {}
    theirs_masked = array(theirs(X, *memory, decoder_padding_mask=PADDING, **masks))
    masks = {"context_mask": MEMORY_PADDING} if cross else {}
    close(array(ours(X, *memory, mask=PADDING, **masks))[PADDING], theirs_masked[PADDING])
    if cross and normalize_first:
        shapes = [X.shape, MEMORY.shape]
        close(reloaded(ours, tmp_path, *shapes)(X, *memory), expected)


def test_transformer_decoder_step_by_step():
    theirs = keras_hub.layers.TransformerDecoder(12, 2)
    expected = array(theirs(X, MEMORY))
    ours = convert.from_keras_hub(theirs)
    cache, context = ours.make_cache(B, T), ours.cache_context(MEMORY)
    for t in range(T):
        output, cache = ours(X[:, t : t + 1], context, cache=cache)
        close(output, expected[:, t : t + 1])


def test_absolute_positions_of_keras_hub():
    x = random(B, T, 7)
    theirs = keras_hub.layers.SinePositionEncoding(max_wavelength=500)
    ours = convert.from_keras_hub(theirs)
    close(ours(x, start_index=3), theirs(x, start_index=3))
    theirs = keras_hub.layers.PositionEmbedding(9)
    expected = theirs(x, start_index=3)
    close(convert.from_keras_hub(theirs)(x, start_index=3), expected, 0)


def test_tokens_and_positions_of_keras_hub(tmp_path):
    ids = np.array([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8]])
    theirs = keras_hub.layers.TokenAndPositionEmbedding(10, 9, D, mask_zero=True)
    with pytest.warns(UserWarning, match="does not support masking"):
        expected = theirs(ids)
    ours = convert.from_keras_hub(theirs)
    close(ours(ids), expected, 1e-6)
    symbol = keras.Input((None,), dtype="int32")
    model = keras.Model(symbol, ka.TransformerBlock(12, 2)(ours(symbol)))
    model.save(tmp_path / "model.keras")
    close(keras.saving.load_model(tmp_path / "model.keras")(ids), model(ids), 1e-6)
    # The block saw the mask.
    longer = np.pad(ids, [(0, 0), (0, 3)])
    close(array(model(longer))[:, :T][ids != 0], array(model(ids))[ids != 0])


ROTARY = {
    "plain": {"max_wavelength": 500},
    "linear": {"scaling_factor": 4.0},
    "yarn": {"rope_type": "yarn", "scaling_factor": 8.0, "original_max_position_embeddings": 64},
}


@pytest.mark.parametrize("kwargs", ROTARY.values(), ids=ROTARY)
def test_rotary_embedding(kwargs):
    heads = random(B, T, 2, 16)
    theirs = keras_hub.layers.RotaryEmbedding(**kwargs)
    ours = convert.from_keras_hub(theirs)
    turned, _ = ours.encode(heads, heads, ops.arange(3, 3 + T), ops.arange(3, 3 + T))
    close(turned, theirs(heads, start_index=3))
    layer = ka.SelfAttention(2, 16, position=ours)
    assert tuple(layer(X).shape) == (B, T, 32)


# PyTorch


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def torch_random(module, torch):
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):
            parameter.copy_(torch.tensor(random(*parameter.shape, seed=seed) / 2))
    return module.eval()


def in_torch(torch, module, *arrays, **kwargs):
    """What a module gives, as NumPy arrays, on the processor whatever Keras's device is."""

    def tensor(x):
        return torch.tensor(x) if isinstance(x, np.ndarray) else x

    with torch.no_grad():
        outputs = module(
            *map(tensor, arrays), **{name: tensor(value) for name, value in kwargs.items()}
        )
    if isinstance(outputs, tuple):
        return [None if output is None else output.numpy() for output in outputs]
    return outputs.numpy()


TORCH_HEADS = {
    "plain": {},
    "no bias": {"bias": False},
    "sizes": {"kdim": D, "vdim": E},
    "time first": {"batch_first": False},
    "double": {"dtype": "float64"},
}


@pytest.mark.parametrize("kwargs", TORCH_HEADS.values(), ids=TORCH_HEADS)
def test_multi_head_attention_of_torch(kwargs, torch):
    kwargs = {"batch_first": True, **kwargs}
    dtype = kwargs.pop("dtype", "float32")
    kwargs["dtype"] = getattr(torch, dtype)
    theirs = torch_random(
        torch.nn.MultiheadAttention(D, 2, dropout=0.1, device="cpu", **kwargs), torch
    )
    ours = convert.from_torch(theirs)
    value = MEMORY if "vdim" in kwargs else random(B, S, D, seed=6)
    float_mask = random(T, S, seed=7)
    for masks, our_masks in (
        ({}, {}),
        ({"key_padding_mask": ~MEMORY_PADDING}, {"value_mask": MEMORY_PADDING}),
        ({"attn_mask": ~PAIRS[0]}, {"attention_mask": PAIRS[0]}),
        ({"attn_mask": float_mask.astype(dtype)}, {"attention_bias": float_mask}),
    ):
        arrays = [x.astype(dtype) for x in (X, KEY, value)]
        if not kwargs["batch_first"]:
            arrays = [np.swapaxes(x, 0, 1) for x in arrays]
        expected, weights = in_torch(torch, theirs, *arrays, average_attn_weights=False, **masks)
        if not kwargs["batch_first"]:
            expected = np.swapaxes(expected, 0, 1)
        output, scores = ours(X, value, KEY, return_attention_scores=True, **our_masks)
        close(output, expected)
        close(scores, weights)
    assert (ours.dropout, ours.use_bias) == (0.1, kwargs.get("bias", True))


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("bias", [True, False])
def test_transformer_encoder_layer(norm_first, bias, torch, tmp_path):
    theirs = torch.nn.TransformerEncoderLayer(
        D,
        2,
        12,
        activation="gelu",
        layer_norm_eps=1e-3,
        norm_first=norm_first,
        bias=bias,
        batch_first=True,
        device="cpu",
    )
    torch_random(theirs, torch)
    ours = convert.from_torch(theirs)
    close(ours(X), in_torch(torch, theirs, X))
    pairs = np.tril(np.ones((T, T), bool))
    expected = in_torch(torch, theirs, X, src_mask=~pairs, src_key_padding_mask=~PADDING)
    # PyTorch may leave padded places zero, and those here have no attention.
    close(array(ours(X, mask=PADDING, attention_mask=pairs))[PADDING], expected[PADDING])
    causal = convert.from_torch(theirs, causal=True)
    close(array(causal(X, mask=PADDING))[PADDING], expected[PADDING])
    close(reloaded(ours, tmp_path, X.shape)(X), in_torch(torch, theirs, X))


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
def test_transformer_decoder_layer(norm_first, torch):
    theirs = torch.nn.TransformerDecoderLayer(
        D, 2, 12, activation=torch.nn.SiLU(), norm_first=norm_first, batch_first=True, device="cpu"
    )
    torch_random(theirs, torch)
    pairs = np.tril(np.ones((T, T), bool))
    expected = in_torch(
        torch, theirs, X, KEY, tgt_mask=~pairs, memory_key_padding_mask=~MEMORY_PADDING
    )
    ours = convert.from_torch(theirs, causal=True)
    close(ours(X, KEY, context_mask=MEMORY_PADDING), expected)
    ours = convert.from_torch(theirs)
    close(ours(X, KEY, context_mask=MEMORY_PADDING, attention_mask=pairs), expected)


# What cannot be converted


class Subclass(keras.layers.MultiHeadAttention):
    pass


def quantized():
    layer = keras.layers.MultiHeadAttention(2, 4)
    layer(X, X)
    layer.query_dense.quantize("int8")
    return layer


def hub_encoder(**kwargs):
    layer = keras_hub.layers.TransformerEncoder(12, **kwargs)
    layer.build((None, None, D))
    return layer


REFUSED = {
    "a class of Keras": (
        lambda: convert.from_keras(keras.layers.Dense(2, name="d")),
        "Cannot convert a keras Dense named 'd': expected one of keras: AdditiveAttention, Att",
    ),
    "a subclass": (
        lambda: convert.from_keras(Subclass(2, 4)),
        "Cannot convert a tests Subclass.*A subclass may compute something else",
    ),
    "no layer": (lambda: convert.from_keras(3), "Cannot convert a builtins int: expected one of"),
    "not built": (
        lambda: convert.from_keras(keras.layers.MultiHeadAttention(2, 4)),
        "it has no weights yet. Call or build it first",
    ),
    "quantized": (
        lambda: convert.from_keras(quantized()),
        "its weights are quantized. Convert the layer as it was before",
    ),
    "a layer of Keras given to KerasHub's": (
        lambda: convert.from_keras_hub(keras.layers.Attention()),
        "Cannot convert a keras Attention.*expected one of keras_hub: PositionEmbedding",
    ),
    "a KerasHub layer not built": (
        lambda: convert.from_keras_hub(keras_hub.layers.TransformerEncoder(12, 2)),
        "it has no weights yet",
    ),
    "heads that do not divide": (
        lambda: convert.from_keras_hub(hub_encoder(num_heads=3)),
        "its num_heads=3 does not divide its 8 features. Put a `MultiHeadAttention",
    ),
    "a rotary scaling": (
        lambda: convert.from_keras_hub(
            keras_hub.layers.RotaryEmbedding(rope_type="dynamic", scaling_factor=2.0)
        ),
        "rope_type='dynamic' with denominator_dim=None gives frequencies that",
    ),
    "a module of Keras": (
        lambda: convert.from_torch(keras.layers.Attention()),
        "Cannot convert a keras Attention.*expected one of torch.nn: MultiheadAttention",
    ),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


TORCH_REFUSED = {
    "bias of keys": (
        "MultiheadAttention",
        (D, 2),
        {"add_bias_kv": True},
        "it has add_bias_kv=True",
    ),
    "zero": ("MultiheadAttention", (D, 2), {"add_zero_attn": True}, "it has add_zero_attn=True"),
    "stack": ("Transformer", (D, 2, 1, 1), {}, "of a model or a stack, convert the layers"),
}


@pytest.mark.parametrize(("name", "args", "kwargs", "message"), TORCH_REFUSED.values())
def test_what_is_refused_of_torch(name, args, kwargs, message, torch):
    module = getattr(torch.nn, name)(*args, batch_first=True, **kwargs)
    with pytest.raises(ValueError, match=message):
        convert.from_torch(module)


def torch_block(torch, name="Encoder", **kwargs):
    cls = getattr(torch.nn, f"Transformer{name}Layer")
    return cls(D, 2, 12, batch_first=True, device="cpu", **kwargs).eval()


def test_activations_of_torch_that_are_refused(torch):
    def relu(x):
        return torch.relu(x) + 1

    class ReLU(torch.nn.ReLU):
        def forward(self, x):
            return super().forward(x) + 1

    given = (torch.nn.GELU("tanh"), torch.nn.LeakyReLU(), lambda x: x, relu, ReLU())
    for activation in given:
        with pytest.raises(ValueError, match="expected an activation of PyTorch's own"):
            convert.from_torch(torch_block(torch, activation=activation))


@pytest.mark.parametrize("name", ["relu", "gelu", "silu", "tanh", "sigmoid"])
def test_activations_of_torch(name, torch):
    modules = {"relu": "ReLU", "gelu": "GELU", "silu": "SiLU", "tanh": "Tanh", "sigmoid": "Sigmoid"}
    given = [getattr(torch.nn, modules[name])(), getattr(torch.nn.functional, name)]
    if hasattr(torch, name):
        given += [getattr(torch, name), getattr(torch.Tensor, name)]
    for activation in given:
        theirs = torch_random(torch_block(torch, activation=activation), torch)
        ours = convert.from_torch(theirs)
        assert ours.activation is keras.activations.get(name)
    # Apart from PyTorch's fast path, which asks another attribute than the activation.
    x = torch.tensor(X, requires_grad=True)
    close(ours(X), theirs(x).detach().numpy())


def replace(name, make):
    def change(module, torch):
        setattr(module, name, make(torch.nn))

    return change


def set_of(path, **values):
    def change(module, torch):
        for attribute, value in values.items():
            setattr(module.get_submodule(path), attribute, value)

    return change


def call_of(path, method, *args):
    return lambda module, torch: getattr(module.get_submodule(path), method)(*args)


def on_meta(module, torch):
    module.to("meta")


TORCH_PARTS = {
    "eps": (set_of("norm2", eps=0.5), r"`norm2` was replaced: expected eps=1e-05, .*eps=0\.5"),
    "eps of the last": (set_of("norm3", eps=0.5), "`norm3` was replaced: expected eps=1e-05"),
    "another norm": (replace("norm1", lambda nn: nn.RMSNorm(D)), "`norm1`.*found a RMSNorm"),
    "a smaller norm": (
        replace("norm2", lambda nn: nn.LayerNorm(4)),
        r"`norm2` was replaced: expected normalized_shape=\(8,\), .*\(4,\)",
    ),
    "bias_kv": (
        replace("self_attn", lambda nn: nn.MultiheadAttention(D, 2, add_bias_kv=True)),
        "its part `self_attn` has add_bias_kv=True",
    ),
    "zero_attn": (
        replace("multihead_attn", lambda nn: nn.MultiheadAttention(D, 2, add_zero_attn=True)),
        "its part `multihead_attn` has add_zero_attn=True",
    ),
    "heads": (
        replace("multihead_attn", lambda nn: nn.MultiheadAttention(D, 4)),
        "`multihead_attn` was replaced: expected num_heads=2, and found num_heads=4",
    ),
    "features": (
        replace("self_attn", lambda nn: nn.MultiheadAttention(4, 2)),
        "`self_attn` was replaced: expected embed_dim=8, and found embed_dim=4",
    ),
    "keys": (
        replace("multihead_attn", lambda nn: nn.MultiheadAttention(D, 2, kdim=4, vdim=6)),
        "`multihead_attn` was replaced: expected vdim=4, and found vdim=6",
    ),
    "hidden": (
        replace("linear2", lambda nn: nn.Linear(16, D)),
        "`linear2` was replaced: expected in_features=12, and found in_features=16",
    ),
    "another network": (
        replace("linear1", lambda nn: nn.Sequential(nn.Linear(D, 12), nn.Tanh())),
        "`linear1` was replaced: expected a Linear, and found a Sequential",
    ),
    "out_proj": (
        lambda module, torch: setattr(module.self_attn, "out_proj", torch.nn.Linear(D, 4)),
        "`out_proj` was replaced: expected out_features=8",
    ),
    "dropout": (replace("dropout2", lambda nn: nn.Softmax()), "`dropout2`.*found a Softmax"),
    "forward": (set_of("linear1", forward=lambda x: x), "the forward of its part `linear1` may"),
    "own forward": (set_of("", forward=lambda x, y: x), "the forward may change"),
    "hook": (
        call_of("norm1", "register_forward_hook", lambda module, x, y: 2 * y),
        "the forward_hooks of its part `norm1` may change what its class computes",
    ),
    "hook before": (
        call_of("", "register_forward_pre_hook", lambda module, x: None),
        "the forward_pre_hooks may change what its class computes",
    ),
    "meta": (on_meta, "its parameters are on the device `meta`, without values"),
}


@pytest.mark.parametrize(("change", "message"), TORCH_PARTS.values(), ids=TORCH_PARTS)
def test_replaced_parts_of_torch_are_refused(change, message, torch):
    module = torch_block(torch, "Decoder")
    convert.from_torch(module)
    change(module, torch)
    with pytest.raises(ValueError, match=f"Cannot convert a torch .*{message}"):
        convert.from_torch(module)


def test_weights_of_a_parametrization_are_refused(torch):
    module = torch_block(torch)
    torch.nn.utils.parametrizations.weight_norm(module.linear1)
    with pytest.raises(ValueError, match="`linear1` was replaced: expected a Linear, and found"):
        convert.from_torch(module)


def test_replaced_parts_of_torch_that_are_converted(torch):
    """A memory of other features, and no dropout at all."""
    theirs = torch_block(torch, "Decoder")
    theirs.multihead_attn = torch.nn.MultiheadAttention(D, 2, kdim=E, vdim=E, batch_first=True)
    theirs.norm2 = torch.nn.LayerNorm(D, elementwise_affine=False)
    for name in ("dropout", "dropout1", "dropout2", "dropout3"):
        setattr(theirs, name, torch.nn.Identity())
    ours = convert.from_torch(torch_random(theirs, torch))
    close(ours(X, MEMORY), in_torch(torch, theirs, X, MEMORY))
    assert ours.dropout == 0


def a_hub_block(cross=False):
    cls = keras_hub.layers.TransformerDecoder if cross else keras_hub.layers.TransformerEncoder
    layer = cls(12, 2, name="block")
    layer(X, *([MEMORY] if cross else []))
    return layer


def heads_of_keras(*args, value=X, **kwargs):
    layer = keras.layers.MultiHeadAttention(*args, **kwargs)
    layer(X, value)
    return layer


def dense_of_keras(units, size=D, **kwargs):
    layer = keras.layers.Dense(units, **kwargs)
    layer.build((None, size))
    return layer


def norm_of_keras(**kwargs):
    layer = keras.layers.LayerNormalization(**kwargs)
    layer.build(X.shape)
    return layer


def another_call(layer):
    layer._feedforward_output_dense.call = lambda x: x
    return layer._feedforward_output_dense


HUB_PARTS = {
    "heads": ("_self_attention_layer", lambda _: heads_of_keras(4, 2), "num_heads=4"),
    "sizes": ("_self_attention_layer", lambda _: heads_of_keras(2, 6), "key_dim=6"),
    "gate": ("_self_attention_layer", lambda _: heads_of_keras(2, 4, use_gate=True), "use_gate=T"),
    "bias": ("_self_attention_layer", lambda _: heads_of_keras(2, 4, use_bias=False), "_query_d"),
    "a subclass": ("_self_attention_layer", lambda _: _built(Subclass(2, 4), X), "a Subclass"),
    "epsilon": ("_feedforward_layer_norm", lambda _: norm_of_keras(epsilon=0.5), "epsilon=0.5"),
    "axis": ("_feedforward_layer_norm", lambda _: norm_of_keras(axis=1, epsilon=1e-5), "axis="),
    "activation": (
        "_feedforward_intermediate_dense",
        lambda _: dense_of_keras(12, activation="tanh"),
        "found activation=<function tanh",
    ),
    "size": (
        "_feedforward_intermediate_dense",
        lambda _: dense_of_keras(13, activation="relu"),
        r"expected a kernel \(8, 12\) and use_bias=True, and found \(8, 13\)",
    ),
    "call": ("_feedforward_output_dense", another_call, "the call of its part"),
}


@pytest.mark.parametrize(("name", "make", "message"), HUB_PARTS.values(), ids=HUB_PARTS)
def test_replaced_parts_of_keras_hub_are_refused(name, make, message):
    layer = a_hub_block()
    convert.from_keras_hub(layer)
    layer._tracker.unlock()
    setattr(layer, name, make(layer))
    with pytest.raises(ValueError, match=f"(?s)Cannot convert a keras.*{message}"):
        convert.from_keras_hub(layer)


def test_replaced_parts_of_keras_are_refused():
    def heads_with(name, part):
        layer = heads_of_keras(2, 4)
        layer._tracker.unlock()
        setattr(layer, name, part)
        return layer

    class Hard(keras.layers.Softmax):
        pass

    class Dense(keras.layers.EinsumDense):
        def call(self, x):
            return 2 * super().call(x)

    with pytest.raises(ValueError, match=r"`_softmax` was replaced: expected a Softmax, .* a Hard"):
        convert.from_keras(heads_with("_softmax", Hard()))
    dense = Dense("abc,cde->abde", (None, 2, 4), bias_axes="de")
    dense.build(X.shape)
    with pytest.raises(ValueError, match=r"`_key_dense` was replaced: .* a Dense"):
        convert.from_keras(heads_with("_key_dense", dense))
    layer = heads_of_keras(2, 4)
    layer.call = lambda *args, **kwargs: 0
    with pytest.raises(ValueError, match="the call may change what its class computes"):
        convert.from_keras(layer)


def test_causal_is_for_blocks(torch):
    with pytest.raises(ValueError, match="causal=True is for blocks"):
        convert.from_torch(torch.nn.MultiheadAttention(D, 2), causal=True)
