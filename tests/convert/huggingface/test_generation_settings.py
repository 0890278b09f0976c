"""Settings of folders for generation: the tokens are those of `transformers`'s `generate`."""

import json

import keras
import numpy as np
import pytest

from keras_attention import convert, generation
from keras_attention.convert.huggingface.config import Config
from keras_attention.convert.huggingface.fields import GENERATION as FIELDS
from tests.arrays import numpy
from tests.convert.huggingface import models
from tests.convert.huggingface.models import IDS, RIGHT, SOUND, torch, transformers
from tests.convert.huggingface.test_published_fields import PUBLISHED

COUNT = 12
KINDS = {"GPT-2": "gpt2", "BART": "bart", "Marian": "marian", "T5": "t5", "Whisper": "whisper"}
KINDS["NLLB"] = "m2m_100"
# All that a text can break, of random models that end now and then.
RULES = {
    **dict(eos_token_id=[2, 7, 19], pad_token_id=1, suppress_tokens=[3, 30]),
    **dict(begin_suppress_tokens=[4, 5, 6], bad_words_ids=[[8], [9, 10], [11, 12, 13], [7]]),
    "sequence_bias": [[[14], 1.5], [[15, 16], 2.5], [[17, 16], -3.0], [[15, 15], 1.0]],
    "repetition_penalty": 1.3,
    "no_repeat_ngram_size": 2,
}
STARTS = {"decoder_start_token_id": 2}
# Settings, with those of a real folder's kind among them. What is None is of the folder.
CASES = {
    "GPT-2 greedy": {**RULES, "min_new_tokens": 5},
    "GPT-2 beams": {**RULES, "num_beams": 3, "early_stopping": "never", "num_return_sequences": 2},
    "GPT-2 greedy once": {"no_repeat_ngram_size": 1, "forced_eos_token_id": [3]},
    "GPT-2 greedy decay": dict(
        eos_token_id=[2, 7], exponential_decay_length_penalty=[3, 1.3], no_repeat_ngram_size=1
    ),
    "BART greedy": RULES
    | STARTS
    | dict(forced_bos_token_id=5, forced_eos_token_id=2, min_length=5),
    "BART beams": STARTS
    | dict(eos_token_id=[2, 20, 21, 22], num_beams=4, length_penalty=2.0, early_stopping=True)
    | dict(no_repeat_ngram_size=3, min_length=4, forced_bos_token_id=0, forced_eos_token_id=2),
    "Marian beams": dict(
        eos_token_id=[0, 20, 21, 22], decoder_start_token_id=1, bad_words_ids=[[1]]
    )
    | dict(forced_eos_token_id=0, num_beams=4, num_return_sequences=4)
    | dict(renormalize_logits=True, sequence_bias=[[[14], 3.0], [[15], -4.0]]),
    "NLLB greedy": STARTS | dict(eos_token_id=[2, 20], forced_bos_token_id=11, pad_token_id=1),
    "T5 beams": dict(
        eos_token_id=[1, 20, 21], decoder_start_token_id=0, num_beams=3, length_penalty=0.5
    )
    | dict(repetition_penalty=1.4, sequence_bias=[[[14], -2.0], [[15, 16], -0.5]])
    | dict(num_return_sequences=2),
    "T5 greedy": {"eos_token_id": 1, "bos_token_id": 9, "min_length": 4, "pad_token_id": 0},
    "Whisper greedy": STARTS
    | dict(eos_token_id=2, suppress_tokens=[1, 7, 8, 9], begin_suppress_tokens=[2, 20])
    | dict(forced_decoder_ids=[[1, 33], [2, 34]], no_timestamps_token_id=35)
    | dict(no_repeat_ngram_size=2),
}


