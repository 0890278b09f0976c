"""Settings of a folder for generation: each field is read, ignored or refused.

The tables are those of `config.json`: see `fields.py`. Null is an absent field everywhere, and
absent fields have the defaults of `transformers`.
"""

import json
import pathlib

from keras_attention.convert.huggingface.architectures import pairs, t5
from keras_attention.convert.huggingface.config import Config, read_file
from keras_attention.convert.huggingface.fields import each, ignored, nullable, only, read

# Models of two sequences: targets start with one token of the settings, of Whisper with several.
PAIRS = pairs.ARCHITECTURES.keys() | t5.ARCHITECTURES.keys()
ONE_START = PAIRS - {"whisper"}

_INT, _LIST, _NUMBER = (read(None, kind | None) for kind in (int, list, float))
_COUNT = read(None, int | None, least=0)


def _off(names, *neutral):
    """Fields that have no equivalent here, and are refused unless they change nothing."""
    return each(names, only(None, *neutral))


# Fields that set the first tokens of a target.
START = {
    **each("decoder_start_token_id bos_token_id no_timestamps_token_id", _INT),
    "forced_decoder_ids": _LIST,
    "language": read(None, str | list | None),
    "task": read(None, str | None),
    **each("lang_to_id task_to_id", read(None, dict | None)),
    "return_timestamps": read(None, bool | None),
}
_COMMON = {
    **each("eos_token_id forced_eos_token_id", read(None, int | list | None)),
    **each("pad_token_id bos_token_id forced_bos_token_id", _INT),
    **each("suppress_tokens begin_suppress_tokens bad_words_ids sequence_bias", _LIST),
    # In `config.json` of old files of BART.
    "force_bos_token_to_be_generated": read(None, bool | None),
    **each("min_length min_new_tokens no_repeat_ngram_size", _COUNT),
    "repetition_penalty": _NUMBER,
    **ignored(
        "of the first tokens of a target, which `start_tokens` reads",
        " ".join(START.keys() - {"bos_token_id", "return_timestamps"}),
    ),
    **ignored(
        "`max_tokens` is the caller's, for whose number of tokens `start` makes caches too",
        "max_length max_new_tokens",
    ),
    **ignored("which function is called says it", "do_sample"),
    **ignored(
        "of what else is returned",
        """
        output_attentions output_hidden_states output_scores output_logits return_dict_in_generate
        """,
    ),
    **ignored(
        "of how fast the same tokens are found",
        """
        use_cache use_mtp cache_implementation cache_config max_cache_len prefill_chunk_size
        compile_config disable_compile continuous_batching_config low_memory num_assistant_tokens
        num_assistant_tokens_schedule prompt_lookup_num_tokens max_matching_ngram_size
        assistant_early_exit assistant_confidence_threshold assistant_lookbehind target_lookbehind
        speculation_type
        """,
    ),
    **ignored("NaN is an error here", "remove_invalid_values"),
    **ignored(
        "of the program that wrote the file",
        "transformers_version _from_model_config _commit_hash _name_or_path trust_remote_code",
    ),
    **ignored(
        "of Whisper's time stamps and long recordings",
        """
        alignment_heads is_multilingual max_initial_timestamp_index prev_sot_token_id
        median_filter_width
        """,
    ),
    **_off("return_timestamps is_assistant token_healing", False),
    **_off("encoder_repetition_penalty guidance_scale", 1.0),
    **_off("encoder_no_repeat_ngram_size diversity_penalty penalty_alpha", 0),
    **_off("num_beam_groups", 1),
    **_off(
        """
        exponential_decay_length_penalty watermarking_config stop_strings max_time constraints
        force_words_ids dola_layers assistant_ensemble_weight
        """
    ),
}
_SAMPLING = {
    **each("temperature top_p min_p", _NUMBER),
    "top_k": _COUNT,
    **_off("typical_p", 1.0),
    **_off("epsilon_cutoff eta_cutoff", 0),
    **_off("top_h"),
}
_BEAMS = {
    **nullable(num_beams=None, num_return_sequences=None),
    "length_penalty": read(None, float | None, least=0),
    "early_stopping": only(None, False, True, "never"),
    # Sums are of log-probabilities that are not normalized again.
    **_off("renormalize_logits", False),
}
_NO_SAMPLING = ignored("of sampling", " ".join(_SAMPLING))
_NO_BEAMS = ignored("of beam search", " ".join(_BEAMS))
# Fields by the name of the function that uses them.
FIELDS = {
    "greedy": {**_COMMON, **_NO_SAMPLING, **_NO_BEAMS},
    "sample": {**_COMMON, **_SAMPLING, **_NO_BEAMS},
    "beam_search": {**_COMMON, **_NO_SAMPLING, **_BEAMS},
}


def read_settings(folder, table, ignore=(), others=False):
    """The settings of a folder that a table has, None where there are none.

    They are those of `generation_config.json`, or of `config.json` in folders without it, as in
    `transformers`. The former may have no `others`, or this is an error.
    """
    config, where = read_file(folder)
    path = pathlib.Path(folder) / "generation_config.json"
    values, own = config, path.is_file()
    if own:
        where, values = str(path), None
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            received = repr(values)
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            received = f"{type(error).__name__}: {error}"
        if not isinstance(values, dict):
            raise ValueError(f"`{path}` must be an object of JSON. Received: {received}")
    strange = sorted(set(ignore) - table.keys() - values.keys())
    if strange:
        raise ValueError(
            "`ignore` must have names of settings for generation. "
            f"Received: {strange}, which `{where}` does not have either"
        )
    values = {k: x for k, x in values.items() if x is not None and k not in ignore}
    if others or not own:
        values = {k: x for k, x in values.items() if k in table}
    return Config(values, table, where, folder, config["model_type"])
