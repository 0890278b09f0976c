"""Adapters in the format of `peft`: low-rank updates of tensors, read onto a model and written.

A pair of matrices, A (r, inputs) and B (outputs, r), adds `scale · B A` to the tensor of a module.
Which variables a tensor fills is what the tables of names say, so every architecture has adapters.
"""

import functools
import json
import math
import pathlib
import re
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_attention.convert.huggingface import fields, tensors, writing
from keras_attention.convert.huggingface.config import Config, read_json
from keras_attention.convert.huggingface.entries import Entry
from keras_attention.core import keras_private
from keras_attention.models import EncoderDecoder

FILE, _START = "adapter_model.safetensors", "base_model.model."
FIELDS = {
    "peft_type": fields.Field(object, fields.NEEDED, ("LORA",)),
    **fields.defaults(
        r=8, use_rslora=False, ensure_weight_tying=False, lora_alpha=fields.read(8.0)
    ),
    **fields.each("rank_pattern alpha_pattern", fields.read(None, dict | None)),
    # Others change the weights that they start from.
    "init_lora_weights": fields.only(True, False, None, "gaussian", "eva", "orthogonal"),
    **fields.off("use_dora lora_bias use_qalora use_bdlora layer_replication megatron_config"),
    **fields.off("trainable_token_indices alora_invocation_tokens arrow_config monteclora_config"),
    **fields.ignored_by_reason("""
the names of tensors say which modules there are:
    target_modules target_parameters exclude_modules modules_to_save bias layers_to_transform
    layers_pattern task_type
the tables of the model say how a matrix is stored: fan_in_fan_out
of training, and how it began:
    lora_dropout inference_mode loftq_config eva_config corda_config lora_ga_config runtime_config
    qalora_group_size
of the program that wrote the file:
    auto_mapping peft_version base_model_name_or_path revision megatron_core
"""),
}
_PAIR = re.compile(r"(.+)\.lora_((?:embedding_)?[AB])(?:\.default)?(?:\.weight)?")
# What `peft` puts between the name of a module and that of its tensor.
_WRAPPED = re.compile(r"\.(base_layer|modules_to_save(\.default)?)(?=\.|$)")
_TASKS = {"CausalLM": "CAUSAL_LM", "LMHeadModel": "CAUSAL_LM", "MTModel": "SEQ_2_SEQ_LM"}
_TASKS |= {"ForConditionalGeneration": "SEQ_2_SEQ_LM", "ForSequenceClassification": "SEQ_CLS"}
_TASKS |= {"ForTokenClassification": "TOKEN_CLS", "ForQuestionAnswering": "QUESTION_ANS"}


class Pair(NamedTuple):
    """What is added to a tensor."""

    entry: Entry
    first: np.ndarray  # A (r, inputs)
    second: np.ndarray  # B (outputs, r)
    # Whether the tensor is (inputs, outputs).
    flipped: bool
    # The number of experts, each of which has a part of both; else None.
    experts: int | None = None
    scale: float = 1.0

    def update(self):
        """What is added, in the layout of the tensor."""
        if self.experts is None:
            found = self.scale * (self.second @ self.first)
            return found.T if self.flipped else found
        first = self.first.reshape(self.experts, -1, self.first.shape[1])
        second = self.second.reshape(len(self.second), -1, self.experts)
        axes = "ore,eri->eio" if self.flipped else "ore,eri->eoi"
        return self.scale * np.einsum(axes, second, first)


def load(architecture, model, folder, merge):
    """Reads an adapter onto the variables of a model: see `load_adapter`."""
    if any(getattr(x, "lora_enabled", False) for x in keras_private.sublayers(model)):
        raise ValueError(
            "`model` must have no adapters beside its weights: merge all but the last. "
            f"Received: {model!r} with adapters"
        )
    whole, pairs = _read(architecture, model, pathlib.Path(folder))
    layers = None if merge else _layers(pairs, model)
    changes = [(entry, lambda x=x: x) for entry, x in whole]
    changes += [(pair.entry, pair.update) for pair in pairs if merge]

    @functools.lru_cache(1)
    def parts(n):
        entry, update = changes[n]
        return entry.split(update())

    variables: dict[int, tuple[Any, list[tuple[int, int]]]] = {}
    for n, (entry, _) in enumerate(changes):
        for m, variable in enumerate(entry.variables):
            variables.setdefault(id(variable), (variable, []))[1].append((n, m))
    for variable, places in variables.values():
        given = keras.ops.convert_to_numpy(variable)
        found = np.array(given, np.promote_types("float32", given.dtype))
        for n, m in places:
            at = changes[n][0].at
            # A view of all of it, or of one index.
            where = found[...] if at is None else found[at : at + 1]
            if n < len(whole):
                where[...] = 0
            where += parts(n)[m].reshape(where.shape)
        variable.assign(found)
    if layers is not None:
        for variable in model.variables:
            variable.trainable = any(variable is x for entry, _ in whole for x in entry.variables)
        for pair in pairs:
            _attach(pair, layers)


