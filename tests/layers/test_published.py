"""Layers and positions beside those of `transformers`, with the same weights."""

import math

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import positions
from tests.arrays import close, random
from tests.gradients import gradients

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

B, H, K, D = 2, 2, 8, 16
# Of a sequence, or of the grid 3 by 4 with a token before it.
T, GRID, CELLS = 11, (3, 4), 1 + 3 * 4


def of(name):
    """The module of `transformers` with the models of a family."""
    return getattr(transformers.models, name)


def filled(module):
    """A module with random weights in evaluation, and these by their names."""
    rng = np.random.default_rng(3)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.tensor(rng.normal(size=weight.shape) * 0.4))
    found = {name: x.detach().numpy() for name, x in module.named_parameters()}
    return module.eval(), found


def projections(layer, w, *names, mapped=None):
    """Sets the query, the key, the value and the output by weights of linear layers, as stored."""
    roles = "query", "key", "value", "output", "position_query", "position_key"
    for role, name in zip(roles, names, strict=False):
        if name is None:
            continue
        dense = getattr(layer, f"{role}_dense")
        dense.kernel.assign(w[f"{name}.weight"].T.reshape(dense.kernel.shape))
        if f"{name}.bias" in w:
            dense.bias.assign(w[f"{name}.bias"].reshape(dense.bias.shape))
    return layer


def made(length, **options):
    layer = ka.MultiHeadAttention(H, K, **options)
    layer.build((B, length, D), (B, length, D))
    return layer


def wav2vec2_bert():
    """Distances that are clipped further before the query than after it."""
    config = transformers.Wav2Vec2BertConfig(
        hidden_size=D, num_attention_heads=H, left_max_position_embeddings=5,
        right_max_position_embeddings=2, attn_implementation="eager",
    )  # fmt: skip
    module, w = filled(of("wav2vec2_bert").modeling_wav2vec2_bert.Wav2Vec2BertSelfAttention(config))
    position = positions.Shaw((5, 2), use_values=False)
    layer = projections(
        made(T, position=position), w, *[f"linear_{x}" for x in ("q", "k", "v", "out")]
    )
    position._of_keys.assign(w["distance_embedding.weight"][None])
    real = np.arange(T) < np.array([[T], [7]])
    mask = torch.tensor(np.where(real, 0.0, -1e30)[:, None, None].astype("float32"))
    return (
        lambda x: layer(x, value_mask=real),
        lambda x: module(x, attention_mask=mask)[0],
        [random(B, T, D)],
    )


def xlnet():
    """Distances that are clipped to either side, of a pass over a memory and a segment."""
    config = transformers.XLNetConfig(
        d_model=D, n_head=H, n_layer=1, d_inner=8, vocab_size=9, clamp_len=3, dropout=0.0
    )
    model = transformers.XLNetModel(config)
    module, w = filled(model.layer[0].rel_attn)
    position = positions.TransformerXL(D, max_distance=3)
    layer = projections(
        made(T, position=position, use_bias=False),
        {f"{n}.weight": w[n].reshape(D, D).T if n != "o" else w[n].reshape(D, D) for n in "qkvo"},
        *"qkvo",
    )
    weights = {"kernel": "r", "content_bias": "r_w_bias", "position_bias": "r_r_bias"}
    for ours, theirs in weights.items():
        getattr(position, ours).assign(w[theirs])

    def theirs(x):
        rows = x.transpose(0, 1)
        k = [torch.einsum("ibh,hnd->ibnd", rows, getattr(module, n)) for n in "qkv"]
        r = model.relative_positional_encoding(T, T, bsz=B)
        r = torch.einsum("ibh,hnd->ibnd", r, module.r)
        found = module.rel_attn_core(*k, r)
        return torch.einsum("ibnd,hnd->bih", found, module.o)

    return layer, theirs, [random(B, T, D)]


