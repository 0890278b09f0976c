"""An architecture of Hugging Face as a table: what its fields mean, and names of its tensors."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import keras

from keras_attention.convert.huggingface import entries


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What a `model_type` is.

    Args:
        fields: the table of its `config.json`, of `fields.py`.
        make: from a `Config` to a model without weights; `stacks.py` has those of most.
        tensors: the table of names of tensors, of `entries.py`.
        prefix: what these names begin with in files of models with a head.
        prefix_of: the same of a class, by its name, where it is another.
        head: the table of names without the prefix, or a function of a model that returns it.
        unread: regular expressions of tensors in published files on which no output depends, each
            with the reason. These and those of `same` are of whole names without the prefix.
        unread_of: the same of a class, by its name.
        same: regular expressions of second names of a tensor, by its first. Files may have either
            or both; if both, they must be equal: `transformers` would not tie them otherwise.
        optional: names of tensors that are zeros in files without them.
        unsaid: options that files say by having a tensor or not, or that saved models of former
            releases have otherwise; or a function of a model that returns them.
        input_shape: from a `Config` to the shapes of inputs, with which weights are created.
    """

    fields: dict[str, Any]
    make: Callable[[Any], keras.Model]
    tensors: dict[str, Any]
    prefix: str = ""
    prefix_of: dict[str, str] = dataclasses.field(default_factory=dict)
    head: Any = dataclasses.field(default_factory=dict)
    unread: dict[str, str] = dataclasses.field(default_factory=dict)
    unread_of: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    same: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    optional: tuple[str, ...] = ()
    unsaid: Any = ()
    input_shape: Callable[[Any], Any] = lambda config: (None, None)

    def of_class(self, name):
        """The same with the prefix of a class."""
        return dataclasses.replace(self, prefix=self.prefix_of.get(name, self.prefix))

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
        logits = getattr(getattr(model, "decoder", model), "logits", None)
        if logits is not None and logits.name in LABELS:
            others = {name: what for name, what in head.items() if what != "logits.dense"}
            head = {**others, LABELS[logits.name]: "logits.dense"}
        return entries.of(self.tensors, model, prefix) + entries.of(head, model)


# The name of the projection to labels, which most architectures share, by the name of the logits.
LABELS = {"score": "score", "token_score": "score"}
LABELS |= {"token_classifier": "classifier", "answers": "qa_outputs"}

# Other tensors of published files: buffers, heads, and second copies

# What no model reads: tables that transformers computes anew, as versions before 4.32 saved them.
_BUFFERS = {
    r"(.*\.)?(rotary_emb(_local)?|maybe_rotary)\.(\w+_)?(inv_freq|cos_cached|sin_cached)": (
        "wavelengths of the configuration, and tables of them"
    ),
    r"(.*\.)?embeddings\.position_ids": "0, 1, 2 …",
    r"(.*\.)?embeddings\.token_type_ids": "zeros: what is taken where none are given",
    r"(encoder|decoder)\.version": "the version of the program that trained it",
}
# Tensors of heads, which a base model does not have.
_HEADS = re.compile(
    r"(lm_head|embed_out|proj_out|cls|predictions|sop_classifier|classifier|score|qa_outputs|"
    r"pre_classifier|vocab_(transform|layer_norm|projector)|head|lm_predictions|mask_predictions|"
    r"final_logits_bias|classification_head|distillation_classifier|cls_classifier|decoder\.bias)"
    r"(\..*)?"
)


def causal(name):
    """Masks of pairs that older versions saved in the attention layers, which have this `name`."""
    return {rf"(.*\.)?{name}\.(bias|masked_bias)": "the causal mask, and what masked scores are"}


class Others:
    """The names of a checkpoint beside those of the entries of a model.

    `kind` is its class of `transformers`, or None; `prefix` is what its names begin with; and
    `base` says whether it is a base model, without a head.
    """

    def __init__(self, architecture, kind, prefix, base):
        self._architecture, self._prefix, self._base = architecture, prefix, base
        of_kind = architecture.unread_of.get(kind, ())
        self._unread = [*_BUFFERS, *architecture.unread, *of_kind]

    def unread(self, name):
        """Whether no output depends on a tensor."""
        if self._base and (not name.startswith(self._prefix) or _HEADS.fullmatch(name)):
            return True
        return self._is(name, self._unread)

    def first(self, name, expected):
        """The first name of a tensor, among those of the model; None if it is no second one."""
        for first, others in self._architecture.same.items():
            if self._is(name, others) and not self.unread(name):
                return min({f"{self._prefix}{first}", first} & expected, default=None)
        return None

    def optional(self, name):
        """Whether a tensor is of zeros in files without it."""
        return self._is(name, map(re.escape, self._architecture.optional))

    def _is(self, name, patterns):
        bare = name.removeprefix(self._architecture.prefix)
        return any(re.fullmatch(pattern, bare) for pattern in patterns)
