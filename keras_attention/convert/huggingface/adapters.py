"""Adapters in the format of `peft`: low-rank updates of tensors, read onto a model and written.

A pair of matrices, A (r, inputs) and B (outputs, r), adds `scale · B A` to the tensor of a module.
Which variables a tensor fills is what the tables of names say, so every architecture has adapters.
"""

import contextlib
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
_PAIR = re.compile(r"(.+)\.lora_(embedding_)?([AB])(?:\.default)?(?:\.weight)?")
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
    # Of experts, of which both matrices have a part each; else None.
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
    changes: dict[int, tuple[Any, list[Any]]] = {}
    for entry, update, replaces in (
        *((entry, lambda x=x: x, True) for entry, x in whole),
        *((pair.entry, pair.update, False) for pair in pairs if merge),
    ):
        # Of several variables the tensor is made once.
        split = functools.cache(lambda entry=entry, update=update: entry.split(update()))
        for n, variable in enumerate(entry.variables):
            change = entry.at, lambda n=n, split=split: split()[n], replaces
            changes.setdefault(id(variable), (variable, []))[1].append(change)
    for variable, parts in changes.values():
        _change(variable, parts)
    if layers is None:
        return
    for variable in model.variables:
        variable.trainable = False
    for entry, _ in whole:
        for variable in entry.variables:
            variable.trainable = True
    for pair in pairs:
        _attach(pair, layers)


def _change(variable, parts):
    """Adds arrays to a variable, or puts them there; each is of all of it, or of one index."""
    given = keras.ops.convert_to_numpy(variable)
    found = np.array(given, np.promote_types("float32", given.dtype))
    for at, part, replaces in parts:
        where = found if at is None else found[at]
        np.copyto(where, part().reshape(where.shape) + (0 if replaces else where))
    variable.assign(found)


# Reading


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
    whole: dict[str, tuple[Entry, dict[str, np.ndarray]]] = {}
    found: dict[str, dict[str, str]] = {}
    unknown = []
    for key in sorted(file.tensors):
        match = _PAIR.fullmatch(key.removeprefix(_START))
        if match:
            found.setdefault(match[1], {})[match[3]] = key
            continue
        name = _WRAPPED.sub("", key.removeprefix(_START))
        entry = names.entry(name)
        if entry is None:
            unknown.append(key)
        else:
            whole.setdefault(entry.name, (entry, {}))[1][name] = file[key]
    pairs: dict[str, Pair] = {}
    for module, keys in found.items():
        pair = None
        if len(keys) == 2:
            first, second = (np.asarray(file[keys[x]], "float32") for x in "AB")
            embedding = "embedding" in keys["A"]
            pair = names.pair(_WRAPPED.sub("", module), first, second, embedding)
        if pair is None:
            unknown += keys.values()
        else:
            # Of a tensor with two names once: their pairs are one.
            pairs.setdefault(pair.entry.name, pair._replace(scale=_scale(config, module, pair)))
    if unknown:
        raise ValueError(
            f"The tensors of `{folder / FILE}` must be pairs A and B of modules of the model, or "
            f"its tensors, in their shapes. Received: {len(unknown)} others, {unknown[:4]}"
        )
    replaced = [(entry, names.one(entry, given)) for entry, given in whole.values()]
    return replaced, list(pairs.values())


def _scale(config, module, pair):
    """The multiplier of a product, of a module."""
    module, given = _WRAPPED.sub("", module), {}
    for name, pattern in (("r", "rank_pattern"), ("lora_alpha", "alpha_pattern")):
        given[name] = config[name]
        for key, value in (config[pattern] or {}).items():
            try:
                found = re.fullmatch(rf"(.*\.)?({key})", module)
            except re.error as error:
                config.refuse(pattern, "names or regular expressions", f"{key!r}, {error}")
            if found:
                if type(value) not in (int, float) or value <= 0:
                    config.refuse(pattern, "of positive numbers", f"{key!r}: {value!r}")
                given[name] = value
                break
    rank = len(pair.first) / (pair.experts or 1)
    if given["r"] != rank:
        config.refuse("r", f"the rank of the matrices of {module!r}", f"{given['r']} and {rank:g}")
    return given["lora_alpha"] / (rank**0.5 if config["use_rslora"] else rank)


