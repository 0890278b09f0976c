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
import numpy as np

import keras_attention
from benchmarks import runner
from benchmarks.attention.backends import BACKEND, compiled
from benchmarks.attention.cases import Case
from keras_attention import generation
from keras_attention.backend import backend

ops = keras.ops

EPSILON = 1e-6
# Of the norm.
FARTHEST = {"float32": 1e-4, "bfloat16": 5e-2}
OTHERS = ("keras_hub", "transformers", "transformers_compiled")


@dataclasses.dataclass(frozen=True)
class Size:
    """Sizes of a block, of its input and of what is decoded."""

    length: int
    batch: int
    features: int = 512
    intermediate: int = 1376
    heads: int = 8
    key_heads: int = 2
    tokens: int = 64

    @property
    def real(self):
        """Which tokens are no padding: all of the first row, three quarters of the last."""
        starts = np.linspace(0, self.length // 4, self.batch).astype(int)
        return np.arange(self.length) >= starts[:, None]

    def case(self, what, xla):
        return Case(
            self.batch, self.length, self.features, self.heads, training=what == "training", xla=xla
        )


SIZES = {512: Size(512, 8), 2048: Size(2048, 2)}
SMALL = Size(8, 2, 32, 48, tokens=2)


def states(size, dtype, length):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((size.batch, length, size.features), dtype="float32")
    return ops.convert_to_tensor(x, dtype=dtype)


def on_arrays(call, inputs):
    """What `call` gives, computed once, before anything is timed."""
    return keras.tree.map_structure(ops.stop_gradient, call(*inputs))


def of_real(call, what):
    """`call`, in training with zeros for padding, of which each library makes something else."""
    if what != "training":
        return call
    return lambda x, mask: ops.where(mask[..., None], call(x, mask), 0)


def token(x, n):
    """The token number `n` of `x`, (B, 1, D)."""
    return ops.expand_dims(ops.take(x, n, axis=1), 1)


# Ours


def our_block(size, policy):
    block = keras_attention.TransformerBlock(
        size.intermediate,
        size.heads,
        activation="silu",
        gated=True,
        causal=True,
        residual="pre",
        norm="rms",
        layer_norm_epsilon=EPSILON,
        num_key_value_heads=size.key_heads,
        use_bias=False,
        position="rotary",
        dtype=policy,
    )
    block.build((None, None, size.features))
    return block


def ours(size, what, dtype, policy, xla):
    """Our block, and its work as a function."""
    block = our_block(size, policy)
    case = size.case(what, xla)
    inputs = states(size, dtype, size.length), ops.convert_to_tensor(size.real)
    if what != "tokens":
        call = of_real(lambda x, mask: block(x, mask=mask), what)
        return block, compiled(call, block, inputs, case)

    def decode(x, start):
        def step(given, n, y, *stored):
            cache = keras.tree.pack_sequence_as(start, stored)
            y, cache = block(token(given[0], n), cache=cache)
            return n + 1, y, *keras.tree.flatten(cache)

        carry = ops.convert_to_tensor(0), x[:, :1], *keras.tree.flatten(start)
        # As `generation` has it: on PyTorch the operators of a step, without its Python.
        return backend.while_loop(lambda n, *_: n < size.tokens, step, carry, (x,))[1]

    empty = block.make_cache(size.batch, size.length + size.tokens)
    start = on_arrays(lambda x, mask: block(x, mask=mask, cache=empty)[1], inputs)
    inputs = states(size, dtype, size.tokens), start
    if BACKEND == "torch":
        search = generation.compiled(decode, block)
        return block, lambda: (search(*inputs),)
    return block, compiled(decode, block, inputs, case)


# Others'


def hub_block(size, policy):
    """KerasHub's Llama block, the only one of a backbone."""
    import keras_hub

    backbone = keras_hub.models.LlamaBackbone(
        vocabulary_size=8,
        num_layers=1,
        num_query_heads=size.heads,
        hidden_dim=size.features,
        intermediate_dim=size.intermediate,
        num_key_value_heads=size.key_heads,
        layer_norm_epsilon=EPSILON,
        dtype=policy,
    )
    return backbone.transformer_layers[0]


def hub(size, what, dtype, policy, xla, weights=None):
    """Its work as a function, with our weights if they are given."""
    block = hub_block(size, policy)
    if weights is not None:
        *attention, gate, intermediate, output, norm = weights
        block.set_weights([*attention, intermediate, gate, output, norm])
    case = size.case(what, xla)
    inputs = states(size, dtype, size.length), ops.convert_to_tensor(size.real)
    if what != "tokens":
        call = of_real(lambda x, mask: block(x, decoder_padding_mask=mask), what)
        return compiled(call, block, inputs, case)

    features = size.features // size.heads
    shape = size.batch, 2, size.length + size.tokens, size.key_heads, features
    slots = np.pad(size.real, ((0, 0), (0, size.tokens)), constant_values=True)
    slots = ops.convert_to_tensor(slots[:, None])

    def filled(x, mask):
        seen = ops.broadcast_to(slots, (size.batch, size.length, shape[2]))
        given = {"self_attention_cache": ops.zeros(shape, dtype), "decoder_attention_mask": seen}
        return block(x, **given, self_attention_cache_update_index=0)[1]

    def decode(x, cache):
        def step(n, carry):
            given = {"self_attention_cache": carry[1], "decoder_attention_mask": slots}
            at = {"self_attention_cache_update_index": size.length + n}
            return block(token(x, n), **at, **given)

        return ops.fori_loop(0, size.tokens, step, (x[:, :1], cache))[0]

    inputs = states(size, dtype, size.tokens), on_arrays(filled, inputs)
    return compiled(decode, block, inputs, case)


def transformers_block(size, what, dtype, weights, compiles):
    """A `LlamaModel` of one block, without its last norm."""
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=8,
        hidden_size=size.features,
        intermediate_size=size.intermediate,
        num_hidden_layers=1,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_heads,
        rms_norm_eps=EPSILON,
        max_position_embeddings=4096,
        attn_implementation="sdpa",
    )
    model = transformers.LlamaModel(config)
    model.norm = torch.nn.Identity()
    block = model.layers[0]
    attention, feed_forward = block.self_attn, block.mlp
    parts = (
        *(attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj),
        block.input_layernorm,
        *(feed_forward.gate_proj, feed_forward.up_proj, feed_forward.down_proj),
        block.post_attention_layernorm,
    )
    with torch.no_grad():
        for part, array in zip(parts, weights, strict=True):
            # Heads are folded into a matrix, which PyTorch keeps transposed.
            part.weight.copy_(torch.tensor(array).reshape(part.weight.T.shape).T)
    x = states(size, dtype, size.length)
    model = model.to(x.device, getattr(torch, dtype))
    mask = torch.tensor(size.real, device=x.device).long()
    places = (mask.cumsum(1) - 1).clamp(min=0)

    def run():
        given = x.detach().requires_grad_(what == "training")
        with torch.set_grad_enabled(what == "training"):
            seen = {"attention_mask": mask, "position_ids": places, "use_cache": False}
            output = model(inputs_embeds=given, **seen)[0]
            if what != "training":
                return (output,)
            total = (output * mask[..., None]).float().square().sum()
            return torch.autograd.grad(total, [given, *block.parameters()])

    if what != "tokens":
        return run

    # All slots, as `generate` has it: compiled, each length of a mask would be another program.
    slots = torch.cat([mask, mask.new_ones(size.batch, size.tokens)], 1)
    cache = transformers.StaticCache(config, max_cache_len=size.length + size.tokens)
    given = {"attention_mask": slots, "past_key_values": cache, "use_cache": True}
    with torch.no_grad():
        model(inputs_embeds=x, position_ids=places, **given)
    (layer,) = cache.layers
    arrays = layer.keys, layer.values, layer.cumulative_length
    filled = [(array, array.clone()) for array in arrays]
    tokens = states(size, dtype, size.tokens)
    step = torch.compile(model, dynamic=False) if compiles else model

    @torch.no_grad()
    def decode():
        # A program belongs to the arrays of its cache.
        for array, start in filled:
            array.copy_(start)
        at = places[:, -1:]
        for n in range(size.tokens):
            at = at + 1
            y = step(inputs_embeds=tokens[:, n : n + 1], position_ids=at, **given)[0]
        return (y,)

    return decode


