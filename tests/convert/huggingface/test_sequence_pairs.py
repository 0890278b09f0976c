"""Encoder–decoders of `transformers`, and ours with their weights."""

import numpy as np
import pytest

from keras_attention import convert, generation
from tests.arrays import numpy
from tests.convert.huggingface import folders
from tests.convert.huggingface.sequences import (
    LEFT,
    RIGHT,
    VOCABULARY,
    additive,
    assert_close,
    ids,
    outputs,
    pair,
    random_pairs,
    read_back,
    rewritten,
    states_and_logits,
    tensor,
)

T5 = {
    "vocab_size": VOCABULARY,
    **dict(d_model=16, d_kv=6, d_ff=24, num_layers=3, num_decoder_layers=2, num_heads=4),
    **dict(relative_attention_num_buckets=8, relative_attention_max_distance=12),
    **dict(decoder_start_token_id=0),
}
BART = {
    "vocab_size": VOCABULARY,
    **dict(d_model=16, encoder_layers=3, decoder_layers=2, encoder_attention_heads=4),
    **dict(decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=28),
    **dict(max_position_embeddings=220, pad_token_id=1, bos_token_id=2, eos_token_id=2),
    **dict(decoder_start_token_id=2, forced_eos_token_id=None),
}
SPECTROGRAM = {k: v for k, v in BART.items() if k != "max_position_embeddings"}
SPECTROGRAM |= {"num_mel_bins": 5, "max_source_positions": 6, "max_target_positions": 220}
SPECTROGRAM |= {"begin_suppress_tokens": None}
GATED = {**T5, "feed_forward_proj": "gated-gelu"}
# The name of a case, with the class and the fields of its configuration.
MODELS = {
    "T5Model": ("T5Model", T5),
    "T5": ("T5ForConditionalGeneration", T5),
    "T5 1.1": ("T5ForConditionalGeneration", {**GATED, "tie_word_embeddings": False}),
    "mT5": ("MT5ForConditionalGeneration", GATED),
    "BartModel": ("BartModel", BART),
    "BART": ("BartForConditionalGeneration", {**BART, "scale_embedding": True}),
    "mBART": ("MBartForConditionalGeneration", BART),
    "Marian": ("MarianMTModel", {**BART, "scale_embedding": True, "d_model": 12}),
    "Pegasus": ("PegasusForConditionalGeneration", {**BART, "scale_embedding": True}),
    "WhisperModel": ("WhisperModel", SPECTROGRAM),
    "Whisper": ("WhisperForConditionalGeneration", SPECTROGRAM),
}
SOURCE = ids(0, *RIGHT.shape)
TARGET = ids(1, 3, 5)
TARGET_MASK = np.arange(5) < np.array([[2], [5], [4]])
SOUND = np.random.default_rng(0).normal(size=(3, 12, 5)).astype("float32")


def given(name, mask=RIGHT):
    """The inputs of the original, and ours."""
    target = {"decoder_input_ids": TARGET}
    masks = {"target_mask": TARGET_MASK}
    if name.startswith("Whisper"):
        # Neither has a mask of the sound; the original has none of its decoder's padding on the
        # left, and on the right it changes nothing.
        return {"input_features": SOUND.swapaxes(1, 2).copy(), **target}, [SOUND, TARGET], masks
    theirs = {
        "input_ids": SOURCE,
        "attention_mask": mask.astype("int32"),
        "decoder_attention_mask": TARGET_MASK.astype("int32"),
        **target,
    }
    return theirs, [SOURCE, TARGET], {"source_mask": mask, **masks}


def output(original, theirs):
    """Hidden states or logits."""
    found = outputs(original, **theirs)
    return found.logits if "logits" in found else found.last_hidden_state


@pytest.mark.parametrize("name", MODELS)
def test_states_and_logits(name, pairs, measured):
    theirs, inputs, masks = given(name)
    both = pairs(name)
    expected = outputs(both.original, **theirs, output_hidden_states=True)
    states, logits = states_and_logits(both.ours, inputs, **masks)
    theirs = expected.decoder_hidden_states[-1]
    measured(both.ours, states=assert_close(states, theirs, TARGET_MASK))
    assert (logits is None) == ("logits" not in expected)
    if logits is not None:
        measured(both.ours, logits=assert_close(logits, expected.logits, TARGET_MASK))


@pytest.mark.parametrize("name", [name for name in MODELS if not name.startswith("Whisper")])
def test_padding_on_the_left(name, pairs):
    """What the original gives for each row alone: those with tables count padding."""
    _, inputs, masks = given(name, LEFT)
    both = pairs(name)
    found = both.ours(inputs, **masks)
    for row, (mask, target) in enumerate(zip(LEFT, TARGET_MASK, strict=True)):
        alone = {"input_ids": SOURCE[row : row + 1, mask]}
        alone["decoder_input_ids"] = TARGET[row : row + 1, target]
        expected = output(both.original, alone)
        assert_close(found[row : row + 1, : int(target.sum())], expected)


@pytest.mark.parametrize("name", ["T5", "BART", "mBART", "Marian"])
def test_a_mask_of_pairs(name, pairs):
    both, allowed = pairs(name), random_pairs(*SOURCE.shape)
    encoder = both.original.get_encoder()
    expected = outputs(encoder, input_ids=SOURCE, attention_mask=additive(allowed))
    assert_close(both.ours.encoder(SOURCE, attention_mask=allowed), expected.last_hidden_state)