@pytest.fixture
def folders(folder, tmp_path_factory):
    """A function of a name in `KINDS` and settings: a folder with them, and both models of it."""

    def get(name, settings, old=False):
        cls, fields = models.case(KINDS[name])
        change = {} if name == "GPT-2" else {"change": models.negate_last_norm}
        made = folder(cls, **fields, **change)
        copy = made.copied(tmp_path_factory.mktemp("copy"), **(settings if old else {}))
        (copy.path / "generation_config.json").unlink()
        if not old:
            (copy.path / "generation_config.json").write_text(json.dumps(settings), "utf-8")
        return copy.path, cls.from_pretrained(copy.path).eval(), made.ours

    return get


def expected(name, folder, model):
    """The tokens that `transformers` generates with the settings of a folder, after the prompt."""
    given, start = models.without("decoder_input_ids", models.arrays(model)), 1
    if name == "GPT-2":
        # Padding would be tokens of n-grams there.
        start = IDS.shape[1]
    elif name == "Whisper":
        start = len(convert.start_tokens(folder))
        given["decoder_input_ids"] = np.array([convert.start_tokens(folder)] * 3)
    else:
        given["attention_mask"] = RIGHT
    given = {name: models.tensor(x) for name, x in given.items()}
    # Whisper's own cuts long sounds into pieces; this is what it calls for each.
    with torch.no_grad():
        found = transformers.GenerationMixin.generate(model, max_new_tokens=COUNT, **given)
    return found.numpy()[:, start:]


def generated(name, folder, model, method, compiled=False):
    """Ours, by one line."""
    options, search = convert.generation_options(folder, method), getattr(generation, method)
    sources = {"GPT-2": (), "Whisper": (SOUND,)}.get(name, (IDS,))
    mask = None if name in ("GPT-2", "Whisper") else RIGHT
    prompt = IDS if name == "GPT-2" else [convert.start_tokens(folder)] * len(IDS)
    if compiled:
        masks = {} if mask is None else {"source_mask": mask}
        found = model.generate(*sources, prompt, COUNT, method, **masks, **options)
        return numpy(found.tokens).reshape(-1, COUNT)

    def write(prompt, *sources):
        started = model.start(*sources, prompt, COUNT, mask)
        return search(model.step, *started, max_tokens=COUNT, prompt=prompt, **options)

    return numpy(write(np.array(prompt, "int32"), *sources).tokens).reshape(-1, COUNT)


def check(folders, case, compiled=False, old=False, **more):
    name, kind = case.split()[:2]
    folder, theirs, ours = folders(name, CASES[case] | more, old)
    method = "beam_search" if kind == "beams" else "greedy"
    tokens = expected(name, folder, theirs)
    found = generated(name, folder, ours, method, compiled)
    assert len(np.unique(tokens)) > 3
    # Theirs ends with the longest; both fill with the padding.
    np.testing.assert_array_equal(found[:, : tokens.shape[1]], tokens)
    pad = convert.generation_options(folder)["pad_token"]
    assert (found[:, tokens.shape[1] :] == pad).all()
    return tokens


@pytest.mark.parametrize("case", CASES)
def test_greedy_and_beams_find_the_same_tokens(case, folders):
    check(folders, case, compiled=keras.config.backend() == "jax")


@pytest.mark.parametrize("case", ["GPT-2 greedy", "T5 greedy"])
def test_in_a_compiled_program(case, folders):
    """On every backend by default, as the cases above are on PyTorch."""
    check(folders, case, compiled=True)


on_torch = pytest.mark.skipif(keras.config.backend() != "torch", reason="read alike everywhere")


@on_torch
@pytest.mark.parametrize("case", ["BART greedy", "BART beams"])
def test_settings_in_config_json(case, folders):
    """As folders have them that are older than `generation_config.json`."""
    check(folders, case, old=True)


@on_torch
def test_a_forced_token_of_old_files_of_bart(folders):
    """With all settings in `config.json`, as folders older than `generation_config.json` have."""
    forced = {"force_bos_token_to_be_generated": True, "bos_token_id": 9}
    tokens = check(folders, "BART greedy", old=True, forced_bos_token_id=None, **forced)
    assert (tokens[:, 0] == 9).all()