def deberta(*terms):
    """Version 1: projections of the table of its own, and one term or both."""
    config = transformers.DebertaConfig(
        hidden_size=D, num_attention_heads=H, relative_attention=True, pos_att_type=list(terms),
        max_relative_positions=6, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    modeling = of("deberta").modeling_deberta
    module, w = filled(modeling.DisentangledSelfAttention(config))
    # Of each head the query, the key and the value, one after another.
    each = w["in_proj.weight"].reshape(H, 3, K, D).swapaxes(0, 1).reshape(3, D, D)
    w |= {f"{role}.weight": kernel for role, kernel in zip("qkv", each, strict=True)}
    w |= {f"{role}.bias": w[f"{role}_bias"] for role in "qv"}
    position = positions.Disentangled(12, None, terms=terms, own_projections=True)
    layer = made(T, position=position)
    names = "pos_q_proj" if "p2c" in terms else None, "pos_proj" if "c2p" in terms else None
    layer = projections(layer, w, "q", "k", "v", None, *names)
    layer.output_dense.kernel.assign(np.eye(D).reshape(H, K, D))
    table, real = random(12, D, seed=1), np.arange(T) < np.array([[T], [6]])
    position.embeddings.assign(table)
    seen = torch.tensor(real[:, None, :, None] & real[:, None, None])
    rows = torch.arange(T)
    distances = (rows[:, None] - rows)[None]

    def theirs(x):
        given = {"relative_pos": distances, "rel_embeddings": torch.tensor(table)}
        return module(x, seen, **given)[0] * torch.tensor(real)[..., None]

    return lambda x: layer(x, query_mask=real), theirs, [random(B, T, D)]


def sam():
    """A table of each axis, of another size than the grid."""
    config = transformers.SamVisionConfig(
        hidden_size=D, num_attention_heads=H, image_size=10, patch_size=2, attention_dropout=0.0
    )
    module, w = filled(of("sam").modeling_sam.SamVisionAttention(config, 0))
    # The tables are of 5 by 5.
    position = positions.GridRelativeBias(GRID, 5, decomposed=True)
    layer = made(12, position=position)
    for role, kernel, bias in zip(
        "qkv", w["qkv.weight"].reshape(3, D, D), w["qkv.bias"].reshape(3, D), strict=True
    ):
        w |= {f"{role}.weight": kernel, f"{role}.bias": bias}
    projections(layer, w, *"qkv", "proj")
    for table, name in zip(position.tables, "hw", strict=True):
        table.assign(w[f"rel_pos_{name}"])
    return layer, lambda x: module(x.reshape(B, *GRID, D))[0].reshape(B, 12, D), [random(B, 12, D)]


def encoded(position, at, embedding, apply, length, first=0):
    """The products of rotated queries and keys: of ours, and of theirs by cosines and sines."""
    arrays = [random(B, length, H, K, seed=seed) for seed in (1, 2)]

    def ours(query, key):
        return keras.ops.einsum("bthk,bshk->bhts", *position.encode(query, key, at, at))

    def theirs(query, key):
        query, key = (x.transpose(1, 2) for x in (query, key))
        query, key = apply(query, key, *embedding())
        return query @ key.transpose(2, 3)

    return ours, theirs, arrays


def dinov3():
    """A small grid, whose angles are larger than the distances."""
    config = transformers.DINOv3ViTConfig(
        hidden_size=H * K, num_attention_heads=H, patch_size=2, image_size=8, rope_theta=100.0
    )
    modeling = of("dinov3_vit").modeling_dinov3_vit
    embedding = modeling.DINOv3ViTRopePositionEmbedding(config).eval()
    images = torch.zeros(1, 3, *(2 * n for n in GRID))
    factor = [n / (4 * math.pi) for n in GRID]
    position = positions.AxialRotary(GRID, 1, max_wavelength=100, scaling="linear", factor=factor)
    apply = modeling.apply_rotary_pos_emb
    return encoded(position, np.arange(CELLS), lambda: embedding(images), apply, CELLS)


def pixtral():
    """Wavelengths of rows and of columns in turns."""
    config = transformers.PixtralVisionConfig(hidden_size=H * K, num_attention_heads=H)
    modeling = of("pixtral").modeling_pixtral
    embedding = modeling.PixtralVisionRotaryEmbedding(config)
    cells = torch.tensor(np.stack(np.divmod(np.arange(12), 4), -1))
    position = positions.AxialRotary(GRID, axes="alternating")

    def apply(query, key, cos, sin):
        return modeling.apply_rotary_pos_emb(query, key, cos, sin, unsqueeze_dim=0)

    return encoded(position, np.arange(12), lambda: embedding(torch.zeros(1), cells), apply, 12)


def qwen2_vl():
    """Two tokens, an image of 2 by 3, and three tokens, by sections of time, height and width."""
    fields = {"rope_theta": 50.0, "rope_type": "default", "mrope_section": [1, 2, 1]}
    config = transformers.Qwen2VLTextConfig(
        hidden_size=H * K, num_attention_heads=H, rope_parameters=fields
    )
    modeling = of("qwen2_vl").modeling_qwen2_vl
    embedding = modeling.Qwen2VLRotaryEmbedding(config)
    rows, columns = np.divmod(np.arange(6), 3)
    # An image begins where the text before it ends, and takes as many positions as its longer side.
    image = np.stack([0 * rows, rows, columns]) + 2
    text = [np.tile(np.arange(first, last), (3, 1)) for first, last in ((0, 2), (5, 8))]
    ids = np.concatenate([text[0], image, text[1]], axis=1)
    at = ids[0] * 16 * 32 + (ids[1] - ids[0]) * 32 + ids[2] - ids[0]
    position = positions.AxialRotary(
        (1, 16, 32), axes=[0, 1, 1, 2], diagonal=True, max_wavelength=50.0
    )
    ids = torch.tensor(ids)[:, None]
    return encoded(
        *(position, at, lambda: embedding(torch.zeros(1), ids)),
        *(modeling.apply_rotary_pos_emb, T),
    )


def gemma4():
    """A quarter of the pairs, those of all features, is rotated."""
    fields = {"rope_theta": 50.0, "partial_rotary_factor": 0.5, "factor": 0.25}
    fields = {"full_attention": {**fields, "rope_type": "proportional"}}
    config = transformers.Gemma4TextConfig(
        hidden_size=H * K, num_attention_heads=H, head_dim=K, global_head_dim=K,
        num_hidden_layers=1, layer_types=["full_attention"], rope_parameters=fields,
    )  # fmt: skip
    modeling = of("gemma4").modeling_gemma4
    embedding = modeling.Gemma4TextRotaryEmbedding(config)
    at = np.arange(T) + 300

    def apply(query, key, cos, sin):
        return [modeling.apply_rotary_pos_emb(x, cos, sin) for x in (query, key)]

    def angles():
        return embedding(torch.zeros(1), torch.tensor(at)[None], "full_attention")

    position = positions.Rotary(50.0, K // 2, scaling="proportional", factor=0.25)
    return encoded(position, at, angles, apply, T)


def longformer():
    """Global tokens of each row, one of which has none, beside padding."""
    length = 12
    config = transformers.LongformerConfig(
        hidden_size=D, num_attention_heads=H, num_hidden_layers=1, intermediate_size=8,
        attention_window=[4], attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0,
    )  # fmt: skip
    module, w = filled(of("longformer").modeling_longformer.LongformerSelfAttention(config, 0))
    layer = ka.LongformerAttention(H, K, 2, num_global=3)
    layer.build((3, length, D), (3, length, D))
    projections(layer, w, "query", "key", "value")
    layer.output_dense.kernel.assign(np.eye(D).reshape(H, K, D))
    for role in ("query", "key", "value"):
        dense = getattr(layer, f"global_{role}_dense")
        dense.kernel.assign(w[f"{role}_global.weight"].T.reshape(D, H, K))
        dense.bias.assign(w[f"{role}_global.bias"].reshape(H, K))
    real = np.arange(length) < np.array([[12], [8], [12]])
    chosen = np.isin(np.arange(36), [0, 5, 11, 12 + 3, 12 + 10]).reshape(3, length)
    states = torch.tensor(np.where(real, np.where(chosen, 1e4, 0.0), -1e4).astype("float32"))

    def theirs(x):
        found = module(
            x, states, is_index_masked=states < 0, is_index_global_attn=states > 0,
            is_global_attn=True,
        )[0]  # fmt: skip
        return found * torch.tensor(real)[..., None]

    return (
        lambda x: layer(x, query_mask=real, global_mask=chosen),
        theirs,
        [random(3, length, D)],
    )


ROWS = {
    "Shaw, unequal sides": wav2vec2_bert,
    "TransformerXL, max_distance": xlnet,
    "Disentangled, version 1": lambda: deberta("c2p", "p2c"),
    "Disentangled, c2p": lambda: deberta("c2p"),
    "Disentangled, p2c": lambda: deberta("p2c"),
    "GridRelativeBias, decomposed": sam,
    "AxialRotary, factors": dinov3,
    "AxialRotary, alternating": pixtral,
    "AxialRotary, sections": qwen2_vl,
    "Rotary, proportional": gemma4,
    "LongformerAttention, global_mask": longformer,
}


@pytest.mark.parametrize("name", ROWS)
def test_outputs_and_gradients_are_those_of_transformers(name):
    ours, theirs, arrays = ROWS[name]()
    tensors = [torch.tensor(x, requires_grad=True) for x in arrays]
    expected = theirs(*tensors)
    found = ours(*map(keras.ops.convert_to_tensor, arrays))
    expected_output = expected.detach().numpy()
    close(found, expected_output, 3e-5)
    upstream = random(*expected.shape, seed=9)
    slopes = gradients(lambda *x: ours(*x) * upstream, arrays)
    wanted = torch.autograd.grad((expected * torch.tensor(upstream)).sum(), tensors)
    for one, other in zip(slopes, wanted, strict=True):
        close(one, other.numpy(), 1e-4)
