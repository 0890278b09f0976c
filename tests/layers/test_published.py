"""Layers and positions beside those of `transformers`, with the same weights."""

import functools
import itertools
import math

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import patterns, positions
from tests.arrays import close, numpy, random
from tests.gradients import gradients
from tests.models.stacks import Nothing

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# The other frameworks compute the same equations.
pytestmark = [] if keras.config.backend() == "torch" else [pytest.mark.slow]
B, T, H, K, GRID = 2, 12, 2, 8, (3, 4)
D = H * K
SIZES = {"hidden_size": D, "num_attention_heads": H}
REAL = np.arange(T) < np.array([[T], [8]])


def modeling(name):
    """The module of a family of models."""
    return getattr(getattr(transformers.models, name), f"modeling_{name}")


def filled(module):
    """A module with random weights in evaluation, and these by their names."""
    rng = np.random.default_rng(3)
    for weight in module.parameters():
        weight.data = torch.tensor(rng.normal(size=weight.shape).astype("float32") * 0.4)
    return module.eval(), {name: x.detach().numpy() for name, x in module.named_parameters()}


def given(layer, **projections):
    """The built layer with kernels (out, in) and biases of linear layers, by role."""
    layer.build((B, T, D), (B, T, D))
    layer.output_dense.kernel.assign(np.eye(D).reshape(H, K, D))
    for role, arrays in projections.items():
        dense = getattr(layer, f"_{role}_dense")
        for weight, array in zip((dense.kernel, dense.bias), arrays, strict=False):
            weight.assign(array.T.reshape(weight.shape))
    return layer


def linear(w, name):
    return [w[f"{name}.{part}"] for part in ("weight", "bias") if f"{name}.{part}" in w]


def deberta(*terms):
    """Version 1: projections of the table of its own, and one term or both."""
    config = transformers.DebertaConfig(
        **SIZES, relative_attention=True, pos_att_type=list(terms), max_relative_positions=6
    )
    module, w = filled(modeling("deberta").DisentangledSelfAttention(config))
    # Of each head the query, the key and the value, one after another.
    each = w["in_proj.weight"].reshape(H, 3, K, D).swapaxes(0, 1).reshape(3, D, D)
    own = {"position_query": "pos_q_proj", "position_key": "pos_proj"}
    own = {role: linear(w, name) for role, name in own.items() if f"{name}.weight" in w}
    position = positions.Disentangled(12, None, terms=terms, own_projections=True)
    layer = given(
        ka.MultiHeadAttention(H, K, position=position),
        **{"query": (each[0], w["q_bias"]), "key": each[1:2], "value": (each[2], w["v_bias"])},
        **own,
    )
    position.embeddings.assign(table := random(12, D, seed=1))
    seen, rows = torch.tensor(REAL[:, None, :, None] & REAL[:, None, None]), torch.arange(T)
    distances = {
        "relative_pos": (rows[:, None] - rows)[None],
        "rel_embeddings": torch.tensor(table),
    }
    return lambda x: layer(x, query_mask=REAL), lambda x: module(x, seen, **distances)[0]


def sam():
    """A table of each axis, of another size than the grid."""
    config = transformers.SamVisionConfig(**SIZES, image_size=10, patch_size=2)
    module, w = filled(modeling("sam").SamVisionAttention(config, 0))
    position = positions.GridRelativeBias(GRID, 5, decomposed=True)
    each = zip(w["qkv.weight"].reshape(3, D, D), w["qkv.bias"].reshape(3, D), strict=True)
    roles = dict(zip(("query", "key", "value"), each, strict=True))
    layer = ka.MultiHeadAttention(H, K, position=position)
    layer = given(layer, **roles, output=linear(w, "proj"))
    for table, name in zip(position.tables, "hw", strict=True):
        table.assign(w[f"rel_pos_{name}"])
    return layer, lambda x: module(x.reshape(B, *GRID, D))[0].reshape(B, T, D)


