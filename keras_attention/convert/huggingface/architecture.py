"""An architecture of Hugging Face as a table: what its fields mean, and names of its tensors."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras

from keras_attention.convert.huggingface import entries, stacks


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What a `model_type` is.

    Args:
        fields: the table of its `config.json`, of `fields.py`.
        make: from a `Config` to a model without weights; `stacks.py` has those of most.
        tensors: the table of names of tensors, of `entries.py`.
        prefix: what these names begin with in files of models with a head.
        head: the table of names without the prefix, or a function of a model that returns it.
        unread, unread_of, same, optional: other names in files, of `buffers.py`.
        unsaid: options that files say by having a tensor or not.
        input_shape: from a `Config` to the shapes of inputs, with which weights are created.
    """

    fields: dict[str, Any]
    make: Callable[[Any], keras.Model]
    tensors: dict[str, Any]
    prefix: str = ""
    head: Any = dataclasses.field(default_factory=dict)
    unread: dict[str, str] = dataclasses.field(default_factory=dict)
    unread_of: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    same: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    optional: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ()
    input_shape: Callable[[Any], Any] = lambda config: (None, None)

    def model(self, config, dtype):
        """The model of a configuration, of a dtype policy or the one that is set."""
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(before if dtype is None else dtype)
        try:
            return self.make(config)
        finally:
            keras.config.set_dtype_policy(before)

    def entries(self, model, prefix):
        """The tensors of a model; `prefix` is what their names begin with: its own or nothing."""
        head = self.head(model) if callable(self.head) else self.head
        return entries.of(self.tensors, model, prefix) + entries.of(head, model)


def language_model(
    fields, block, names, tensors, further=lambda config: {}, others=None, head="lm_head", unread=()
):
    """The `Architecture` of a `Decoder`, whose logits may be tied.

    Args:
        fields: the table of its `config.json`.
        block: from a `Config` and the number of a layer to options of its `TransformerBlock`,
            beside `causal=True` and `residual="pre"`.
        names: those of the prefix, the table of tokens, the blocks and the last norm.
        tensors: the table of names of tensors of a block.
        further: from a `Config` to options of "embeddings" and of "logits", and the "final_norm":
            by default one as those of blocks are.
        others: the table of tensors of the stack that `names` does not have, or that are not usual.
        head: the name of the projection to logits.
        unread: as of `Architecture`.
    """
    prefix, tokens, blocks, norm = names.split()
    table = f"{tokens}.weight"
    usual = {table: "embeddings.tokens.table", blocks: entries.blocks(tensors), norm: "final_norm"}
    return Architecture(
        fields,
        lambda config: stacks.decoder(config, block, further),
        {**usual, **(others or {})},
        prefix=prefix,
        # The bias is of the logits themselves where they are tied.
        head={head: "logits.dense", f"{head}.bias": "logits.bias"},
        unread=dict(unread),
        same={table: [rf"{head}\.weight"]},
    )