class _Names:
    """The entries of a model by the names of their tensors, with the prefix of a head or not."""

    def __init__(self, architecture, model, tied):
        self._prefix, self._same, self._tied = architecture.prefix, architecture.same, tied
        found = architecture.entries(model, architecture.prefix)
        self._entries = {self._bare(entry.name): entry for entry in found}
        self._fused = {self._bare(name): entry for name, entry in _fused(found)}
        logits = getattr(model, "decoder", model).logits
        shared = isinstance(model, EncoderDecoder) or (logits is not None and logits.tied)
        # Those of a tensor that a model has once and `transformers` under several names.
        self._shared = {
            self._entries[name].name
            for name in self._same
            if shared and name in self._entries and name.endswith(".weight")
        }

    def _bare(self, name):
        return name.removeprefix(self._prefix)

    def entry(self, name):
        """The entry of a tensor; None if there is none."""
        name = self._bare(name)
        for first, others in self._same.items():
            if any(re.fullmatch(other, name) for other in others) and name not in self._entries:
                name = first
        return self._entries.get(name)

    def pair(self, module, first, second, embedding):
        """The `Pair` of a module; None if there is no tensor of these shapes."""
        entry = self.entry(f"{module}.weight")
        if entry is None:
            return self._of_experts(module, first, second)
        if entry.name in self._shared and not self._tied:
            raise ValueError(
                f"An adapter must not change {module!r} of a model that has one tensor for its "
                "tokens and its logits, of which `peft` changes one. Received: "
                f"{entry.name!r}, and tied logits"
            )
        flipped = embedding or entry.inputs_first
        shape = (first.shape[1], len(second))[:: 1 if flipped else -1]
        fits = entry.shape() == shape and len(first) == second.shape[1]
        return Pair(entry, first, second, flipped) if fits else None

    def _of_experts(self, module, first, second):
        """That of a parameter of all experts, which its shape tells from others of the module."""
        for found, order in ((self._entries, (True, False)), (self._fused, (False, True))):
            for name, entry in found.items():
                if name.rpartition(".")[0] != self._bare(module) or len(entry.shape()) != 3:
                    continue
                count, *sizes = entry.shape()
                for flipped in order:
                    wanted = [first.shape[1], len(second)][:: 1 if flipped else -1]
                    if wanted == sizes and len(first) == second.shape[1] and not len(first) % count:
                        return Pair(entry, first, second, flipped, count)
        return None

    def one(self, entry, given):
        """The tensor that replaces another, given by one or more names."""
        first, *others = given.values()
        if entry.name in self._shared and not others:
            others = [entry.join(entry.arrays())]
        if first.shape != entry.shape() or any(not np.array_equal(first, x) for x in others):
            raise ValueError(
                f"{sorted(given)} of an adapter must be of the shape {entry.shape()}, and equal "
                "where the model has one tensor for several. Received: "
                f"shape {first.shape}, and {len(others)} other"
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
            name, count = f"{module}.{name}", len(kernels)
            yield name, Entry(name, tuple(kernels), functools.partial(split, count), join)


# As adapters of Keras, whose kernel is `a b` of (..., rank) and (rank, outputs)


def _layers(pairs, model):
    """The layers of a model by their kernels, which the pairs must be of."""
    dense = (keras.layers.Dense, keras.layers.EinsumDense)
    found = [x for x in keras_private.sublayers(model) if isinstance(x, dense)]
    layers = {id(x.kernel): x for x in found}
    others = [x.entry.name for x in pairs if any(id(v) not in layers for v in x.entry.variables)]
    if others:
        raise ValueError(
            "Only dense layers have adapters in Keras: read this one with `merge=True`. "
            f"Received: {len(others)} tensors of no dense layer, {others[:4]}"
        )
    return layers


def _attach(pair, layers):
    """Enables adapters in the layers of a tensor, with the values of a pair."""
    entry, rank = pair.entry, len(pair.first)
    parts = entry.split(pair.second.T if entry.inputs_first else pair.second)
    for variable, part in zip(entry.variables, parts, strict=True):
        *inputs, last = variable.shape
        a, b = pair.first.T, part.reshape(rank, -1)
        if math.prod(inputs) != len(a):
            # Heads share b in Keras, and do not here: it has all their features then.
            a, b = a @ b, np.eye(last)
        layer, count = layers[id(variable)], len(b)
        layer.enable_lora(count, lora_alpha=pair.scale * count)
        layer.lora_kernel_a.assign(a.reshape(*inputs, count))
        layer.lora_kernel_b.assign(b)


# Writing


def save(architecture, model, folder, prefix, base):
    """Writes the adapters of a model, and what else trains: see `save_adapter`."""
    from safetensors.numpy import save_file

    adapted = [x for x in keras_private.sublayers(model) if getattr(x, "lora_enabled", False)]
    with _without_adapters(adapted):
        entries = architecture.entries(model, prefix)
        layers = {id(getattr(x, "kernel", None)): x for x in adapted}
    scale = adapted[0].lora_alpha / adapted[0].lora_rank if adapted else 1.0
    arrays, ranks, whole, written = {}, {}, [], set()
    for entry in entries:
        module = entry.name.rpartition(".")[0]
        own = [layers.get(id(x)) for x in entry.variables]
        if any(own):
            first, second = _matrices(entry, own, scale)
            arrays[f"{_START}{module}.lora_A.weight"] = first
            arrays[f"{_START}{module}.lora_B.weight"] = second
            ranks[module] = len(first)
            written |= set(map(id, own))
        elif any(x.trainable for x in entry.variables):
            arrays[f"{_START}{entry.name}"] = entry.join(entry.arrays())
            whole.append(module)
    others = [x.path for x in adapted if id(x) not in written]
    if others or not adapted:
        raise ValueError(
            "`model` must have adapters, such as those of `enable_lora`, all in tensors that its "
            f"folder has. Received: {len(adapted)} adapters, and those of no tensor: {others}"
        )
    arrays = {name: np.ascontiguousarray(x, "float32") for name, x in arrays.items()}
    rank = max(set(ranks.values()), key=list(ranks.values()).count)
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
        "modules_to_save": sorted(set(whole) - ranks.keys()) or None,
        "bias": "all" if set(whole) & ranks.keys() else "none",
        "fan_in_fan_out": any(x.inputs_first for x in entries),
        "inference_mode": True,
    }
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(values, indent=2, sort_keys=True) + "\n"
    writing.replace(folder / FILE, lambda path: save_file(arrays, path, {"format": "pt"}))
    writing.replace(folder / writing.ADAPTER, lambda x: x.write_text(text, encoding="utf-8"))


