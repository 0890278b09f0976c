"""Tensors that published files have beside those of a model: buffers, heads, and second copies.

An `Architecture` has two tables of regular expressions, of whole names without its `prefix`:

- `unread`: tensors that no output depends on, each with the reason; `unread_of` has further ones,
  by the name of a class. What is in neither table, and not of the model, is an error.
- `same`: second names of a tensor, by its first. Files may have either or both; if both, they must
  be equal: `transformers` would not tie them otherwise.

`optional` are names of tensors that are zeros in files without them.
"""

import re

# Tables that transformers computes anew: versions before 4.32 saved them, and ignore them now.
ROTARY = {
    r"(.*\.)?(rotary_emb(_local)?|maybe_rotary)\.(\w+_)?(inv_freq|cos_cached|sin_cached)": (
        "wavelengths of the configuration, and tables of them"
    )
}
COUNTED = {
    r"(.*\.)?embeddings\.position_ids": "0, 1, 2 …",
    r"(.*\.)?embeddings\.token_type_ids": "zeros: what is taken where none are given",
}
VERSION = {r"(encoder|decoder)\.version": "the version of the program that trained it"}
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

    Args:
        architecture: with the tables.
        kind: the class of the model, a name of `transformers`; None is the base model.
        prefix: what the names of the model begin with.
        base: whether it is a base model, without a head.
    """

    def __init__(self, architecture, kind, prefix, base):
        unread = {**architecture.unread, **architecture.unread_of.get(kind, {})}
        self._unread = re.compile("|".join(f"(?:{pattern})" for pattern in unread) or r"(?!)")
        same = architecture.same.items()
        self._same = [(re.compile(other), name) for name, others in same for other in others]
        self._optional = architecture.optional
        self._first, self._prefix, self._base = architecture.prefix, prefix, base

    def unread(self, name):
        """Whether no output depends on a tensor."""
        if self._unread.fullmatch(self._bare(name)):
            return True
        if not self._base:
            return False
        outside = bool(self._prefix) and not name.startswith(self._prefix)
        return outside or _HEADS.fullmatch(name) is not None

    def first(self, name, expected):
        """The first name of a tensor, among those of the model; None if it is no second one."""
        if self.unread(name):
            return None
        bare = self._bare(name)
        for other, first in self._same:
            if other.fullmatch(bare):
                found = {f"{self._prefix}{first}", first} & expected
                return min(found, default=None)
        return None

    def optional(self, name):
        """Whether a tensor is of zeros in files without it."""
        return self._bare(name) in self._optional

    def _bare(self, name):
        return name.removeprefix(self._first)
