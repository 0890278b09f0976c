"""Changes of single fields of `config.json`, and what `transformers` computes for each.

A change is a configuration that lacks a field, or has null or another value there. Ours must refuse
it by a ValueError, or compute what `transformers` computes with the same weights. Both sides are
built once for a family, and again only where a change reaches what they are built from.
"""

import copy
import dataclasses
import json
import os
import pathlib

import numpy as np

from keras_attention import convert
from keras_attention.convert.huggingface.architectures import ARCHITECTURES
from keras_attention.convert.huggingface.config import Config
from keras_attention.convert.huggingface.fields import ACTIVATIONS
from tests.convert.huggingface import models
from tests.convert.huggingface.models import ROPE, TOLERANCE, numpy, torch

TABLES = {kind: one.fields for kind, one in ARCHITECTURES.items()}
# Values of fields inside them.
INSIDE = {
    **dict(rope_type=["linear", "proportional"], type=["linear", "default"], rope_theta=[20.0]),
    **dict(partial_rotary_factor=[0.5, 1.0], factor=[1.0, 4.0]),
    **dict(original_max_position_embeddings=[8, 32], attention_factor=[1.3], beta_fast=[6.0]),
    **dict(beta_slow=[0.5], mscale=[0, 1.0], mscale_all_dim=[1.0], truncate=[False, True]),
    **dict(low_freq_factor=[0.5], high_freq_factor=[2.0], short_factor=[[3.0, 1.0, 2.0] * 2]),
    **dict(long_factor=[[3.0, 1.0, 2.0] * 2, [1.0]], finetuned=[True], whatever=[1]),
}
# Other values of fields, by their names; elsewhere those of `other`.
VALUES = {
    **dict(max_position_embeddings=[8, 128], original_max_position_embeddings=[4, 32]),
    **dict(sliding_window=[3, 40], max_window_layers=[0, 2]),
    "layer_types": [
        ["full_attention", "sliding_attention"],
        ["full_attention"] * 2,
        ["linear_attention"] * 2,
    ],
    **dict(no_rope_layers=[[1, 1, 1], [0, 0], [1]], mlp_only_layers=[[0], [1], [0, 1]]),
    **dict(num_key_value_heads=[1, 4], head_dim=[16, 7], partial_rotary_factor=[0.5, 1.0]),
    **dict(rotary_pct=[0.5, 1.0], rope_theta=[20.0, 500000.0]),
    "rope_parameters": [ROPE["linear"], {"rope_type": "default", "rope_theta": 20.0}, {}],
    "rope_scaling": [{"type": "linear", "factor": 4.0}, {}],
    **dict(attn_logit_softcapping=[0.5, None], final_logit_softcapping=[0.5, None]),
    **dict(query_pre_attn_scalar=[3, 24], pos_att_type=["c2p", ["p2c", "c2p"], "c2p|p2c|p2p"]),
    **dict(norm_rel_ebd=["none", "layer_norm|none"], position_buckets=[-1, 2]),
    **dict(max_relative_positions=[-1, 3], conv_kernel_size=[3]),
    "attn_config": [
        {"clip_qkv": 0.3},
        {"softmax_scale": 0.1},
        {"alibi_bias_max": 16},
        {"alibi": False},
        {"qk_ln": True},
        {"attn_type": "multiquery_attention"},
    ],
    **dict(feed_forward_proj=["gelu", "gated-gelu", "gated-silu", "what-gelu"]),
    **dict(dense_act_fn=["gelu", "gelu_new", "silu", "what"], num_ln_in_parallel_attn=[1, 2]),
    "id2label": [{"0": "a", "1": "b"}, {"0": "a", "1": "b", "2": "c"}],
    **dict(image_size=[[8, 8], 4], patch_size=[2, [4, 4], [2, 8]], pad_token_id=[0, 1]),
    **dict(swiglu_alpha=[1.0], num_experts_per_tok=[3], embedding_size=[12, 24]),
    **dict(attention_head_size=[12, 6], pooler_hidden_size=[24, 12], word_embed_proj_dim=[24, 12]),
    **dict(decoder_vocab_size=[50, 40], position_embedding_type=["absolute", "relative_key"]),
    **dict(local_attention=[4, 40], attention_window=[8, [4, 8], [4], [4, 6, 8], 3, 0, [4, "8"]]),
    **dict(sliding_window_pattern=[1, 2], global_attn_every_n_layers=[1, 2], num_labels=[2, 3]),
}


