"""The block that language models are made of today: `python -m benchmarks.decoder_block`.

RMSNorm, rotary positions, 8 heads over 2 key heads, SwiGLU, causal, 512 features, padding on the
left. Ours takes turns with KerasHub's Llama block and, on PyTorch, with that of `transformers`
(`sdpa`, as it comes; tokens also with its step compiled by `torch.compile`, which needs a C++
compiler). A row is a pass forward, a training step (gradients of the input and of all
weights), or 64 tokens, one after another, with caches that already hold T.

Weights are bfloat16 in bfloat16's rows, but for training against KerasHub: float32 there, by the
policy "mixed_bfloat16". Each pair computes the same, of the same weights: rows where they do not
agree are refused.
"""

import dataclasses
import itertools

import keras

import keras_attention
from benchmarks import runner
from benchmarks.backends import BACKEND, compiled, on_torch
from benchmarks.contestants import Case
from keras_attention import generation
from keras_attention.backend import backend

ops = keras.ops

EPSILON = 1e-6
# Of the norm.
FARTHEST = {"float32": 1e-4, "bfloat16": 5e-2}
BATCHES = {512: 8, 2048: 2}  # of so many tokens
WORKS = {
    "forward": {"training": False},
    "training": {},
    "tokens": {"training": False, "tokens": 64},
}
OTHERS = ("keras_hub", "transformers", "transformers_compiled")


def sizes(case):
    """Heads of keys, and features between the two layers of the feed-forward network."""
    return case.heads // 4, 43 * case.features // 16


def on_arrays(call, inputs):
    """What `call` gives, computed once, before anything is timed."""
    return keras.tree.map_structure(ops.stop_gradient, call(*inputs))


def whole(call, case):
    """A pass over all tokens; in training with zeros for padding, where each library differs."""
    if not case.training:
        return call
    return lambda x, mask: ops.where(mask[..., None], call(x, mask), 0)


def compiled_whole(call, block, case):
    """A function that runs such a pass."""
    inputs = case.normal(), case.mask
    return compiled(whole(call, case), inputs, block, case.training, case.xla)


def new_tokens(case):
    """What is decoded, (B, tokens, D)."""
    return case.normal(case.batch, case.tokens, case.features)


def token(x, n):
    """The token number `n` of `x`, (B, 1, D)."""
    return ops.expand_dims(ops.take(x, n, axis=1), 1)


def ours(case, policy):
    """Our block, and its work as a function."""
    key_heads, intermediate = sizes(case)
    options = {"activation": "silu", "gated": True, "causal": True, "position": "rotary"}
    options |= {"residual": "pre", "norm": "rms", "layer_norm_epsilon": EPSILON, "use_bias": False}
    options |= {"num_key_value_heads": key_heads, "dtype": policy}
    block = keras_attention.TransformerBlock(intermediate, case.heads, **options)
    block.build((None, None, case.features))
    if not case.tokens:
        return block, compiled_whole(lambda x, mask: block(x, mask=mask), block, case)

    def decode(x, start):
        def step(given, n, y, *stored):
            cache = keras.tree.pack_sequence_as(start, stored)
            y, cache = block(token(given[0], n), cache=cache)
            return n + 1, y, *keras.tree.flatten(cache)

        carry = ops.convert_to_tensor(0), x[:, :1], *keras.tree.flatten(start)
        # As `generation` has it: on PyTorch the operators of a step, without its Python.
        return backend.while_loop(lambda n, *_: n < case.tokens, step, carry, (x,))[1]

    cache = block.make_cache(case.batch, case.length + case.tokens)
    filled = lambda x, mask: block(x, mask=mask, cache=cache)[1]  # noqa: E731
    inputs = new_tokens(case), on_arrays(filled, (case.normal(), case.mask))
    if BACKEND == "torch":
        search = generation.compiled(decode, block)
        return block, lambda: (search(*inputs),)
    return block, compiled(decode, inputs, block, xla=case.xla)


def hub(case, policy, weights=None):
    """The work of KerasHub's Llama block as a function, with our weights if they are given."""
    import keras_hub

    key_heads, intermediate = sizes(case)
    options = {"num_query_heads": case.heads, "num_key_value_heads": key_heads, "num_layers": 1}
    options |= {"hidden_dim": case.features, "intermediate_dim": intermediate, "dtype": policy}
    options |= {"layer_norm_epsilon": EPSILON, "vocabulary_size": 8}
    backbone = keras_hub.models.LlamaBackbone(**options)
    (block,) = backbone.transformer_layers
    if weights is not None:
        *attention, gate, intermediate, output, norm = weights
        block.set_weights([*attention, intermediate, gate, output, norm])
    if not case.tokens:
        return compiled_whole(lambda x, mask: block(x, decoder_padding_mask=mask), block, case)

    shape = case.batch, 2, case.length + case.tokens, key_heads, case.key_dim
    new = ops.ones((case.batch, case.tokens), "bool")
    slots = ops.concatenate([case.mask, new], axis=1)[:, None]

    def call(x, cache, mask, at):
        named = {"decoder_attention_mask": mask, "self_attention_cache_update_index": at}
        return block(x, self_attention_cache=cache, **named)

    def filled(x):
        seen = ops.broadcast_to(slots, (case.batch, case.length, shape[2]))
        return call(x, ops.zeros(shape, case.dtype), seen, 0)[1]

    def decode(x, cache):
        step = lambda n, carry: call(token(x, n), carry[1], slots, case.length + n)  # noqa: E731
        return ops.fori_loop(0, case.tokens, step, (x[:, :1], cache))[0]

    inputs = new_tokens(case), on_arrays(filled, [case.normal()])
    return compiled(decode, inputs, block, xla=case.xla)


