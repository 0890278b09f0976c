"""What is raised by generation, and by the settings for it in a folder of Hugging Face."""

import json

import keras
import numpy as np

import keras_attention as ka
from keras_attention import convert, generation
from keras_attention.generation import Constraints
from tests.errors.calls import B, in_folder, ints, zeros

LOGITS = zeros(B, 4)


def greedy(
    logits=LOGITS, after=None, *, tokens=(0, 0), cache=(), memory=None, step=None, **options
):
    """A search by a step that returns these logits and this cache each time."""

    def same(tokens, _):
        return logits, cache if after is None else after

    options = {"max_tokens": 2, **options}
    return generation.greedy(step or same, np.array(tokens), cache, memory, **options)


def sample(**options):
    return generation.sample(lambda *_: (LOGITS, ()), [0, 0], (), max_tokens=2, **options)


def beam_search(**options):
    options = {"num_beams": 2, "max_tokens": 2, **options}
    return generation.beam_search(lambda *_: (zeros(2 * B, 4), ()), [0, 0], (), **options)


def folder(settings, model_type, call):
    """The call of a folder with settings for generation, which may be text."""
    text = settings if isinstance(settings, str) else json.dumps(settings)
    config = json.dumps({"model_type": model_type})
    return in_folder({"config.json": config, "generation_config.json": text}, call)


def of_folder(settings, method="greedy", ignore=()):
    return folder(settings, "gpt2", lambda path: convert.generation_options(path, method, ignore))


def start_tokens(settings, model_type="whisper"):
    return folder(settings, model_type, convert.start_tokens)