def _read(architecture, model, folder):
    """The tensors that an adapter replaces, with their entries, and its pairs."""
    path = folder / writing.ADAPTER
    values = read_json(path, f"`folder` must have an `{writing.ADAPTER}` of an adapter of `peft`")
    if not isinstance(values, dict):
        raise ValueError(f"`{path}` must be an object. Received: {values!r}")
    config = Config(values, FIELDS, str(path), model_type="an adapter")
    if not (folder / FILE).is_file():
        hint = tensors.other_formats(folder)
        raise ValueError(f"`{folder}` must have `{FILE}`. Received: no such file{hint}")
    file = tensors.File(folder / FILE)
    names = _Names(architecture, model, config["ensure_weight_tying"])
    whole: dict[str, tuple[Entry, list[np.ndarray]]] = {}
    found: dict[str, dict[str, str]] = {}
    pairs: dict[str, Pair] = {}
    unknown = []
    for key in sorted(file.tensors):
        name = key.removeprefix(_START)
        if match := _PAIR.fullmatch(name):
            found.setdefault(match[1], {})[match[2]] = key
        elif entry := names.entry(name):
            whole.setdefault(entry.name, (entry, []))[1].append(file[key])
        else:
            unknown.append(key)
    for module, keys in found.items():
        kinds = sorted(keys)
        pair = names.pair(module, kinds[0], *(file[keys[x]] for x in kinds))
        if pair is None:
            unknown += keys.values()
        else:
            # Of a tensor with two names once: their pairs are one.
            scale = _scale(config, _WRAPPED.sub("", module), pair)
            pairs.setdefault(pair.entry.name, pair._replace(scale=scale))
    if unknown:
        raise ValueError(
            f"The tensors of `{folder / FILE}` must be pairs A and B of modules of the model, or "
            f"its tensors, in their shapes. Received: {len(unknown)} others, {unknown[:4]}"
        )
    return [(entry, names.one(entry, *given)) for entry, given in whole.values()], [*pairs.values()]


def _scale(config, module, pair):
    """The multiplier of a product, of a module."""

    def of_module(name, pattern):
        try:
            given = (config[pattern] or {}).items()
            found = [float(x) for key, x in given if re.fullmatch(rf"(.*\.)?({key})", module)]
        except (re.error, TypeError, ValueError) as error:
            config.refuse(pattern, "of regular expressions and numbers", f"{error}")
        return found[0] if found else config[name]

    rank = len(pair.first) / (pair.experts or 1)
    given = of_module("r", "rank_pattern")
    if given != rank:
        config.refuse("r", f"the rank of the matrices of {module!r}", f"{given:g} and {rank:g}")
    return of_module("lora_alpha", "alpha_pattern") / rank ** (0.5 if config["use_rslora"] else 1)


