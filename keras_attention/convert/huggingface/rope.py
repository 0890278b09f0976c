"""Rotary positions from the fields of a configuration, which have had several names and places."""

import math

from keras_attention import positions
from keras_attention.convert.huggingface.config import Config
from keras_attention.convert.huggingface.fields import count, ignored, part, read

_NUMBER = float | None
# Inside `rope_parameters`, and `rope_scaling` of files of version 4. A kind of positions reads what
# it has use for, and no more.
_INSIDE = {
    "rope_type": read(None, str),
    "type": read(None, str),
    "rope_theta": read(None, float),
    "partial_rotary_factor": read(None, float),
    "factor": read(None, _NUMBER),
    "original_max_position_embeddings": count(None),
    "attention_factor": read(None, _NUMBER),
    "beta_fast": read(None, _NUMBER),
    "beta_slow": read(None, _NUMBER),
    "mscale": read(None, _NUMBER),
    "mscale_all_dim": read(None, _NUMBER),
    "truncate": read(True),
    "low_freq_factor": read(None, float),
    "high_freq_factor": read(None, float),
    "short_factor": read(None, list),
    "long_factor": read(None, list),
    **ignored("of training", "finetuned"),
    **ignored("not read: `attention_factor` is", "attn_factor"),
}
KINDS = {kind: kind for kind in ("default", "linear", "dynamic", "yarn", "llama3", "longrope")}


def fields(length, theta=10000.0):
    """The fields of positions that all layers share, as a part of a table.

    `length` and `theta` are the defaults of the longest text and of the longest wavelength.
    """
    return {
        "rope_parameters": part(_INSIDE),
        "rope_scaling": part(_INSIDE),
        "rope_theta": read(theta, float),
        "max_position_embeddings": count(length),
        # Takes precedence over the same field inside.
        "original_max_position_embeddings": count(None),
        "partial_rotary_factor": read(None, float | None),
    }


def fields_by_type(length, bases):
    """The fields of positions of each type of layers, as a part of a table.

    `bases` has the field of the longest wavelength, and its default, of each type.
    """
    return {
        "rope_parameters": part({kind: part(_INSIDE, dict) for kind in bases}),
        "rope_scaling": part(_INSIDE),
        "max_position_embeddings": count(length),
        **{name: read(theta, float) for name, theta in bases.values()},
    }


def rotary(
    config, size, fraction=None, base="rope_theta", default=None, kinds=KINDS, layout="half_split"
):
    """The rotary positions of all layers.

    Args:
        config: the configuration.
        size: features of each head.
        fraction: the field of the part of features that is rotated; None where all are.
        base: the field of the longest wavelength.
        default: `rope_parameters` of files that lack them.
        kinds: ours by the names of kinds.
        layout: which features are a pair.
    """
    given = _given(config)
    if default and not given.values and config.values.get("rope_parameters") is None:
        given = _inside(config, default, "rope_parameters")
    kind = _kind(given, kinds)
    original = config["original_max_position_embeddings"]
    if fraction is None:
        _require_whole(kind, given, config)
        return _rotary(config, given, kind, size, size, config[base], original, layout)
    part = given["partial_rotary_factor"]
    dim = int(size * (config[fraction] if part is None else part))
    return _rotary(config, given, kind, size, dim, config[base], original, layout)


def scale(config, size):
    """The multiplier of scores of `size` features, by DeepSeek's field `mscale_all_dim` too."""
    given = _given(config)
    multiplier = given["mscale_all_dim"]
    if not multiplier or _kind(given, KINDS) == "default":
        return size**-0.5
    factor = max(1.0, _there(given, "factor"))
    return size**-0.5 * (0.1 * multiplier * math.log(factor) + 1.0) ** 2


def rotary_by_type(config, size, bases, scaled):
    """The rotary positions of each type of layers.

    Args:
        config: the configuration.
        size: features of each head.
        bases: as of `fields_by_type`.
        scaled: the types that `rope_scaling` is of.
    """
    found = {}
    for name, (base, _) in bases.items():
        given = config["rope_parameters"][name]
        if name in scaled:
            values = {**given.values, **config["rope_scaling"].values}
            given = _inside(config, values, f"rope_parameters[{name!r}]")
        kind = _kind(given, KINDS)
        _require_whole(kind, given)
        # `transformers` looks for it beside the types.
        given.require("truncate", True)
        found[name] = _rotary(config, given, kind, size, size, config[base])
    return found


