"""The settings for generation that a folder carries: arguments of `generation`, first tokens."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

from keras_attention.convert.huggingface.architectures import pairs
from keras_attention.convert.huggingface.config import Config, read_file, read_json
from keras_attention.convert.huggingface.fields import GENERATION, START
from keras_attention.generation import Constraints, LengthDecay
from keras_attention.sequences import shapes

# Settings that are arguments of each function, of these names unless `_RENAMED` has others.
_RENAMED = {"num_return_sequences": "num_return", "early_stopping": "stopping"}
_RENAMED |= {"renormalize_logits": "renormalize"}
_ARGUMENTS = {"greedy": "", "sample": "temperature top_p min_p top_k typical_p"}
_ARGUMENTS |= {"beam_search": " ".join(("num_beams", "length_penalty", *_RENAMED))}


def generation_options(
    folder: str | os.PathLike[str], method: str = "greedy", ignore: Sequence[str] = ()
) -> dict[str, Any]:
    """The settings of a folder for generation, as arguments of a function of `generation`.

    They are those of `generation_config.json`, or of `config.json` in folders without it: stop and
    padding tokens, forced and forbidden tokens, penalties, and the numbers of the method. With them
    `greedy` and `beam_search` find the tokens of `transformers`'s `generate`.

    Each field is read, ignored since it changes no token, or refused; absent fields have the
    defaults of `transformers`: no penalty of lengths is α = 1 there, and no `top_k` 50. The
    function and `max_tokens` are the caller's, whatever the folder says of them. Where a setting
    depends on the text, such as `repetition_penalty`, the function needs `prompt` too, and says so.

    Args:
        folder: path of a folder that `from_huggingface` reads.
        method: the function that gets them: "greedy", "sample" or "beam_search".
        ignore: names of fields to leave out.

    Returns:
        A dictionary of arguments: `stop_tokens`, `pad_token`, `constraints`, and those of the
        method.

    Raises:
        ValueError: the folder has no `config.json`, a file is damaged, or a field has no equivalent
            or a value that it cannot have; the message names it. Or `method` is none.
        TypeError: tokens in a list are not integers.

    >>> from keras_attention import convert
    >>> first, how = [convert.start_tokens("bart")], "beam_search"  # doctest: +SKIP
    >>> options = convert.generation_options("bart", how)  # doctest: +SKIP
    >>> found = model.generate(source, first, 60, how, **options)  # doctest: +SKIP
    """
    shapes.check_choice("method", method, tuple(GENERATION))
    settings = _read_settings(folder, GENERATION[method], ignore)
    stops, pad = settings["eos_token_id"], settings["pad_token_id"]
    stops = () if stops is None else tuple(stops) if isinstance(stops, list) else (stops,)
    found = {_RENAMED.get(x, x): settings[x] for x in _ARGUMENTS[method].split()}
    if method == "sample":
        # 0 means no limit.
        limits = {name: found[name] or None for name in ("min_p", "top_k")}
        found = {name: x for name, x in {**found, **limits}.items() if x is not None}
    return {
        "stop_tokens": stops,
        "pad_token": pad if pad is not None else next(iter(stops), 0),
        "constraints": _constraints(settings, stops),
        **found,
        **({"length_rule": "power"} if method == "beam_search" else {}),
    }


def _constraints(settings, stops):
    """The `Constraints` of settings; None where there are none."""
    first, last = settings["forced_bos_token_id"], settings["forced_eos_token_id"]
    if settings["force_bos_token_to_be_generated"]:
        first = settings["bos_token_id"]
    if isinstance(last, list):
        if len(last) != 1:
            _refuse(settings, "forced_eos_token_id", "one token")
        last = last[0]
    # The number of new tokens takes precedence.
    least, length = settings["min_new_tokens"], settings["min_length"]
    if settings.model_type in pairs.ARCHITECTURES.keys() - {"whisper"}:
        # That of all counts the only start token.
        least = max(length - 1, 0) if least is None else least
    # Elsewhere, both depend on the length of the prompt, which only a call knows.
    elif length and least is None:
        _refuse(settings, "min_length", "0 or null, with 'min_new_tokens' in its place")
    elif first is not None:
        _refuse(settings, "forced_bos_token_id", "null")
    for pair in settings["sequence_bias"]:
        given = pair if isinstance(pair, list) and len(pair) == 2 else [None, None]
        if not isinstance(given[0], list) or not all(isinstance(x, int) for x in given[0]):
            _refuse(settings, "sequence_bias", "a list of pairs, of tokens and a number")
    same = "suppress_tokens begin_suppress_tokens repetition_penalty no_repeat_ngram_size"
    found = Constraints(
        forced_first_token=first,
        forced_last_token=last,
        # That which ends a text is no bad word.
        bad_words=[w for w in settings["bad_words_ids"] if w not in [[s] for s in stops]],
        sequence_bias={tuple(tokens): bias for tokens, bias in settings["sequence_bias"]},
        min_tokens=least or 0,
        **{name: settings[name] for name in same.split()},
    )
    rule = None if found == Constraints() else found
    decay = settings["exponential_decay_length_penalty"]
    if decay is None:
        return rule
    if len(decay) != 2:
        _refuse(settings, "exponential_decay_length_penalty", "a number of tokens and a factor")
    return LengthDecay(*decay) if rule is None else rule + LengthDecay(*decay)


def _refuse(settings, name, expected):
    wanted = f"{expected} for model_type={settings.model_type!r}; or name it in `ignore`"
    settings.refuse(name, wanted, repr(settings[name]))


def start_tokens(folder: str | os.PathLike[str]) -> list[int]:
    """The tokens that a target starts with, for `EncoderDecoder.start`.

    They are `decoder_start_token_id`, or `bos_token_id` where there is none, of
    `generation_config.json`, or of `config.json` in folders without it. Those of Whisper go on with
    a language, a task and the token for no time stamps, as far as the folder says them.

    Args:
        folder: path of a folder that `from_huggingface` reads.

    Returns:
        A list of integers, of one row.

    Raises:
        ValueError: the folder is of no model of two sequences; it has no such token; or it leaves
            the language to be found in the recording.

    >>> from keras_attention import convert
    >>> convert.start_tokens("marian")  # doctest: +SKIP
    [58100]
    """
    settings = _read_settings(folder, START, others=True)
    if settings.model_type not in pairs.ARCHITECTURES:
        raise ValueError(
            f"`folder` must be of a model of two sequences, one of {sorted(pairs.ARCHITECTURES)}. "
            f"Received: model_type={settings.model_type!r}, whose text starts with its prompt"
        )
    starts = settings["decoder_start_token_id"], settings["bos_token_id"]
    first = next((token for token in starts if token is not None), None)
    if first is None:
        raise ValueError(
            f"`{settings.where}` must have 'decoder_start_token_id' or 'bos_token_id'. "
            "Received: neither"
        )
    return [first, *_of_whisper(settings)] if settings.model_type == "whisper" else [first]


def _of_whisper(settings):
    """What follows the start token: of a language, of a task, and for no time stamps."""
    language, task, languages = settings["language"], settings["task"], settings["lang_to_id"]
    if language is None and task is None:
        forced = settings["forced_decoder_ids"]
        found = [x[1] for x in forced if isinstance(x, list) and len(x) == 2]
        if list(forced) != [[n, token] for n, token in enumerate(found, 1)]:
            wanted = "tokens for the places 1, 2, … of a target"
            settings.refuse("forced_decoder_ids", wanted, forced)
    else:
        found = [
            languages.get(f"<|{language}|>", languages.get(str(language))),
            settings["task_to_id"].get(task or "transcribe"),
        ]
    if None in found or (languages and not found):
        raise ValueError(
            f"`{settings.where}` must say the language and the task, which are not looked for in a "
            "recording here: start a target with `decoder_start_token_id`, one of `lang_to_id`, "
            f"one of `task_to_id`, `no_timestamps_token_id`. Received: {[language, task, *found]}"
        )
    silent = settings["no_timestamps_token_id"]
    if silent is None or settings["return_timestamps"] or found[-1:] == [silent]:
        return found
    return [*found, silent]


def _read_settings(folder, table, ignore=(), others=False):
    """The settings of a folder that a table has, None where there are none.

    They are those of `generation_config.json`, or of `config.json` in folders without it, as in
    `transformers`. The former may have no `others`, or this is an error.
    """
    config, where = read_file(folder)
    path = pathlib.Path(folder) / "generation_config.json"
    values, own = config, path.is_file()
    if own:
        where, wanted = str(path), f"`{path}` must be an object of JSON"
        values = read_json(path, wanted)
        if not isinstance(values, dict):
            raise ValueError(f"{wanted}. Received: {values!r}")
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