class _Names:
    """The entries of a model by the names of their tensors, with the prefix of a head or not."""

    def __init__(self, architecture, model, tied):
        self._prefix, self._same, self._tied = architecture.prefix, architecture.same, tied
        found = architecture.entries(model, architecture.prefix)
        self._entries = {self._bare(entry.name): entry for entry in found}
        self._fused = {self._bare(entry.name): entry for entry in _fused(found)}
        logits = getattr(model, "decoder", model).logits
        shared = isinstance(model, EncoderDecoder) or (logits is not None and logits.tied)
        # Matrices that a model has once and `transformers` under several names.
        names = [name for name in self._same if shared and name.endswith(".weight")]
        self._shared = {self._entries[x].name for x in names if x in self._entries}

    def _bare(self, name):
        return _WRAPPED.sub("", name).removeprefix(self._prefix)

    def entry(self, name):
        """The entry of a tensor; None if there is none."""
        name = self._bare(name)
        for first, others in self._same.items():
            if any(re.fullmatch(other, name) for other in others) and name not in self._entries:
                name = first
        return self._entries.get(name)

    def pair(self, module, kind, first, second=None):
        """The `Pair` of a module; None if there is no tensor of these shapes."""
        entry = self.entry(f"{module}.weight")
        if entry is not None and entry.name in self._shared and not self._tied:
            raise ValueError(
                f"An adapter must not change {module!r} of a model that has one tensor for its "
                "tokens and its logits, of which `peft` changes one. Received: "
                f"{entry.name!r}, and tied logits"
            )
        if second is None or len(first) != second.shape[1]:
            return None
        if entry is not None:
            found = [(entry, kind == "embedding_A" or entry.inputs_first)]
        else:
            # Of experts: the shape tells it from others of the module. If it is square, files of
            # one tensor are (inputs, outputs), and those of a tensor for each expert are not.
            found = [
                (x, flipped)
                for table, orders in ((self._entries, (True, False)), (self._fused, (False, True)))
                for name, x in table.items()
                if len(x.shape()) == 3 and name.rpartition(".")[0] == self._bare(module)
                for flipped in orders
            ]
        for entry, flipped in found:
            *count, rows, columns = entry.shape()
            shape = (first.shape[1], len(second)) if flipped else (len(second), first.shape[1])
            if shape == (rows, columns) and not len(first) % (count or [1])[0]:
                arrays = np.asarray(first, "float32"), np.asarray(second, "float32")
                return Pair(entry, *arrays, flipped, *count)
        return None

    def one(self, entry, first, *others):
        """The tensor that replaces another, given by one or more names."""
        if entry.name in self._shared and not others:
            others = (entry.join(entry.arrays()),)
        if first.shape != entry.shape() or any(not np.array_equal(first, x) for x in others):
            raise ValueError(
                f"{entry.name!r} of an adapter must be of the shape {entry.shape()}, and equal "
                "to its second names, of which the model has no tensor. Received: "
                f"shape {first.shape}, and {len(others)} others"
            )
        return first


def _fused(found):
    """Parameters of all experts, as in `transformers` 5, where files have tensors of each."""
    modules: dict[str, list[Any]] = {}
    for entry in found:
        if entry.at == 0 and ".experts.0." in entry.name:
            module = entry.name.rpartition(".experts.")[0].replace("block_sparse_moe", "mlp")
            modules.setdefault(f"{module}.experts", []).append(entry.variables[0])

    def split(count, x):
        return np.split(x.swapaxes(1, 2), count, axis=2)

    def join(arrays):
        return np.concatenate(arrays, axis=2).swapaxes(1, 2)

    for module, (*into, out) in modules.items():
        for name, kernels in (("gate_up_proj", into), ("down_proj", [out])):
            parts = functools.partial(split, len(kernels))
            yield Entry(f"{module}.{name}", tuple(kernels), parts, join)


# As adapters of Keras, whose kernel is `a b` of (..., rank) and (rank, outputs)


def _layers(pairs, model):
    """The layers of a model by their kernels, which the pairs must be of."""
    dense = (keras.layers.Dense, keras.layers.EinsumDense)
    layers = {id(x.kernel): x for x in keras_private.sublayers(model) if isinstance(x, dense)}
    others = [x.entry.name for x in pairs if any(id(v) not in layers for v in x.entry.variables)]
    if others:
        raise ValueError(
            "Only dense layers have adapters in Keras: read this one with `merge=True`. "
            f"Received: {len(others)} tensors of no dense layer, {others[:4]}"
        )
    return layers


def _attach(pair, layers):
    """Enables adapters in the layers of a tensor, with the values of a pair."""
    entry = pair.entry
    parts = entry.split(pair.second.T if entry.inputs_first else pair.second)
    for variable, part in zip(entry.variables, parts, strict=True):
        *inputs, last = variable.shape
        a, b = pair.first.T, part.reshape(len(pair.first), -1)
        if math.prod(inputs) != len(a):
            # Heads share b in Keras, and do not here: it has all their features then.
            a, b = a @ b, np.eye(last)
        layer = layers[id(variable)]
        layer.enable_lora(len(b), lora_alpha=pair.scale * len(b))
        layer.lora_kernel_a.assign(a.reshape(*inputs, len(b)))
        layer.lora_kernel_b.assign(b)


