"""An architecture of Hugging Face as a table: what its fields mean, and names of its tensors."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import keras

from keras_attention.convert.huggingface import entries


def _of_tokens(config):
    return (None, None)


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
    input_shape: Callable[[Any], Any] = _of_tokens

    def model(self, config, dtype):
        """The model of a configuration, of a dtype policy, without weights."""
        with _policy(dtype):
            return self.make(config)

    def entries(self, model, prefix):
        """The tensors of a model; `prefix` is what their names begin with: its own or nothing."""
        head = self.head(model) if callable(self.head) else self.head
        return entries.of(self.tensors, model, prefix) + entries.of(head, model)


def language_model(fields, make, tokens, tensors, prefix, head="lm_head", unread=None):
    """The `Architecture` of a `Decoder`, whose logits may be tied.

    `tokens` and `head` are the names of the table of tokens and of the projection to logits.
    """
    return Architecture(
        fields,
        make,
        {f"{tokens}.weight": "embeddings.tokens.table", **tensors},
        prefix=prefix,
        # The bias is of the logits themselves where they are tied.
        head={head: "logits.dense", f"{head}.bias": "logits.bias"},
        unread=unread or {},
        same={f"{tokens}.weight": [rf"{head}\.weight"]},
    )


@contextlib.contextmanager
def _policy(dtype):
    """Layers that are made here have a dtype policy; None is the one that is set."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(before if dtype is None else dtype)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