WORKS = "forward", "training", "tokens"


def row_names():
    """Names of all rows of this backend."""
    others = OTHERS if BACKEND == "torch" else OTHERS[:1]
    parts = itertools.product(FARTHEST, map(str, SIZES), WORKS, others)
    names = ["-".join(row) for row in parts]
    return [name for name in names if "compiled" not in name or "tokens" in name]


def sides(name, small, xla):
    """What a row is, our side and the other."""
    dtype, length, what, other = name.split("-")
    size = SMALL if small else SIZES[int(length)]
    mixed = dtype == "bfloat16" and what == "training" and other == "keras_hub"
    policy = "mixed_bfloat16" if mixed else dtype
    block, our = ours(size, what, dtype, policy, xla)
    weights = [ops.convert_to_numpy(ops.cast(w, "float32")) for w in block.weights]
    if other == "keras_hub":
        their = hub(size, what, dtype, policy, xla, weights)
    else:
        their = transformers_block(size, what, dtype, weights, other == "transformers_compiled")
    real = size.real[..., None] if what != "tokens" else 1
    apart = runner.distance(
        *(ops.convert_to_numpy(ops.cast(run()[0], "float32")) * real for run in (our, their))
    )
    if not apart < FARTHEST[dtype]:
        raise ValueError(f"the two sides of {name} differ by {apart:.2g} of the norm")
    return f"B{size.batch} T{size.length} {what}, {policy}, {other}", our, their


def rows(names, options):
    for name in names:
        yield name, *sides(name, options.small, options.jit)


def main():
    def about(options):
        return {"jit": options.jit}

    runner.compare(__doc__, row_names(), rows, about, jit="compile with XLA on TensorFlow")


if __name__ == "__main__":
    main()