TOKENS = ka.Embeddings(ka.ScaledEmbedding(6, 4), ka.LearnedPositionEmbedding(4))
DECODER = ka.Decoder([ka.TransformerBlock(4, 1, causal=True)], TOKENS, logits=ka.Logits(6))
LOOKUP = generation.PromptLookup()
NO_REPEATS = Constraints(no_repeat_ngram_size=2)
SPEECH = {"decoder_start_token_id": 1, "lang_to_id": {"<|en|>": 5}, "task_to_id": {"translate": 6}}
ROWS = {
    # Searches
    "`step` must be a function .*'step'": (TypeError, lambda: greedy(step="step")),
    "max_tokens=0": lambda: greedy(max_tokens=0),
    "`(pad_token|stop_tokens)` .*integers.*(0.0|True)": (
        TypeError,
        lambda: greedy(pad_token=0.0),
        lambda: greedy(stop_tokens=(1, True)),
    ),
    "`stop_tokens` .*sequences of tokens.*2": (TypeError, lambda: greedy(stop_tokens=2)),
    r"`stop_tokens` .*0 to 3.*\[4\]": lambda: greedy(stop_tokens=(1, 4)),
    "`tokens` .*dtype float": (TypeError, lambda: greedy(tokens=(0.0, 1.0))),
    r"`tokens` .*tokens\.shape=\(2, 2\)": lambda: greedy(tokens=((0, 1), (0, 1))),
    "`cache` must have rows.*a scalar": lambda: greedy(cache={"index": zeros()}),
    "tokens=2, memory=3": lambda: greedy(memory=[zeros(3, 4)]),
    r"\(logits, cache\). Received: \w+(\n|$)": lambda: greedy(step=lambda *_: LOGITS),
    r"\(2, V\).*shape=\(2, 1, 4\)": lambda: greedy(zeros(B, 1, 4)),
    "floats.* dtype=int32": lambda: greedy(ints(B, 4)),
    "the structure .*another": lambda: greedy(after={"b": zeros(B)}, cache={"a": zeros(B)}),
    r"\(2, 1\), 'float32'.*\(2, 2\), ": lambda: greedy(after=zeros(B, 2), cache=zeros(B, 1)),
    r"NaN and \+inf.*: a cache": lambda: greedy(LOGITS + np.nan, cache=zeros(B, 1)),
    r"`max_tokens` .*\[0, 0\]": lambda: greedy(max_tokens=[0, 0]),
    "tokens=2, max=3": lambda: greedy(max_tokens=[1, 2, 3]),
    "temperature=0": lambda: sample(temperature=0),
    r"`seed` .*\[\[1\], \[2\]\]": lambda: sample(seed=[[1], [2]]),
    "tokens=2, seed=1": lambda: sample(seed=[1]),
    "tokens=2, given=3": lambda: sample(top_p=[0.1, 0.2, 0.3]),
    r"\(B,\).*top_p=\[0.5, 1.5\]": lambda: sample(top_p=[0.5, 1.5]),
    r"`logits` .*\(3,\)": lambda: generation.draw([0.0, 1.0, 2.0]),
    r"method='greedy' .*'pad_token'.*\['temperature'\]": (
        TypeError,
        lambda: generation.stream(print, [0], (), max_tokens=1, temperature=0.5),
    ),
    "method='beam_search'": (
        lambda: generation.stream(print, [0], (), max_tokens=1, method="beam_search"),
        lambda: DECODER.generate([[1]], 2, "beam_search", num_beams=2, draft=LOOKUP),
    ),
    "no `draft` and no beams": lambda: DECODER.stream([[1]], 2, draft=LOOKUP),
    "`model` must be a `Decoder`": (TypeError, lambda: generation.DraftModel("small")),
    r"the 4 positions .*of 3 tokens .*max_tokens=3": lambda: DECODER.generate([[1, 2, 3]], 3),
    r"attribute `cache`.*\['keys'\]": lambda: DECODER.generate([[1]], 2, cache={"keys": 1}),
    r"must have a token.*\[\[-1, -1\]\]": lambda: DECODER.generate(
        [[1, 2]], 2, mask=np.zeros((1, 2), bool)
    ),
    "part 0=2, part 1=3": lambda: DECODER.generate(
        [[1], [2], [3]], 2, cache={"cache": [], "text": ints(2, 1), "unread": np.ones(2, "int32")}
    ),
    "must implement `__call__": (
        TypeError,
        lambda: sample(constraints=generation.Rule(), prompt=[[0], [0]]),
    ),
    "tokens=2, forced_first_token=3": lambda: greedy(
        constraints=Constraints(forced_first_token=[1, 2, 3])
    ),
    "repetition_penalty=0.0": lambda: sample(repetition_penalty=0.0),
    "`top_p` .*top_p=1.1": lambda: sample(top_p=1.1),
    "`top_k`.*top_k=-1": lambda: sample(top_k=-1),
    "`num_beams`.*num_beams=-1": lambda: beam_search(num_beams=-1),
    "`num_return`.*num_return=-1": lambda: beam_search(num_return=-1),
    "num_return=3, num_beams=2": lambda: beam_search(num_return=3),
    "length_penalty=-0.5": lambda: beam_search(length_penalty=-0.5),
    "length_penalty=1000000.0, max_tok": lambda: beam_search(length_penalty=1e6),
    "length_rule='mean'": lambda: beam_search(length_rule="mean"),
    "stopping=True": lambda: beam_search(stopping=True),
    "`function` .*None": (TypeError, lambda: generation.compiled(None, keras.layers.Dense(1))),
    "`layer` .*'dense'": (TypeError, lambda: generation.compiled(print, "dense")),
    "`layer` .*, not built": lambda: generation.compiled(print, keras.layers.Dense(1)),
    # Constraints
    "`constraints` .*{'min_tokens': 2}": (TypeError, lambda: greedy(constraints={"min_tokens": 2})),
    "`prompt` .*`bad_words` .*, `no_repeat_ngram_size`.*prompt=None": lambda: greedy(
        constraints=Constraints(no_repeat_ngram_size=2, bad_words=[(1, 2)])
    ),
    r"prompt\.shape=\(2,\)": lambda: greedy(constraints=NO_REPEATS, prompt=[1, 0]),
    "tokens=2, prompt=1": lambda: greedy(constraints=NO_REPEATS, prompt=[[1, 0]]),
    "4, 9": lambda: greedy(constraints=Constraints(suppress_tokens=[1, 4], forced_last_token=9)),
    "`bad_words` .*3": (TypeError, lambda: Constraints(bad_words=[3])),
    r"`bad_words` .*\[\(1, 2\), \(\)\]": lambda: Constraints(bad_words=[(1, 2), ()]),
    "`forced_first_token` .*'de'": (TypeError, lambda: Constraints(forced_first_token="de")),
    "`begin_suppress_tokens` .*-1": lambda: Constraints(begin_suppress_tokens=(1, -1)),
    r"`sequence_bias` .*\[\(": (TypeError, lambda: Constraints(sequence_bias=[((1, 2), 0.5)])),
    "sequence_bias=nan": lambda: Constraints(sequence_bias={(1, 2): float("nan")}),
    "repetition_penalty=0$": lambda: Constraints(repetition_penalty=0),
    # Settings of a folder
    "method='sea": lambda: of_folder({}, "search"),
    r"`ignore` .*\['min_time'\]": lambda: of_folder({"max_time": 2.0}, ignore=["min_time"]),
    r"an object of JSON.*(\[\]|JSONDecode)": (lambda: of_folder("[]"), lambda: of_folder("{")),
    "{'top_z': 3}": lambda: of_folder({"top_z": 3}),
    "'eos_token_id' .* or null.*'2'": lambda: of_folder({"eos_token_id": "2"}),
    r"'exponential_decay_length_penalty' .*\[3\]": lambda: of_folder(
        {"exponential_decay_length_penalty": [3]}
    ),
    "'min_length' .*'min_new_tokens'.*9": lambda: of_folder({"min_length": 9}),
    r"'sequence_bias' .*\[\[3, 0.5\]\]": lambda: of_folder({"sequence_bias": [[3, 0.5]]}),
    "`folder` .*model_type='gpt2'": lambda: start_tokens({"bos_token_id": 1}, "gpt2"),
    "'decoder_start_token_id' .*neither": lambda: start_tokens({"eos_token_id": 1}, "t5"),
    "forced_decoder_ids": lambda: start_tokens({**SPEECH, "forced_decoder_ids": [[1, 5], [3, 6]]}),
    r"the language and the task.*\[None, None\]": lambda: start_tokens(SPEECH),
}