# Both compute in float32, whatever a file says.
TYPES = ("dtype", "torch_dtype")
# Of what a model is, which other tests have.
NOT_CHANGED = ("model_type", "architectures")


def other(value):
    """Values that a field could have instead of another."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value + 1, 1]
    if isinstance(value, float):
        return [0.25, 2.0 * value]
    if isinstance(value, str) and value in ACTIVATIONS:
        return ["relu", "gelu", "sigmoid"]
    return [] if isinstance(value, str | list | dict) else [True, 3]


class Family:
    """A random model of `transformers`, and what it and ours compute for other configurations.

    Args:
        path: a folder to write to.
        cls: the class of the model.
        fields: its configuration.
        values: the fields of `config.json`, by default as `transformers` writes them.
    """

    def __init__(self, path, cls, fields, values=None):
        self.path, self.cls, self.count = pathlib.Path(path), cls, 0
        base = models.write(self.path / "base", cls, fields)
        model, self.values = base.theirs, base.config() if values is None else values
        self.table = TABLES[self.values["model_type"]]
        self.weights = model.state_dict()
        self.found = described(self.config(self.values))
        given = models.without("token_type_ids", models.arrays(model))
        if "global_attention_mask" in given:
            given["global_attention_mask"] = models.FIRST
        self.given = {name: models.tensor(x) for name, x in given.items()}
        self.inputs = models.ours_of(base.ours, model)[0]
        self.expected = self.outputs(model)
        largest = difference(self.outputs_of_ours(self.values), self.expected)
        assert largest <= TOLERANCE, largest

    def config(self, values):
        """Our configuration of some fields."""
        return Config(values, self.table)

    def ours(self, values):
        """Our model of some fields, with the weights of the base."""
        self.count += 1
        folder = self.path / str(self.count)
        folder.mkdir()
        os.link(self.path / "base" / "model.safetensors", folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
        return convert.from_huggingface(folder)

    def theirs(self, values):
        """What theirs computes for some fields; None if it does not, or lacks weights."""
        values = {k: v for k, v in values.items() if k not in ("model_type", *TYPES)}
        try:
            model = self.cls(self.cls.config_class(**copy.deepcopy(values))).eval()
            missing, _ = model.load_state_dict(self.weights, strict=False)
            model.tie_weights()
            return None if missing else self.outputs(model)
        except Exception:
            # Any error is a refusal: of the configuration, of weights, or of the call.
            return None

    def outputs(self, model):
        """Logits or states of a model of `transformers`."""
        caches = {"use_cache": False} if "use_cache" in models.inputs_of(self.cls) else {}
        with torch.no_grad():
            found = model(**self.given, **caches)
        if "Siglip" in self.cls.__name__:
            pooled = found.pooler_output
            return numpy(found.last_hidden_state[:, -1] if pooled is None else pooled)
        if self.cls.__name__ == "ElectraForPreTraining":
            return numpy(found.logits)[..., None]
        kinds = "logits", "prediction_logits", "last_hidden_state"
        return numpy(next(found[kind] for kind in kinds if kind in found))

    def outputs_of_ours(self, values):
        """The same of ours; of SigLIP those of the last token."""
        found = numpy(self.ours(values)(self.inputs))
        return found[:, -1] if "Siglip" in self.cls.__name__ else found

    def check(self, values):
        """What is wrong with a configuration: a text, or None. It may be refused by both."""
        try:
            found = described(self.config(values))
        except ValueError:
            return None
        if found == self.found:
            expected = self.theirs(values)
            # What theirs does not even take may be ignored here.
            wrong = expected is not None and difference(self.expected, expected)
            return f"ours is as before, theirs differs by {wrong:.2g}" if wrong > 1e-5 else None
        try:
            # Of images of other sizes, the call is refused.
            ours = self.outputs_of_ours(values)
        except ValueError:
            return None
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        expected = self.theirs(values)
        if expected is None:
            return "theirs does not run, and ours does"
        wrong = difference(ours, expected)
        return f"differs by {wrong:.2g}" if not wrong <= TOLERANCE else None

    def changes(self):
        """Names of changes, and configurations: each has one field less, null, or another."""
        for name, field in self.table.items():
            if (field.kind is None and field.same_as is None) or name in NOT_CHANGED:
                continue
            base = self.values.get(name)
            if name in self.values:
                yield f"no {name}", {k: v for k, v in self.values.items() if k != name}
            yield f"{name}=null", {**self.values, name: None}
            usual = base if base is not None else field.default
            values = VALUES.get(name, [*other(usual), *field.choices])
            for value in values:
                if value is not None and value != base:
                    yield f"{name}={value}", {**self.values, name: value}

    def changes_inside(self, name, given, wrap=lambda given: given):
        """The same of the fields inside one: `given` is an object, of a larger one by `wrap`."""

        def whole(changed):
            return {**self.values, "rope_parameters": None, name: wrap(changed)}

        yield f"{name}={given}", whole(given)
        for inside, value in {**dict.fromkeys(INSIDE), **given}.items():
            if inside in given:
                rest = {k: v for k, v in given.items() if k != inside}
                yield f"{name} {given}: no {inside}", whole(rest)
            for new in [None, *INSIDE[inside]]:
                if inside not in given or new != value:
                    yield f"{name} {given}: {inside}={new}", whole({**given, inside: new})


def described(config):
    """What a model is built from."""
    return {k: described(v) if isinstance(v, Config) else v for k, v in config._found.items()}


def difference(found, expected):
    """The largest difference of two arrays; NaN is one."""
    if found.shape != expected.shape:
        return np.inf
    return float(np.abs(found - expected).max())


# Values of fields that are ignored, where any would not do there.
IGNORED = {
    "chunk_size_feed_forward": 0,
    "return_dict": True,
    "id2label": {"0": "a", "1": "b", "2": "c"},
    "label2id": {"a": 0, "b": 1, "c": 2},
    "num_labels": 3,
    "problem_type": "regression",
    "pruned_heads": {},
    **dict(max_position_embeddings=20, max_seq_len=20, n_positions=20, attn_logit_softcapping=0.5),
    **dict(pooler_output_size=24, summary_type="mean", classifier_pooling="mean"),
    "init_config": {"name": "kaiming_normal_"},
    **dict(attn_implementation="eager", _attn_implementation="eager"),
    **dict(_attn_implementation_internal="eager"),
    "auto_map": {},
    **dict(transformers_version="4.0.0", init_device="meta", cache_implementation="hybrid"),
    **dict(suppress_tokens=[1], begin_suppress_tokens=[1], summary_activation="relu"),
    **dict(pooler_act="relu", stage_names=["stem", "stage1", "stage2"], out_features=["stage1"]),
    **dict(_out_features=["stage1"], out_indices=[1], _out_indices=[1]),
}
IGNORED |= {"assistant_ensemble_weight": 0.5, "compile_config": None, "watermarking_config": None}
IGNORED |= dict.fromkeys(TYPES, "float32")


def ignored_value(cls, name):
    """A value that an ignored field may have, other than that of their class."""
    if name in IGNORED:
        return IGNORED[name]
    given = {field.name: field.default for field in dataclasses.fields(cls.config_class)}
    default = given.get(name)
    if isinstance(default, bool):
        return not default
    if isinstance(default, float):
        return 0.3
    return 3 if isinstance(default, int) or default is None else default
