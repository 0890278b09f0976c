"""The norms of a `TransformerBlock`, and how branches, norms and residuals are put together.

A residual is a function of x, the branches by name in their order, functions of x, and `norms`,
functions by the names of branches: `name` is what stands before a branch or, in `post`, after the
sum, `name_output` what stands after a branch in `sandwich`. `keep` is applied to a branch before it
is added: dropout.
"""

from typing import Any, Literal, TypeAlias, get_args

import keras

from keras_attention.layers.blocks import norms

NamedNorm = Literal["layer", "rms"]
NAMES = get_args(NamedNorm)
Norm: TypeAlias = NamedNorm | keras.layers.Layer | dict[str, Any]

# The branches of a block, with the beginning of the names of their parts, which are 0.1.0's.
BRANCHES = {
    "attention": "attention",
    "cross_attention": "context_attention",
    "feed_forward": "feed_forward",
}


def check(given, residual):
    """The argument `norm` of a block: a name, a layer, or a dictionary of both by branch."""
    if not isinstance(given, dict) or "class_name" in given:
        return norms.check("norm", given, NAMES)
    branches = list(BRANCHES)
    if residual == "sandwich":
        branches += map(_after, BRANCHES)
    unknown = sorted(set(given) - set(branches))
    if unknown:
        raise ValueError(
            f"`norm` of a block with residual={residual!r} must be a dictionary with keys among "
            f"{branches}. Received keys: {unknown}"
        )
    found = {}
    for branch, norm in given.items():
        names = (*NAMES, None)
        if residual == "parallel" and branch != "attention":
            names += ("shared",)
        found[branch] = norms.check(f"norm[{branch!r}]", norm, names)
    return found


def make(block, branch, shape):
    """The norms of a branch: the name, the attribute of the block, and the norm, or None."""
    for name in [branch, _after(branch)] if block.residual == "sandwich" else [branch]:
        norm = block.norm.get(name, "layer") if isinstance(block.norm, dict) else block.norm
        path = f"{name.replace(branch, BRANCHES[branch])}_norm"
        if norm == "shared":
            yield name, path, block.attention_norm
        else:
            given = path, shape, block.dtype_policy, block.layer_norm_epsilon
            yield name, path, norms.make(norm, *given)


def _after(branch):
    """The name of the norm after a branch, in a sandwich."""
    return f"{branch}_output"


def post(x, branches, norms, keep):
    """`x = norm(x + branch(x))` (Vaswani et al. 2017)."""
    for name, branch in branches.items():
        x = norms[name](x + keep(branch(x)))
    return x


def pre(x, branches, norms, keep):
    """`x = x + branch(norm(x))` (Xiong et al. 2020)."""
    for name, branch in branches.items():
        x = x + keep(branch(norms[name](x)))
    return x


def sandwich(x, branches, norms, keep):
    """`x = x + norm'(branch(norm(x)))` (Ding et al. 2021, section 3.2; Gemma 2)."""
    for name, branch in branches.items():
        x = x + keep(norms[f"{name}_output"](branch(norms[name](x))))
    return x


def parallel(x, branches, norms, keep):
    """`x = x + branch_1(norm_1(x)) + branch_2(norm_2(x))` (Wang & Komatsuzaki 2021, GPT-J)."""
    normalized = {}
    for name in branches:
        # One norm for several branches is computed once.
        norm = norms[name]
        if norm not in normalized:
            normalized[norm] = norm(x)
    for name, branch in branches.items():
        x = x + keep(branch(normalized[norms[name]]))
    return x


RESIDUALS = {"post": post, "pre": pre, "sandwich": sandwich, "parallel": parallel}
