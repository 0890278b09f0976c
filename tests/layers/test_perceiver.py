"""The blocks of Perceiver IO beside `transformers`, with its weights."""

import keras
import numpy as np

from keras_attention import LearnedQueries, TransformerBlock
from keras_attention.convert.huggingface import entries
from tests.arrays import numpy, random
from tests.convert.huggingface.models import random_model, torch, transformers
from tests.gradients import weight_gradients

S, T, LATENT, WIDTH, D = 7, 5, 12, 10, 8
CONFIG = transformers.PerceiverConfig(
    **dict(d_latents=LATENT, d_model=WIDTH, num_latents=4, num_blocks=2, qk_channels=6),
    **dict(num_self_attends_per_block=2, num_self_attention_heads=2, num_cross_attention_heads=3),
    **dict(v_channels=LATENT, self_attention_widening_factor=2, attention_probs_dropout_prob=0.0),
)
X, QUERIES = random(2, S, WIDTH), random(2, T, D, seed=1)
MASK = np.arange(S) < np.array([[S], [4]])


class Theirs(torch.nn.Module):
    """A model without a decoder, and what its decoders read the latents with."""

    def __init__(self, config):
        super().__init__()
        self.model = transformers.PerceiverModel(config)
        of_decoder = {"use_query_residual": False, "widening_factor": 1}
        self.decoder = transformers.models.perceiver.modeling_perceiver.PerceiverLayer(
            config, is_cross_attention=True, q_dim=D, kv_dim=LATENT, **of_decoder
        )

    def can_generate(self):
        return False

    def forward(self, inputs, queries, mask):
        latents = self.model(inputs, attention_mask=mask).last_hidden_state
        return self.decoder(queries, inputs=latents)[0]


def table(layer, norm):
    """The tensors of a layer there, whose attention is `layer` of a block."""
    names = "attention. self.query self.key self.value output.dense"
    return {
        **entries.attention(names, layer),
        **entries.network("mlp. dense1 dense2"),
        "attention.self.layernorm1": norm,
        "attention.self.layernorm2": "context_norm",
        "layernorm": "feed_forward_norm",
    }


def ours():
    """A model of inputs, queries and the mask of inputs, and the tensors that its weights are."""
    own = {"residual": "pre", "activation": "gelu"}
    read = own | {"cross_attention": True, "self_attention": False, "norm": {"context": "layer"}}
    encoder = TransformerBlock(LATENT, 3, key_dim=2, value_dim=4, **read)
    blocks = [TransformerBlock(2 * LATENT, 2, key_dim=3, value_dim=6, **own) for _ in range(2)]
    decoder = TransformerBlock(D, 1, key_dim=LATENT, query_residual=False, **read)
    x, queries, mask = (
        keras.Input(shape, dtype=dtype)
        for shape, dtype in [((None, WIDTH), None), ((T, D), None), ((None,), "bool")]
    )
    latents = LearnedQueries(4, LATENT)
    found = encoder(latents(x), x, context_mask=mask)
    for block in 2 * blocks:
        found = block(found)
    model = keras.Model([x, queries, mask], decoder(queries, found))
    across = table("cross_attention_layer", "cross_attention_norm")
    tensors = entries.of({"model.embeddings.latents": "queries"}, latents)
    tensors += entries.of(across, encoder, "model.encoder.cross_attention.")
    for n, block in enumerate(blocks):
        name = f"model.encoder.self_attends.{n}."
        tensors += entries.of(table("attention", "attention_norm"), block, name)
    return model, decoder, tensors + entries.of(across, decoder, "decoder.")


def test_perceiver_io():
    theirs = random_model(Theirs, CONFIG)
    model, decoder, tensors = ours()
    parameters = dict(theirs.named_parameters())
    assert parameters.keys() == {entry.name for entry in tensors}
    for entry in tensors:
        found = entry.split(parameters[entry.name].detach().numpy())
        for variable, array in zip(entry.variables, found, strict=True):
            variable.assign(np.reshape(array, variable.shape))
    given = [torch.tensor(x, requires_grad=True) for x in (X, QUERIES)]
    expected = theirs(*given, torch.tensor(MASK))
    weights = random(*expected.shape, seed=2)
    # Padding has any values here.
    x, mask = np.where(MASK[..., None], X, np.nan), keras.ops.convert_to_tensor(MASK)
    x = keras.ops.convert_to_tensor(x, "float32")
    found = model([x, keras.ops.convert_to_tensor(QUERIES), mask])
    np.testing.assert_allclose(numpy(found), expected.detach(), 1e-4, 1e-5)
    (expected * torch.tensor(weights)).sum().backward()

    def loss(x, queries):
        return keras.ops.sum(keras.ops.multiply(model([x, queries, mask]), weights))

    of_weights, of_arrays = weight_gradients(model, loss, (x, QUERIES))
    for found, array in zip(of_arrays, given, strict=True):
        np.testing.assert_allclose(found, array.grad, 1e-3, 1e-4)
    of = dict(zip(map(id, model.trainable_variables), of_weights, strict=True))
    assert len(of) == sum(len(entry.variables) for entry in tensors)
    for entry in tensors:
        found = entry.join([of[id(variable)] for variable in entry.variables])
        grad = parameters[entry.name].grad
        np.testing.assert_allclose(found, grad, 1e-3, 1e-4, err_msg=entry.name)
    # Queries one after another, with the keys and values of the normalized latents.
    latents = random(2, 4, LATENT, seed=3)
    memory = decoder.cache_context(latents, MASK[:, :4])
    whole = decoder(QUERIES, latents, context_mask=MASK[:, :4])
    parts = [numpy(decoder(QUERIES[:, t : t + 1], memory)) for t in range(T)]
    np.testing.assert_allclose(np.concatenate(parts, axis=1), numpy(whole), 1e-4, 1e-5)
