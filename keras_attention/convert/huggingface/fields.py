"""Fields of files: what tables of them are made of, those of generation, and what all models share.

A field is read, ignored or refused. Defaults are those of the classes of `transformers`.
"""

import re
from typing import Any, NamedTuple

NEEDED = object()


class Field(NamedTuple):
    """What a field is for."""

    kind: Any = None  # The type of its values, or a union; None for a field that is ignored.
    default: Any = None
    choices: tuple | dict = ()  # The supported values, or from these to what they are here.
    least: float | None = None
    inside: dict | None = None  # The table of a field that is an object, which is a `Config` then.
    same_as: str | None = None  # The field that this is a second name of.
    reason: str = ""  # Why it is ignored.


def each(names, field):
    """The same field by several names, as a part of a table."""
    return dict.fromkeys(names.split(), field)


def needs(names):
    """Sizes without defaults, of which any would be of another model, as a part of a table."""
    return each(names, Field(int, NEEDED, least=1))


def renamed(names, usual="hidden_size num_hidden_layers num_attention_heads"):
    """Sizes of these names, whose usual ones are second names, as a part of a table."""
    pairs = zip(usual.split(), names.split(), strict=True)
    return needs(names) | {second: same_as(name) for second, name in pairs}


def read(default, kind=None, least=None):
    """A field with a default; `kind` is the type of that unless given, with `| None` for null."""
    return Field(type(default) if kind is None else kind, default, least=least)


def count(default, kind=int):
    """A positive integer."""
    return read(default, kind, least=1)


def defaults(**fields):
    """Fields of the kinds of their defaults, as a part of a table; integers are positive.

    Those of `ACTIVATED` have names of activations; a `Field` is as it is given.
    """
    return {name: _default(name, x) for name, x in fields.items()}


def _default(name, x):
    if isinstance(x, Field):
        return x
    return activation(x) if name in ACTIVATED else read(x, least=1 if type(x) is int else None)


def nullable(**fields):
    """The same where null is a value too: a default that is null is of integers."""
    table = defaults(**{name: 1 if x is None else x for name, x in fields.items()})
    return {
        name: field._replace(kind=field.kind | None, default=fields[name])
        for name, field in table.items()
    }


def only(*values):
    """A field of which only some values are supported; the first is the default."""
    return Field(object, values[0], values)


def fixed(**fields):
    """Fields of which only the default is supported, or a tuple of values, the first by default."""
    return {name: only(*(x if type(x) is tuple else (x,))) for name, x in fields.items()}


def same_as(name):
    """A second name of a field, which must have the same value where both are there."""
    return Field(same_as=name)


def part(inside, kind=dict | None):
    """A field that is a configuration itself, whose table is `inside`; null is an empty one."""
    return Field(kind, None, inside=inside)


def ignored(reason, names):
    """Fields that change nothing in what a model computes, as a part of a table."""
    return each(names, Field(reason=reason))


def ignored_by_reason(text):
    """The same of a text whose lines begin with a reason, `REASON: names`, or are indented."""
    _, *parts = re.split(r"^(\S.*?):", text, flags=re.MULTILINE)
    tables = map(ignored, parts[::2], parts[1::2])
    return {name: field for table in tables for name, field in table.items()}


def off(names):
    """Fields that are not read, and would be of another model if on, as a part of a table."""
    return each(names, Field(object, False, {False: None, None: None}))


# Fields that have names of activations, these names, and ours.
ACTIVATED = (
    *("hidden_act", "hidden_activation", "activation_function", "activation"),
    *("dense_act_fn", "classifier_activation", "pooler_hidden_act"),
)
ACTIVATIONS = {name: name for name in ("gelu", "quick_gelu", "relu", "silu", "tanh")}
ACTIVATIONS |= {"gelu_python": "gelu", "relu2": "relu_squared", "swish": "silu"}
ACTIVATIONS |= dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu_tanh")


def activation(default, **others):
    """The name of an activation; `others` are ours by names that mean another one here."""
    return Field(str, default, {**ACTIVATIONS, **others})


# Settings for generation, of `generation_config.json` or `config.json`. Null is an absent field.

_TOKEN, _TOKENS = read(None, int | None), read((), list)


def _off(names, *neutral):
    """Settings that have no equivalent here, and are refused unless they change nothing."""
    return each(names, only(None, *neutral))