@contextlib.contextmanager
def _without_adapters(layers):
    """Lets the kernels of layers be their variables, not these and the adapters."""
    for layer in layers:
        layer.lora_enabled = False
    try:
        yield
    finally:
        for layer in layers:
            layer.lora_enabled = True


def _matrices(entry, layers, scale):
    """A and B of a tensor, some of whose variables have adapters, for a scale."""
    size = entry.shape()[0 if entry.inputs_first else 1]
    found = []
    for variable, layer in zip(entry.variables, layers, strict=True):
        axes = next(n for n in range(len(variable.shape)) if math.prod(variable.shape[:n]) == size)
        outputs = variable.shape[axes:]
        a, b = np.zeros((0, size)), np.zeros((0, *outputs))
        if layer is not None:
            a, b = (
                keras.ops.convert_to_numpy(x) for x in (layer.lora_kernel_a, layer.lora_kernel_b)
            )
            b = b * (layer.lora_alpha / layer.lora_rank / scale)
            heads, rank = math.prod(variable.shape[:-1]) // size, len(b)
            a = a.reshape(size, heads * rank).T
            # Each head has columns of its own.
            b = np.einsum("gh,rk->grhk", np.eye(heads), b).reshape(heads * rank, *outputs)
            if heads * rank > size:
                a, b = np.eye(size), np.tensordot(a.T, b, 1)
        found.append((a, b))
    total, start, wide = sum(len(a) for a, _ in found), 0, []
    for _, b in found:
        wide.append(np.zeros((total, *b.shape[1:])))
        wide[-1][start : start + len(b)] = b
        start += len(b)
    second = entry.join(wide)
    return np.concatenate([a for a, _ in found]), second.T if entry.inputs_first else second