def longformer():
    """Other global tokens in each row, beside padding."""
    config = transformers.LongformerConfig(**SIZES, num_hidden_layers=1, attention_window=[4])
    module, w = filled(modeling("longformer").LongformerSelfAttention(config, 0))
    roles = {role: linear(w, role) for role in ("query", "key", "value")}
    roles |= {f"global_{role}": linear(w, f"{role}_global") for role in list(roles)}
    layer = given(ka.LongformerAttention(H, K, 2, max_global=3), **roles)
    chosen = np.isin(np.arange(B * T), [0, 5, 11, T + 3, T + 10]).reshape(B, T)
    states = torch.tensor(np.where(REAL, np.where(chosen, 1e4, 0.0), -1e4).astype("float32"))
    return lambda x: layer(x, query_mask=REAL, global_mask=chosen), lambda x: module(
        x, states, is_index_masked=states < 0, is_index_global_attn=states > 0, is_global_attn=True
    )[0]


def nystromformer(scale, kernel):
    """Whole rows; or real tokens beside padding, of which theirs would have landmarks."""
    config = transformers.NystromformerConfig(
        **SIZES, num_landmarks=3, segment_means_seq_len=T, conv_kernel_size=kernel
    )
    module, w = filled(modeling("nystromformer").NystromformerSelfAttention(config))
    options = {"initial_scale": scale, "conv_kernel_size": kernel}
    roles = {role: linear(w, role) for role in ("query", "key", "value")}
    layer = given(ka.NystromAttention(H, K, 3, **options), **roles)
    layer.conv_kernel.assign(w["conv.weight"].reshape(H, kernel).T)
    if scale == "batch":
        return layer, lambda x: module(x)[0]
    lengths, module.init_option = (9, 6), "exact"

    def theirs(x):
        found = torch.zeros_like(x)
        for n, module.seq_len in enumerate(lengths):
            found[n, : module.seq_len] = module(x[n : n + 1, : module.seq_len])[0][0]
        return found

    return lambda x: layer(x, query_mask=np.arange(T) < np.array(lengths)[:, None]), theirs


def big_bird():
    """Six blocks of two, with the random ones that ours draws for all heads."""
    config = transformers.BigBirdConfig(**SIZES, block_size=2, num_random_blocks=1)
    of_models = modeling("big_bird")
    module, w = filled(of_models.BigBirdBlockSparseAttention(config))
    pattern = patterns.BigBird(T - 1, 2, 1, seed=4)
    chosen = pattern.patterns[2].groups().keys[1:-1, ::2] // 2
    module._bigbird_block_rand_mask_with_head = lambda **given: [chosen] * H
    layer = ka.MultiHeadAttention(H, K, pattern=pattern)
    layer = given(layer, **{role: linear(w, role) for role in ("query", "key", "value")})
    real = torch.tensor(REAL.astype("float32"))
    blocks, *masks = of_models.BigBirdModel.create_masks_for_block_sparse_attn(real, 2)
    return lambda x: layer(x, query_mask=REAL), lambda x: module(x, *masks, blocks, blocks)[0]


def encoded(position, at, apply):
    """The products of queries and keys: as we encode them, and as `apply` does."""

    def ours(query, key):
        return keras.ops.einsum("bthk,bshk->bths", *position.encode(query, key, at, at))

    def theirs(query, key):
        query, key = apply(*(x.transpose(1, 2) for x in (query, key)))
        return (query @ key.transpose(2, 3)).transpose(1, 2)

    return ours, theirs, [random(B, len(at), H, K, seed=seed) for seed in (1, 2)]


def dinov3():
    """Coordinates from −1 to 1, beside a token that is not rotated."""
    config = transformers.DINOv3ViTConfig(**SIZES, patch_size=2, rope_theta=100.0)
    module = modeling("dinov3_vit")
    cos, sin = module.DINOv3ViTRopePositionEmbedding(config).eval()(torch.zeros(1, 3, 6, 8))
    given = {"normalized": True, "scaling": "linear", "factor": 0.5 / math.pi}
    position = positions.AxialRotary(GRID, 1, max_wavelength=100, **given)
    apply = functools.partial(module.apply_rotary_pos_emb, cos=cos, sin=sin)
    return encoded(position, np.arange(1 + T), apply)


