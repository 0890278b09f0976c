"""Rotary positions from the fields of a configuration, which have had several names and places."""

import math

from keras_attention import positions
from keras_attention.convert.huggingface.config import Config
from keras_attention.convert.huggingface.fields import count, each, ignored, part, read

# Inside `rope_parameters`, and `rope_scaling` of version 4. A kind of positions reads its own.
_INSIDE = {
    **each("rope_type type", read(None, str)),
    **each("rope_theta partial_rotary_factor low_freq_factor high_freq_factor", read(None, float)),
    **each(
        "factor attention_factor beta_fast beta_slow mscale mscale_all_dim",
        read(None, float | None),
    ),
    "original_max_position_embeddings": count(None),
    "truncate": read(True),
    **each("short_factor long_factor", read(None, list)),
    **ignored("of training", "finetuned"),
    **ignored("not read: `attention_factor` is", "attn_factor"),
}
KINDS = {kind: kind for kind in ("default", "linear", "dynamic", "yarn", "llama3", "longrope")}


def fields(length, theta=10000.0):
    """Fields that all layers share, with defaults of the longest text and wavelength."""
    return {
        **each("rope_parameters rope_scaling", part(_INSIDE)),
        "rope_theta": read(theta, float),
        "max_position_embeddings": count(length),
        # Takes precedence over the same field inside.
        "original_max_position_embeddings": count(None),
        "partial_rotary_factor": read(None, float | None),
    }


def fields_by_type(length, bases):
    """Fields of types of layers; `bases` has that of each longest wavelength, and its default."""
    return {
        "rope_parameters": part({kind: part(_INSIDE, dict) for kind in bases}),
        "rope_scaling": part(_INSIDE),
        "max_position_embeddings": count(length),
        **{name: read(theta, float) for name, theta in bases.values()},
    }


def rotary(
    config,
    size,
    fraction=None,
    base="rope_theta",
    default=None,
    kinds=KINDS,
    layout="half_split",
    given=None,
):
    """The rotary positions of all layers, whose heads have `size` features.

    `fraction` is the field of the part of features that is rotated, None where all are; `base` that
    of the longest wavelength; `default` has `rope_parameters` of files that lack them; `kinds` has
    ours by the names of kinds; `layout` says which features are a pair; and `given` has parameters
    that replace those of the configuration.
    """
    original = None
    if given is None:
        given, original = _given(config), config["original_max_position_embeddings"]
        if default and not given.values and config.values.get("rope_parameters") is None:
            given = _inside(config, default, "rope_parameters")
    kind, part, dim = _kind(given, kinds), given["partial_rotary_factor"], size
    if fraction is not None:
        dim = int(size * (config[fraction] if part is None else part))
    elif kind != "default":
        # Plain positions are of all features, whatever it is, and others do not run there.
        given.require("partial_rotary_factor", None, 1)
        if config.get("partial_rotary_factor") is not None:
            config.require("partial_rotary_factor", None, 1)
    for factors in ("short_factor", "long_factor"):
        if given[factors] is not None and len(given[factors]) != dim // 2:
            wanted = f"{dim // 2} numbers, one for each pair of features that are rotated"
            given.refuse(factors, wanted, given[factors])
    longest = config["max_position_embeddings"]
    original = original or given["original_max_position_embeddings"] or longest
    return positions.Rotary(
        config[base] if given["rope_theta"] is None else given["rope_theta"],
        dim=None if dim == size else dim,
        scaling=None if kind == "default" else kind,
        layout=layout,
        **_options(given, kind, longest, original),
    )


def scale(config, size):
    """The multiplier of scores of `size` features, by DeepSeek's field `mscale_all_dim` too."""
    given = _given(config)
    multiplier = given["mscale_all_dim"]
    if not multiplier or _kind(given, KINDS) == "default":
        return size**-0.5
    return size**-0.5 * _multiplier(multiplier, _there(given, "factor")) ** 2


def rotary_by_type(config, size, bases, scaled):
    """The rotary positions of each type of layers; `rope_scaling` is of the types `scaled`."""
    found = {}
    for name, (base, _) in bases.items():
        given = config["rope_parameters"][name]
        if name in scaled:
            values = {**given.values, **config["rope_scaling"].values}
            given = _inside(config, values, f"rope_parameters[{name!r}]")
        # `transformers` looks for it beside the types.
        given.require("truncate", True)
        found[name] = rotary(config, size, base=base, given=given)
    return found


def _given(config):
    """The parameters of positions; if a file has both fields, `rope_scaling` is used."""
    return config["rope_scaling"] if config["rope_scaling"].values else config["rope_parameters"]


def _inside(config, values, name):
    return Config(values, _INSIDE, f"{name} of {config.where}", model_type=config.model_type)


def _kind(given, kinds):
    name = given["rope_type"] or given["type"] or "default"
    if name not in kinds:
        given.refuse("rope_type", f"one of {tuple(kinds)}", repr(name))
    return kinds[name]


def _there(given, name):
    """A parameter that must be there, and not null."""
    if given[name] is None:
        raise ValueError(f"`{given.where}` must have a field {name!r}. Received: none")
    return given[name]


def _multiplier(given, factor):
    """YaRN's multiplier of vectors whose wavelengths are multiplied by a factor."""
    return 1.0 if factor <= 1 else 0.1 * given * math.log(factor) + 1.0


def _options(given, kind, longest, original):
    """The options of a kind of scaling, by its parameters and both lengths."""
    if kind == "default":
        return {}
    if (kind == "yarn" and "factor" in given.values) or kind == "longrope":
        # Null is the ratio of both lengths.
        factor = longest / original if given["factor"] is None else given["factor"]
    else:
        factor = _there(given, "factor")
    if kind == "linear":
        return {"factor": factor}
    options = {"factor": factor, "original_max_length": longest if kind == "dynamic" else original}
    if kind == "dynamic":
        return options
    if kind == "llama3":
        fast, slow = (_there(given, name) for name in ("high_freq_factor", "low_freq_factor"))
        return {**options, "beta_fast": fast, "beta_slow": slow}
    options["attention_factor"] = given["attention_factor"]
    if kind == "longrope":
        factors = {f"{name}_factors": _there(given, f"{name}_factor") for name in ("short", "long")}
        return {**options, **factors, "factor": max(1.0, factor)}
    if given["attention_factor"] is None and given["mscale"] and given["mscale_all_dim"]:
        over, under = (_multiplier(given[name], factor) for name in ("mscale", "mscale_all_dim"))
        options["attention_factor"] = over / under
    fast, slow = given["beta_fast"] or 32.0, given["beta_slow"] or 1.0
    if original <= 2 * math.pi * slow:
        # The ramp would span no features, where `transformers` computes another one.
        wanted = "above 2π · beta_slow, so that some features rotate as often"
        given.refuse("original_max_position_embeddings", wanted, f"{original}, beta_slow={slow}")
    return {**options, "beta_fast": fast, "beta_slow": slow, "truncate": given["truncate"]}
