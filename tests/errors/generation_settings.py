"""Errors of the settings for generation of a folder of Hugging Face."""

import json
import pathlib
import tempfile

from keras_attention import convert


def options(settings, method="greedy", ignore=(), model_type="gpt2", get=None):
    """The options of a folder, or what `get` has of it; settings may be text."""
    get = convert.generation_options if get is None else get
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        path.joinpath("config.json").write_text(json.dumps({"model_type": model_type}), "utf-8")
        text = settings if isinstance(settings, str) else json.dumps(settings)
        path.joinpath("generation_config.json").write_text(text, "utf-8")
        return get(folder) if get is convert.start_tokens else get(folder, method, ignore)


def start(settings, model_type="whisper"):
    return options(settings, model_type=model_type, get=convert.start_tokens)


SPEECH = {"decoder_start_token_id": 1, "lang_to_id": {"<|en|>": 5}, "task_to_id": {"translate": 6}}
ROWS = {
    r"`method` must be one of \('greedy', 'sample', 'beam_search'\)\. "
    r"Received: method='sea": lambda: options({}, "search"),
    r"`ignore` must have names of settings for generation\. Received: \['min_time'\], which "
    r"`.*generation_config\.json` does not have": lambda: options(
        {"max_time": 2.0}, ignore=["max_time", "min_time"]
    ),
    r"`.*generation_config\.json` must be an object of JSON\. Received: JSONDecodeError": lambda: (
        options("{")
    ),
    r"`.*generation_config\.json` must be an object of JSON\. Received: \[\]": lambda: options(
        "[]"
    ),
    r"`.*generation_config\.json` has fields that are not supported.*"
    r"Received: {'top_z': 3}": lambda: options({"top_z": 3}),
    r"'eos_token_id' of `.*` must be an integer or a list or null\. Received: '2'": lambda: options(
        {"eos_token_id": "2"}
    ),
    r"'typical_p' of `.*` must be one of \(None, 1\.0\): .*Received: 0\.9": lambda: options(
        {"typical_p": 0.9}, "sample"
    ),
    r"'min_length' of `.*` must be 0 or null, with 'min_new_tokens' in its place for "
    r"model_type='gpt2'; or name it in `ignore`\. Received: 9": lambda: options({"min_length": 9}),
    r"'sequence_bias' of `.*` must be a list of pairs, of tokens and a number.*\[\[3, "
    r"0\.5\]\]": lambda: options({"sequence_bias": [[3, 0.5]]}),
    r"`folder` must be of a model of two sequences, .* Received: model_type='gpt2'": lambda: start(
        {"bos_token_id": 1}, "gpt2"
    ),
    r"must have 'decoder_start_token_id' or 'bos_token_id'\. Received: neither": lambda: start(
        {"eos_token_id": 1}, "t5"
    ),
    r"'forced_decoder_ids' of `.*` must be tokens for the places 1, 2, .*"
    r"Received: \[\[1, 5\]": lambda: start({**SPEECH, "forced_decoder_ids": [[1, 5], [3, 6]]}),
    r"must say the language and the task, .* Received: \[None, None\]": lambda: start(SPEECH),
}
