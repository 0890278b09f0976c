"""The first tokens of a target, which the settings of a folder for generation have."""

from __future__ import annotations

import os

from keras_attention.convert.huggingface.generation_fields import PAIRS, START, read_settings


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

    Example:

    >>> from keras_attention import convert
    >>> convert.start_tokens("marian")  # doctest: +SKIP
    [58100]
    """
    settings = read_settings(folder, START, others=True)
    if settings.model_type not in PAIRS:
        raise ValueError(
            f"`folder` must be of a model of two sequences, one of {sorted(PAIRS)}. "
            f"Received: model_type={settings.model_type!r}, whose text starts with its prompt"
        )
    first = settings["decoder_start_token_id"]
    first = settings["bos_token_id"] if first is None else first
    if first is None:
        raise ValueError(
            f"`{settings.where}` must have 'decoder_start_token_id' or 'bos_token_id'. "
            "Received: neither"
        )
    return [first, *_of_whisper(settings)] if settings.model_type == "whisper" else [first]


def _of_whisper(settings):
    """What follows the start token: of a language, of a task, and for no time stamps."""
    language, task = settings["language"], settings["task"]
    languages, tasks = settings["lang_to_id"] or {}, settings["task_to_id"] or {}
    found = []
    if language is None and task is None:
        forced = settings["forced_decoder_ids"] or []
        if not all(
            isinstance(x, list) and len(x) == 2 and x[0] == n + 1 for n, x in enumerate(forced)
        ):
            raise ValueError(
                f"'forced_decoder_ids' of `{settings.where}` must be tokens for the places 1, 2, "
                f"… of a target. Received: {forced}"
            )
        found = [token for _, token in forced]
    else:
        found = [
            languages.get(f"<|{language}|>", languages.get(str(language))),
            tasks.get(task or "transcribe"),
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