def of_transformers(case, weights, compiles):
    """The work of a `LlamaModel` of one block, without its last norm."""
    import torch
    import transformers

    key_heads, intermediate = sizes(case)
    options = {"num_attention_heads": case.heads, "num_key_value_heads": key_heads}
    options |= {"hidden_size": case.features, "intermediate_size": intermediate}
    options |= {"rms_norm_eps": EPSILON, "vocab_size": 8, "max_position_embeddings": 4096}
    options |= {"attn_implementation": "sdpa", "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**options)
    model = transformers.LlamaModel(config)
    model.norm = torch.nn.Identity()
    (block,) = model.layers
    *attention, norm, gate, intermediate, output, last = weights
    weights = *attention, gate, intermediate, output, norm, last
    with torch.no_grad():
        for weight, array in zip(block.parameters(), weights, strict=True):
            # Heads are folded into a matrix, which PyTorch keeps transposed.
            weight.copy_(torch.tensor(array.reshape(weight.shape[::-1]).T))
    x = case.normal()
    model = model.to(x.device, x.dtype)
    mask = case.mask.long()
    places = (mask.cumsum(1) - 1).clamp(min=0)

    def call(x, mask):
        seen = {"attention_mask": mask.long(), "position_ids": places, "use_cache": False}
        return model(inputs_embeds=x, **seen)[0]

    if not case.tokens:
        return on_torch(whole(call, case), [*block.parameters()], [x, case.mask], case.training)

    # All slots, as `generate` has it: compiled, each length of a mask would be another program.
    slots = torch.cat([mask, mask.new_ones(case.batch, case.tokens)], 1)
    cache = transformers.StaticCache(config, max_cache_len=case.length + case.tokens)
    given = {"attention_mask": slots, "past_key_values": cache, "use_cache": True}
    with torch.no_grad():
        model(inputs_embeds=x, position_ids=places, **given)
    (layer,) = cache.layers
    arrays = layer.keys, layer.values, layer.cumulative_length
    filled = [(array, array.clone()) for array in arrays]
    tokens = new_tokens(case)
    step = torch.compile(model, dynamic=False) if compiles else model

    @torch.no_grad()
    def decode():
        # A program belongs to the arrays of its cache.
        for array, start in filled:
            array.copy_(start)
        at = places[:, -1:]
        for n in range(case.tokens):
            at = at + 1
            y = step(inputs_embeds=tokens[:, n : n + 1], position_ids=at, **given)[0]
        return (y,)

    return decode


NAMES = [
    f"{dtype}-{length}-{work}-{other}"
    for dtype, length, work, other in itertools.product(FARTHEST, BATCHES, WORKS, OTHERS)
    if other == "keras_hub" or BACKEND == "torch"
    if other != "transformers_compiled" or work == "tokens"
]


def sides(name, options):
    dtype, length, what, other = name.split("-")
    given = {"training": False, **WORKS[what], "dtype": dtype, "padding": "left"}
    case = Case(BATCHES[int(length)], int(length), 512, 8, **given)
    if options.small:
        case = dataclasses.replace(case, batch=2, length=8, features=32, tokens=min(case.tokens, 2))
    policy = case.policy if what == "training" and other == "keras_hub" else dtype
    block, our = ours(case, policy)
    weights = [ops.convert_to_numpy(ops.cast(w, "float32")) for w in block.weights]
    if other == "keras_hub":
        their = hub(case, policy, weights)
    else:
        their = of_transformers(case, weights, other == "transformers_compiled")
    real = 1 if case.tokens else ops.convert_to_numpy(case.mask)[..., None]
    apart = runner.distance(
        *(ops.convert_to_numpy(ops.cast(run()[0], "float32")) * real for run in (our, their))
    )
    if not apart < FARTHEST[dtype]:
        raise ValueError(f"the two sides of {name} differ by {apart:.2g} of the norm")
    return f"B{case.batch} T{case.length} {what}, {policy}, {other}", our, their


def main():
    runner.turns(sides, runner.parsed(__doc__, rows=NAMES))


if __name__ == "__main__":
    main()