def _given(config):
    """The parameters of positions; if a file has both fields, `rope_scaling` is used."""
    return config["rope_scaling"] if config["rope_scaling"].values else config["rope_parameters"]


def _inside(config, values, name):
    return Config(values, _INSIDE, f"{name} of {config.where}", model_type=config.model_type)


def _kind(given, kinds):
    name = given["rope_type"] or given["type"] or "default"
    if name not in kinds:
        raise ValueError(
            f"'rope_type' of `{given.where}` must be one of {tuple(kinds)}. Received: {name!r}"
        )
    return kinds[name]


def _require_whole(kind, *places):
    """Requires that whole heads are rotated: plain positions are of all features, whatever it is.

    The other kinds do not run there if it is another number.
    """
    if kind != "default":
        for given in places:
            given.require("partial_rotary_factor", None, 1)


def _rotary(config, given, kind, size, dim, base, original=None, layout="half_split"):
    """The rotary positions of `dim` features of `size`; what is inside wins over `base`."""
    for factors in ("short_factor", "long_factor"):
        if given[factors] is not None and len(given[factors]) != dim // 2:
            raise ValueError(
                f"{factors!r} of `{given.where}` must be {dim // 2} numbers, one for each pair of "
                f"features that are rotated. Received: {given[factors]}"
            )
    longest = config["max_position_embeddings"]
    original = original or given["original_max_position_embeddings"] or longest
    options = {} if kind == "default" else _OPTIONS[kind](given, longest, original)
    return positions.Rotary(
        base if given["rope_theta"] is None else given["rope_theta"],
        dim=None if dim == size else dim,
        scaling=None if kind == "default" else kind,
        layout=layout,
        **options,
    )


def _there(given, name):
    """A parameter that must be there, and not null."""
    if given[name] is None:
        raise ValueError(f"`{given.where}` must have a field {name!r}. Received: none")
    return given[name]


def _factor(given, longest, original):
    """`factor`; the ratio of both lengths where it is null."""
    return longest / original if given["factor"] is None else given["factor"]


def _linear(given, longest, original):
    return {"factor": _there(given, "factor")}


def _dynamic(given, longest, original):
    return {"factor": _there(given, "factor"), "original_max_length": longest}


def _llama3(given, longest, original):
    return {
        "factor": _there(given, "factor"),
        "original_max_length": original,
        "beta_fast": _there(given, "high_freq_factor"),
        "beta_slow": _there(given, "low_freq_factor"),
    }


def _yarn(given, longest, original):
    if "factor" not in given.values:
        _there(given, "factor")  # Here null means a ratio of lengths; a missing field is an error.
    factor, attention_factor = _factor(given, longest, original), given["attention_factor"]
    if attention_factor is None and given["mscale"] and given["mscale_all_dim"]:
        over, under = (
            1.0 if factor <= 1 else 0.1 * given[name] * math.log(factor) + 1.0
            for name in ("mscale", "mscale_all_dim")
        )
        attention_factor = over / under
    fast, slow = given["beta_fast"] or 32.0, given["beta_slow"] or 1.0
    if original <= 2 * math.pi * slow:
        # The ramp would span no features, where `transformers` computes another one.
        raise ValueError(
            f"'original_max_position_embeddings' of `{given.where}` must be above 2π · beta_slow, "
            f"so that some features rotate as often. Received: {original}, beta_slow={slow}"
        )
    return {
        "factor": factor,
        "original_max_length": original,
        "beta_fast": fast,
        "beta_slow": slow,
        "attention_factor": attention_factor,
        "truncate": given["truncate"],
    }


def _longrope(given, longest, original):
    return {
        "factor": max(1.0, _factor(given, longest, original)),
        "original_max_length": original,
        "short_factors": _there(given, "short_factor"),
        "long_factors": _there(given, "long_factor"),
        "attention_factor": given["attention_factor"],
    }


_OPTIONS = {
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
}