# Fields that set the first tokens of a target.
START = {
    **each("decoder_start_token_id bos_token_id no_timestamps_token_id", _TOKEN),
    "forced_decoder_ids": _TOKENS,
    "language": read(None, str | list | None),
    "task": read(None, str | None),
    **each("lang_to_id task_to_id", read({}, dict)),
    "return_timestamps": read(False, bool),
}
_ALWAYS = {
    **each("eos_token_id forced_eos_token_id", read(None, int | list | None)),
    **each("pad_token_id bos_token_id forced_bos_token_id", _TOKEN),
    **each("suppress_tokens begin_suppress_tokens bad_words_ids sequence_bias", _TOKENS),
    # In `config.json` of old files of BART.
    "force_bos_token_to_be_generated": read(False, bool),
    **each("min_length no_repeat_ngram_size", read(0, least=0)),
    "min_new_tokens": read(None, int | None, least=0),
    "repetition_penalty": read(1.0),
    **ignored_by_reason("""
of the first tokens of a target, which `start_tokens` reads:
    decoder_start_token_id no_timestamps_token_id forced_decoder_ids language task lang_to_id
    task_to_id
`max_tokens` is the caller's, for whose number of tokens `start` makes caches too:
    max_length max_new_tokens
which function is called says it: do_sample
of what else is returned:
    output_attentions output_hidden_states output_scores output_logits return_dict_in_generate
of how fast the same tokens are found:
    use_cache use_mtp cache_implementation cache_config max_cache_len prefill_chunk_size
    compile_config disable_compile continuous_batching_config low_memory num_assistant_tokens
    num_assistant_tokens_schedule prompt_lookup_num_tokens max_matching_ngram_size
    assistant_early_exit assistant_confidence_threshold assistant_lookbehind target_lookbehind
    speculation_type
NaN is an error here: remove_invalid_values
of the program that wrote the file:
    transformers_version _from_model_config _commit_hash _name_or_path trust_remote_code
of Whisper's time stamps and long recordings:
    alignment_heads is_multilingual max_initial_timestamp_index prev_sot_token_id
    median_filter_width
"""),
    **_off("return_timestamps is_assistant token_healing", False),
    **_off("encoder_repetition_penalty guidance_scale", 1.0),
    **_off("encoder_no_repeat_ngram_size diversity_penalty penalty_alpha", 0),
    **_off("num_beam_groups", 1),
    "exponential_decay_length_penalty": read(None, list | None),
    **_off("watermarking_config stop_strings max_time"),
    **_off("constraints force_words_ids dola_layers assistant_ensemble_weight"),
}
_SAMPLING = {
    **each("temperature top_p typical_p", read(None, float | None)),
    # 0 is no limit.
    **defaults(min_p=0.0),
    "top_k": read(50, least=0),
    **_off("epsilon_cutoff eta_cutoff", 0),
    **_off("top_h"),
}
_BEAMS = {
    **defaults(num_beams=1, num_return_sequences=1),
    "length_penalty": read(1.0, least=0),
    "early_stopping": Field(str, False, {False: "estimate", True: "first", "never": "exact"}),
    "renormalize_logits": read(False, bool),
}
_NO_SAMPLING = ignored("of sampling", " ".join(_SAMPLING))
_NO_BEAMS = ignored("of beam search", " ".join(_BEAMS))
# Settings by the name of the function that uses them.
GENERATION = {
    "greedy": {**_ALWAYS, **_NO_SAMPLING, **_NO_BEAMS},
    "sample": {**_ALWAYS, **_SAMPLING, **_NO_BEAMS},
    "beam_search": {**_ALWAYS, **_NO_SAMPLING, **_BEAMS},
}

# Configurations of models

# Fields of every architecture.
COMMON = {
    "model_type": read("", str),
    "architectures": read(None, list | None),
    **ignored("of generation", " ".join({**GENERATION["greedy"], **START})),
    **ignored_by_reason("""
of the program that wrote the file, or that runs the model:
    name_or_path auto_map torch_dtype dtype return_dict output_past torchscript pruned_heads
    use_bfloat16 gradient_checkpointing use_reentrant_checkpointing chunk_size_feed_forward
    pretraining_tp is_encoder_decoder _attn_implementation attn_implementation
    _attn_implementation_autoset _attn_implementation_internal _flash_attn_2_enabled
    use_flash_attn xla_device unsloth_version unsloth_fixed sentence_transformers
    transformers.js_config author license
a special token: sep_token_id cls_token_id unk_token_id mask_token_id
of a tokenizer, or of what else prepares inputs:
    prefix tokenizer_class tokenizer_name processor_class model_max_length
of training, and of heads for tasks that are not read:
    initializer_range initializer_factor init_std init_method finetuning_task
    task_specific_params problem_type label2id _num_labels tf_legacy_loss
    neftune_noise_alpha apply_spec_augment attention_softmax_in_fp32 aux_loss_alpha
    bias_dropout_fusion drop_path_rate ep_size generator_size initializer_cutoff_factor
    kobart_version layerscale_value mask_feature_length mask_feature_min_masks mask_feature_prob
    mask_time_length mask_time_min_masks mask_time_prob masked_softmax_fusion offset_alibi
    repad_logits_with_grad replacing_rate router_aux_loss_coef router_jitter_noise save_step
    seq_aux skip_bias_add skip_bias_add_qkv sparse_pred_ignore_index sparse_prediction
    student_decoder_layers student_encoder_layers use_mask_token
a rate of dropout, which is 0 in use:
    dropout dropout_rate attention_dropout activation_dropout hidden_dropout
    hidden_dropout_prob attention_probs_dropout_prob resid_pdrop embd_pdrop attn_pdrop emb_pdrop
    classifier_dropout classifier_dropout_prob classif_dropout qa_dropout seq_classif_dropout
    pooler_dropout cls_dropout embedding_dropout mlp_dropout layerdrop encoder_layerdrop
    decoder_layerdrop
"""),
    # Of classifiers.
    "num_labels": count(None),
    "id2label": read(None, dict | None),
    **fixed(is_decoder=False, add_cross_attention=False),
    **off("cross_attention_hidden_size tie_encoder_decoder"),
}
# Fields of stacks that use these names.
SIZES = COMMON | needs("hidden_size intermediate_size num_hidden_layers num_attention_heads")
# Fields of stacks with tables of tokens.
LANGUAGE = SIZES | needs("vocab_size")
# Fields of a head that several architectures have.
SUMMARY = ignored_by_reason("""
of a head that is not read:
    summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout
    summary_last_dropout
""")