# Of fields that are ignored in greedy search: others than the defaults, which `transformers` takes.
IGNORED = {
    **dict(max_length=33, max_new_tokens=7, output_scores=True, output_logits=True),
    **dict(output_attentions=True, output_hidden_states=True, use_cache=False, max_cache_len=50),
    **dict(disable_compile=True, num_assistant_tokens=3),
    **dict(num_assistant_tokens_schedule="heuristic", max_matching_ngram_size=3),
    **dict(assistant_confidence_threshold=0.9, assistant_lookbehind=2, target_lookbehind=2),
    **dict(remove_invalid_values=True, renormalize_logits=True, early_stopping=True),
    **dict(length_penalty=3.0, temperature=0.1, top_k=2, top_p=0.1, min_p=0.9, top_h=0.5),
    **dict(typical_p=0.5, epsilon_cutoff=0.5, eta_cutoff=0.5, num_return_sequences=1),
    **dict(transformers_version="4.0.0", bos_token_id=4, decoder_start_token_id=4),
}


@on_torch
def test_ignored_settings_change_nothing(folders):
    plain = {"eos_token_id": 7, "pad_token_id": 1}
    folder, theirs, _ = folders("GPT-2", plain)
    tokens = expected("GPT-2", folder, theirs)
    options = convert.generation_options(folder)
    folder, theirs, _ = folders("GPT-2", {**plain, **IGNORED})
    np.testing.assert_array_equal(expected("GPT-2", folder, theirs), tokens)
    assert convert.generation_options(folder) == options


@on_torch
def test_all_fields_of_transformers_are_known():
    fields = transformers.GenerationConfig().to_dict().keys()
    fields |= transformers.GenerationConfig._get_default_generation_params().keys()
    for method, table in FIELDS.items():
        assert fields - table.keys() == set(), method
        for name, field in table.items():
            assert (field.kind is None) == bool(field.reason), name
        # Absent and null are the same, and so are the defaults.
        values = {**transformers.GenerationConfig._get_default_generation_params()}
        Config({name: value for name, value in values.items() if value is not None}, table)


# Values that are refused, of fields that may have others.
REFUSED = {
    "greedy": {"forced_eos_token_id": [1, 2], "a_field_of_tomorrow": 1},
    "sample": {"top_k": -1},
    "beam_search": {"length_penalty": -1.0, "early_stopping": "soon"},
}


@pytest.mark.any_backend
@pytest.mark.parametrize("method", FIELDS)
def test_what_has_no_equivalent_is_refused_by_its_name(method, tmp_path):
    # What null is a choice for may have no other value but a neutral one.
    off = {name for name, field in FIELDS[method].items() if None in field.choices}
    assert {"guidance_scale", "penalty_alpha", "stop_strings", "num_beam_groups"} <= off
    for name, value in {**dict.fromkeys(off, 0.7), **REFUSED[method]}.items():
        folder = written(tmp_path, {"eos_token_id": 2, name: value})
        with pytest.raises(ValueError, match=name):
            convert.generation_options(folder, method)
        options = convert.generation_options(folder, method, ignore=[name])
        assert options["stop_tokens"] == (2,) and options["constraints"] is None


def written(path, settings=None, **config):
    """A folder with settings, or with those in `config.json` alone."""
    config = {"model_type": "gpt2", **config}
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if settings is not None:
        text = json.dumps(settings)
        (path / "generation_config.json").write_text(text, encoding="utf-8")
    return path