@pytest.mark.parametrize("name", MODELS)
def test_saved_and_written_back(name, pairs, fresh, measured, tmp_path):
    theirs, inputs, masks = given(name)
    both = pairs(name)
    saved = fresh.check(both.ours, tmp_path, inputs, **masks)
    back = output(read_back(both.ours, both.original, tmp_path / "back"), theirs)
    back = assert_close(back, output(both.original, theirs), TARGET_MASK, tolerance=1e-6)
    measured(both.ours, saved=saved, back=back)


GENERATORS = ["T5", "T5 1.1", "BART", "mBART", "Marian", "Pegasus", "Whisper"]


def generate(both, name, **options):
    """The tokens, and the scores of beams, of the original."""
    import torch
    import transformers

    theirs, _, _ = given(name)
    theirs = {k: tensor(v) for k, v in theirs.items() if not k.startswith("decoder")}
    model = both.original
    # Where `options` say None, it would be read from here.
    model.generation_config.eos_token_id = None
    settings = transformers.GenerationConfig(
        decoder_start_token_id=model.config.decoder_start_token_id,
        pad_token_id=model.config.pad_token_id,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    # Whisper's own cuts long sounds into pieces; this is what it calls for each.
    run = transformers.GenerationMixin.generate
    with torch.no_grad():
        return run(model, **theirs, generation_config=settings)


def generated(both, name, max_tokens, search, **options):
    """The result of a search of ours, in a compiled program."""
    _, inputs, masks = given(name)
    first = np.full((3, 1), both.original.config.decoder_start_token_id, "int32")
    model = both.ours

    def write(source, first):
        mask = masks.get("source_mask")
        last, cache, memory = model.start(source, first, max_tokens, mask)
        return search(model.step, last, cache, memory, max_tokens=max_tokens, **options)

    return generation.compiled(write, model)(inputs[0], first)


@pytest.mark.parametrize("name", GENERATORS)
def test_200_greedy_tokens(name, pairs, measured):
    both = pairs(name, restless=True)
    expected = generate(both, name, max_new_tokens=200, eos_token_id=None)
    found = generated(both, name, 200, generation.greedy)
    assert len(np.unique(expected.sequences.numpy()[:, 1:])) > 2
    folders.assert_greedy(numpy(found.tokens), expected)
    measured(both.ours, tokens=200)


@pytest.mark.parametrize("name", GENERATORS)
def test_4_beams(name, pairs, measured):
    """Without length penalty both definitions are one: sums of log-probabilities.

    A row ends when its best live beam is below the worst of four finished ones.
    """
    both = pairs(name, restless=True)
    stop = 7
    expected = generate(
        both,
        name,
        max_new_tokens=20,
        num_beams=4,
        num_return_sequences=4,
        length_penalty=0.0,
        early_stopping=False,
        eos_token_id=stop,
    )
    found = generated(
        both,
        name,
        20,
        generation.beam_search,
        num_beams=4,
        num_return=4,
        length_penalty=0.0,
        stop_tokens=(stop,),
        pad_token=both.original.config.pad_token_id,
    )
    tokens = expected.sequences.numpy()[:, 1:]
    ours = numpy(found.tokens).reshape(12, -1)[:, : tokens.shape[1]]
    np.testing.assert_array_equal(ours, tokens)
    scores = expected.sequences_scores.numpy()
    np.testing.assert_allclose(numpy(found.scores).ravel(), scores, atol=1e-3)
    measured(both.ours, beams=4)


def test_t5_with_a_matrix_of_its_own(tmp_path):
    """As files of version 1.1 have it: the logits are not tied to the table of tokens."""
    from safetensors.numpy import load_file, save_file

    both = pair(tmp_path / "tied", *MODELS["T5 1.1"])
    folder = rewritten(
        tmp_path / "tied", tmp_path / "own", tie_word_embeddings=False, scale_decoder_outputs=None
    )
    tensors = load_file(folder / "model.safetensors")
    rng = np.random.default_rng(0)
    tensors["lm_head.weight"] = rng.normal(size=(VOCABULARY, 16)).astype("float32")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    theirs, inputs, masks = given("T5")
    original = type(both.original).from_pretrained(folder).eval()
    model = convert.from_huggingface(folder)
    expected = output(original, theirs)
    assert_close(model(inputs, **masks), expected, TARGET_MASK)
    back = output(read_back(model, original, tmp_path / "back"), theirs)
    np.testing.assert_allclose(back, expected, rtol=0, atol=1e-6)


def test_the_encoder_of_t5_alone(tmp_path):
    fields = {k: v for k, v in T5.items() if k != "num_decoder_layers"}
    both = pair(tmp_path, "T5EncoderModel", fields)
    theirs = {"input_ids": SOURCE, "attention_mask": RIGHT.astype("int32")}
    expected = output(both.original, theirs)
    assert_close(both.ours(SOURCE, mask=RIGHT), expected, RIGHT)
    back = output(read_back(both.ours, both.original, tmp_path / "back"), theirs)
    np.testing.assert_allclose(back, expected, rtol=0, atol=1e-6)