def save(architecture, model, folder, prefix, base):
    """Writes the adapters of a model, and what else trains: see `save_adapter`."""
    from safetensors.numpy import save_file

    adapted = [x for x in keras_private.sublayers(model) if getattr(x, "lora_enabled", False)]
    try:
        # So that kernels are the variables, not the sums of these and the adapters.
        for layer in adapted:
            layer.lora_enabled = False
        entries = architecture.entries(model, prefix)
        layers = {id(getattr(x, "kernel", None)): x for x in adapted}
    finally:
        for layer in adapted:
            layer.lora_enabled = True
    scale = adapted[0].lora_alpha / adapted[0].lora_rank if adapted else 1.0
    arrays: dict[str, np.ndarray] = {}
    ranks: dict[str, int] = {}
    whole = set()
    for entry in entries:
        module = entry.name.rpartition(".")[0]
        if any(id(x) in layers for x in entry.variables):
            both = _matrices(entry, layers, scale)
            arrays |= {f"{module}.lora_{x}.weight": y for x, y in zip("AB", both, strict=True)}
            ranks[module] = len(both[0])
        elif any(x.trainable for x in entry.variables):
            arrays[entry.name] = entry.join(entry.arrays())
            whole.add(module)
    seen = {id(x) for entry in entries for x in entry.variables}
    others = [x.path for key, x in layers.items() if key not in seen]
    if others or not adapted:
        raise ValueError(
            "`model` must have adapters, such as those of `enable_lora`, all in tensors that its "
            f"folder has. Received: {len(adapted)} adapters, and those of no tensor: {others}"
        )
    rank = max(ranks.values(), key=list(ranks.values()).count)
    patterns = {re.escape(module): n for module, n in ranks.items() if n != rank}
    kind = (model.metadata["huggingface"].get("architectures") or ["Model"])[0]
    values = {
        "peft_type": "LORA",
        "task_type": next((task for end, task in _TASKS.items() if kind.endswith(end)), None),
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": scale * rank,
        "rank_pattern": patterns,
        "alpha_pattern": {module: scale * n for module, n in patterns.items()},
        "target_modules": sorted(ranks),
        "modules_to_save": sorted(whole - ranks.keys()) or None,
        "bias": "all" if whole & ranks.keys() else "none",
        "fan_in_fan_out": any(x.inputs_first for x in entries),
        "inference_mode": True,
    }
    arrays = {_START + name: np.ascontiguousarray(x, "float32") for name, x in arrays.items()}
    folder, text = pathlib.Path(folder), json.dumps(values, indent=2, sort_keys=True) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    writing.replace(folder / FILE, lambda path: save_file(arrays, path, {"format": "pt"}))
    writing.replace(folder / writing.ADAPTER, lambda x: x.write_text(text, encoding="utf-8"))


def _matrices(entry, layers, scale):
    """A and B, for a scale, of a tensor, some of whose variables have adapters."""
    size = entry.shape()[0 if entry.inputs_first else 1]
    firsts, seconds = [np.zeros((0, size))], []
    for variable in entry.variables:
        shape, layer = variable.shape, layers.get(id(variable))
        axes = next(n for n in range(len(shape)) if math.prod(shape[:n]) == size)
        a, b, heads = np.zeros((0, size)), np.zeros((0, *shape[axes:])), math.prod(shape[axes:-1])
        if layer is not None:
            a, b = map(keras.ops.convert_to_numpy, (layer.lora_kernel_a, layer.lora_kernel_b))
            b = b * (layer.lora_alpha / layer.lora_rank / scale)
            a = a.reshape(size, -1).T
            # Each head has rows of A of its own.
            b = np.einsum("gh,rk->grhk", np.eye(heads), b).reshape(len(a), *shape[axes:])
        firsts.append(a)
        seconds.append(b)
    ranks = np.cumsum([len(a) for a in firsts])
    wide = [
        np.concatenate([np.zeros((n, *b.shape[1:])), b, np.zeros((ranks[-1] - m, *b.shape[1:]))])
        for n, m, b in zip(ranks[:-1], ranks[1:], seconds, strict=True)
    ]
    second = entry.join(wide)
    return np.concatenate(firsts), second.T if entry.inputs_first else second