# Settings as they are published, with what is of them in each way of generating.
CHAT = {
    **dict(bos_token_id=151643, pad_token_id=151643, do_sample=True),
    **dict(eos_token_id=[151645, 151643], repetition_penalty=1.05, temperature=0.7, top_p=0.8),
    **dict(top_k=20, transformers_version="4.37.0"),
}
WHISPER = {
    **dict(alignment_heads=[[2, 2], [3, 0]], begin_suppress_tokens=[220, 50257]),
    **dict(bos_token_id=50257, decoder_start_token_id=50258, eos_token_id=50257),
    **dict(is_multilingual=True),
    "lang_to_id": {"<|de|>": 50261, "<|en|>": 50259},
    **dict(max_initial_timestamp_index=50, max_length=448, no_timestamps_token_id=50363),
    **dict(pad_token_id=50257, prev_sot_token_id=50361, return_timestamps=False),
    **dict(suppress_tokens=[1, 2, 7]),
    "task_to_id": {"transcribe": 50359, "translate": 50358},
    "transformers_version": "4.31.0.dev0",
}


@pytest.mark.any_backend
def test_settings_as_they_are_published(tmp_path):
    folder = written(tmp_path, CHAT, model_type="qwen2", eos_token_id=151645)
    rules = generation.Constraints(repetition_penalty=1.05)
    tokens = {"stop_tokens": (151645, 151643), "pad_token": 151643, "constraints": rules}
    assert convert.generation_options(folder) == tokens
    sampling = {"temperature": 0.7, "top_p": 0.8, "top_k": 20}
    assert convert.generation_options(folder, "sample") == {**tokens, **sampling}
    beams = {"num_beams": 1, "num_return": 1, "length_penalty": 1.0, "length_rule": "power"}
    beams |= {"stopping": "estimate", "renormalize": False}
    assert convert.generation_options(folder, "beam_search") == {**tokens, **beams}
    folder = written(tmp_path, {"top_k": 0, "min_p": 0.0})
    options = convert.generation_options(folder, "sample")
    assert options == {"stop_tokens": (), "pad_token": 0, "constraints": None}
    assert convert.generation_options(written(tmp_path, {}), "sample")["top_k"] == 50
    folder = written(tmp_path, WHISPER, model_type="whisper")
    rules = generation.Constraints(suppress_tokens=(1, 2, 7), begin_suppress_tokens=(220, 50257))
    assert convert.generation_options(folder)["constraints"] == rules


@pytest.mark.any_backend
def test_start_tokens(tmp_path):
    def start(model_type="whisper", **settings):
        return convert.start_tokens(written(tmp_path, settings, model_type=model_type))

    assert start("marian", decoder_start_token_id=58100, bos_token_id=0) == [58100]
    assert start("bart", bos_token_id=7) == [7]
    english = {"forced_decoder_ids": [[1, 50362]], "no_timestamps_token_id": 50362}
    assert start(decoder_start_token_id=50257, **english) == [50257, 50362]
    forced = {**WHISPER, "forced_decoder_ids": [[1, 50259], [2, 50359]]}
    assert start(**forced) == [50258, 50259, 50359, 50363]
    german = [50258, 50261, 50358, 50363]
    assert start(**WHISPER, language="de", task="translate") == german
    assert start(**forced, language="<|de|>") == [50258, 50261, 50359, 50363]
    # Whatever else is there.
    stamps = {**forced, "return_timestamps": True, "guidance_scale": 3.0, "a_field": 1}
    assert start(**stamps) == [50258, 50259, 50359]


@pytest.mark.any_backend
def test_published_configurations_have_settings(tmp_path):
    for config in PUBLISHED.values():
        folder = written(tmp_path, **config)
        for method in FIELDS:
            options = convert.generation_options(folder, method)
            stops = config.get("eos_token_id")
            stops = stops if isinstance(stops, list) else [stops] if stops is not None else []
            assert options["stop_tokens"] == tuple(stops)
    summaries = convert.generation_options(
        written(tmp_path, **PUBLISHED["facebook/bart-large-cnn"]), "beam_search"
    )
    rules = generation.Constraints(
        forced_first_token=0, forced_last_token=2, min_tokens=55, no_repeat_ngram_size=3
    )
    assert summaries["constraints"] == rules
    assert (summaries["num_beams"], summaries["length_penalty"]) == (4, 2.0)
    assert summaries["stopping"] == "first"