def pixtral():
    """Wavelengths of rows and of columns in turns."""
    module, cells = modeling("pixtral"), torch.tensor(np.stack(np.divmod(np.arange(T), 4), -1))
    embedding = module.PixtralVisionRotaryEmbedding(transformers.PixtralVisionConfig(**SIZES))
    cos, sin = embedding(torch.zeros(1), cells)
    apply = functools.partial(module.apply_rotary_pos_emb, cos=cos, sin=sin, unsqueeze_dim=0)
    return encoded(positions.AxialRotary(GRID, axes="alternating"), np.arange(T), apply)


def qwen2_vl():
    """Two tokens, an image of 2 by 3 and three tokens, by sections of time, height and width."""
    fields = {"rope_theta": 50.0, "rope_type": "default", "mrope_section": [1, 2, 1]}
    config = transformers.Qwen2VLTextConfig(**SIZES, rope_parameters=fields)
    rows, columns = np.divmod(np.arange(6), 3)
    # An image begins where the text before it ends, and takes as many positions as its longer side.
    image = np.stack([0 * rows, rows, columns]) + 2
    ids = np.concatenate([[[0, 1]] * 3, image, [[5, 6, 7]] * 3], axis=1)
    module = modeling("qwen2_vl")
    embedding = module.Qwen2VLRotaryEmbedding(config)
    cos, sin = embedding(torch.zeros(1), torch.tensor(ids)[:, None])
    apply = functools.partial(module.apply_rotary_pos_emb, cos=cos, sin=sin)
    # Cells of the grid that is at each position of the text.
    at = ids[0] * 16 * 32 + (ids[1] - ids[0]) * 32 + ids[2] - ids[0]
    given = {"axes": [0, 1, 1, 2], "diagonal": True, "max_wavelength": 50.0}
    return encoded(positions.AxialRotary((1, 16, 32), **given), at, apply)


