"""Names for the types of arguments that many signatures share.

They tell readers, editors and type checkers which types are accepted, and check nothing at run
time. The types of a slot are defined beside it: `scores.ScoreLike` and the like.
"""

from collections.abc import Callable
from typing import Any, TypeAlias
from typing import Unpack as Unpack

# Keras has no static type of tensors. One is a tensor of any backend, a symbolic `KerasTensor`, and
# where it is given an array of NumPy or nested numbers too.
Tensor: TypeAlias = Any
# Tensors in tuples, lists and dictionaries of any structure, one tensor by itself among them.
Tensors: TypeAlias = Any
# How tokens are counted: "tokens", "places", or integers.
Positions: TypeAlias = Any
# What `make_cache` and `cache_context` return.
Cache: TypeAlias = dict[str, Tensor]
# A name such as "float32", or a dtype of NumPy or of a backend.
Dtype: TypeAlias = Any
# An integer, a `keras.random.SeedGenerator`, or None for Keras's own.
Seed: TypeAlias = Any

# A saved object, as `keras.saving.serialize_keras_object` makes it.
Config: TypeAlias = dict[str, Any]
# What the `get` functions of Keras take: a name, a saved object, or the object, which is callable.
Activation: TypeAlias = str | Config | Callable[..., Any]
Initializer: TypeAlias = str | Config | Callable[..., Any]
Regularizer: TypeAlias = str | Config | Callable[..., Any]
Constraint: TypeAlias = str | Config | Callable[..., Any]