def gemma4():
    """Half of the pairs of all features are rotated."""
    fields = {"rope_theta": 50.0, "partial_rotary_factor": 0.5, "factor": 0.25}
    kinds = ["full_attention"]
    config = transformers.Gemma4TextConfig(
        **SIZES, head_dim=K, global_head_dim=K, num_hidden_layers=1, layer_types=kinds,
        rope_parameters={kinds[0]: {**fields, "rope_type": "proportional"}},
    )  # fmt: skip
    at, module = np.arange(T) + 300, modeling("gemma4")
    embedding = module.Gemma4TextRotaryEmbedding(config)
    cos, sin = embedding(torch.zeros(1), torch.tensor(at)[None], *kinds)
    position = positions.Rotary(50.0, K // 2, scaling="proportional", factor=0.25)
    return encoded(position, at, lambda *x: [module.apply_rotary_pos_emb(y, cos, sin) for y in x])


def sharing(name, *ends):
    """The last layers attend to keys and values of others, in one call or in pieces to `ends`."""
    kinds = [f"{kind}_attention" for kind in ("sliding", "full", "sliding", "sliding", "full")]
    of_kind = dict(zip(kinds, ((50.0, 4), (200.0, T)), strict=False))
    config = getattr(transformers, f"{name}TextConfig")(
        **SIZES, num_hidden_layers=5, num_kv_shared_layers=2, layer_types=kinds, sliding_window=4,
        num_key_value_heads=1, head_dim=K, global_head_dim=K, attn_implementation="eager",
        rope_parameters={x: {"rope_theta": of_kind[x][0], "rope_type": "default"} for x in of_kind},
    )  # fmt: skip
    module = modeling(name.lower())
    rotary = getattr(module, f"{name}RotaryEmbedding", None) or module.Gemma4TextRotaryEmbedding
    rotary = rotary(config)
    layers = [getattr(module, f"{name}TextAttention")(config, n) for n in range(5)]
    layers, w = filled(torch.nn.ModuleList(layers))
    blocks, norm = [], {"attention": None, "feed_forward": None}
    for n, kind in enumerate(kinds):
        wavelength, reach = of_kind[kind]
        block = ka.TransformerBlock(
            None, H, causal=True, residual="pre", norm=norm, feed_forward=Nothing(), key_dim=K,
            position=positions.Rotary(wavelength), score="dot", qk_norm="rms", use_bias=False,
            value_norm="rms",
            pattern=ka.patterns.SlidingWindow(3, 0) if reach == 4 else None,
            num_key_value_heads=1, reuse="key_value" if n > 2 else None,
        )  # fmt: skip
        roles = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
        roles = {role: linear(w, f"{n}.{x}") for role, x in roles.items()}
        given(block.attention, **{role: x for role, x in roles.items() if x})
        for role in ("query", "key")[: 1 + (n < 3)]:
            norm_of_role = getattr(block.attention, f"{role}_norm")
            norm_of_role.scale.assign(w[f"{n}.{role[0]}_norm.weight"])
        blocks.append(block)
    model = ka.Decoder(blocks, sources=[None, None, None, 2, 1])
    model.build((B, T, D))

    def ours(x):
        if not ends:
            return model(x, mask=REAL)
        cache, found = model.make_cache(B, T), []
        for begin, end in itertools.pairwise((0, *ends)):
            output, cache = model(x[:, begin:end], mask=REAL[:, begin:end], cache=cache)
            found.append(output)
        return keras.ops.concatenate(found, axis=1)

    def theirs(x):
        cache, found = transformers.DynamicCache(config=config), []
        for begin, end in itertools.pairwise((0, *(ends or [T]))):
            y, shared, at = x[:, begin:end], {}, torch.arange(begin, end)
            for layer, kind in zip(layers, kinds, strict=True):
                ages, reach = at[:, None] - torch.arange(end), of_kind[kind][1]
                seen = (ages >= 0) & (ages < reach)
                # A cache of a window has no more.
                mask = torch.where(seen, 0.0, -1e9)[None, None, :, -(reach - 1 + end - begin) :]
                given = {"shared_kv_states": shared, "cache": cache}
                y = y + layer(y, rotary(y, at[None], kind), mask, **given)[0]
            found.append(y)
        return torch.cat(found, dim=1)

    return ours, theirs


ROWS = {
    "Disentangled, version 1": lambda: deberta("c2p", "p2c"),
    "Disentangled, c2p": lambda: deberta("c2p"),
    "Disentangled, p2c": lambda: deberta("p2c"),
    "GridRelativeBias, decomposed": sam,
    "LongformerAttention, global_mask": longformer,
    "NystromAttention, one scale": lambda: nystromformer("batch", 3),
    "NystromAttention, padded": lambda: nystromformer("head", 5),
    "BigBird": big_bird,
    "AxialRotary, normalized": dinov3,
    "AxialRotary, alternating": pixtral,
    "AxialRotary, sections": qwen2_vl,
    "Rotary, proportional": gemma4,
    "reuse, Gemma 3n": lambda: sharing("Gemma3n", 5, 7, 8, 9, 10, 11, 12),
    "reuse, Gemma 4": lambda: sharing("Gemma4"),
}


@pytest.mark.parametrize("name", ROWS)
def test_outputs_and_gradients_are_those_of_transformers(name):
    ours, theirs, *arrays = ROWS[name]()
    (arrays,) = arrays or [[random(B, T, D)]]
    tensors = [torch.tensor(x, requires_grad=True) for x in arrays]
    expected = theirs(*tensors)
    # What they give for padding is not compared.
    upstream = random(*expected.shape, seed=9) * (1 if len(arrays) == 2 else REAL[..., None])
    found = ours(*map(keras.ops.convert_to_tensor, arrays))
    real = upstream != 0
    close(numpy(found) * real, expected.detach().numpy() * real, 3e-5)
    wanted = torch.autograd.grad((expected * torch.tensor(upstream)).sum(), tensors)
    upstream = keras.ops.convert_to_tensor(upstream)
    slopes = gradients(lambda *x: ours(*x) * upstream, arrays)
    for one, other in zip(slopes, wanted, strict=True):
        close(one, other.numpy(), 1e-4)
