"""What models compute, learn, generate, save and write, beside `transformers`."""

import copy

import keras
import numpy as np
import pytest

from keras_attention import Decoder, EncoderDecoder, GatedDeltaNet, RMSNorm, convert, generation
from keras_attention.convert.huggingface.architectures import ARCHITECTURES
from tests.convert.huggingface import models
from tests.convert.huggingface.models import LEFT, RIGHT, TARGET_MASK, case, transformers
from tests.gradients import gradients, weight_gradients

TEXTS = [name for name in models.CASES if "input_ids" in str(models.inputs_of(case(name)[0]))]
GENERATING = [name for name in models.CASES if case(name)[0].__name__.endswith(models.GENERATING)]
# Of which 200 tokens are generated, and four beams.
SEARCHED = ("gpt2", "llama", "qwen2", "qwen3", "t5", "mt5", "bart", "mbart", "marian", "pegasus")
SEARCHED += ("t5, 1.1", "whisper")


@pytest.fixture
def made(folder, name):
    cls, fields = case(name)
    return folder(cls, **fields)


@pytest.mark.parametrize("name", models.CASES)
def test_states_and_logits(made, name, measured):
    """Those of each row alone: padding, on either side, changes nothing."""
    is_text, largest = name in TEXTS, {"states": 0.0, "logits": 0.0}
    for mask in (RIGHT, LEFT) if is_text else (None,):
        inputs, given = models.ours_of(made.ours, made.theirs, mask)
        ours = models.watched(made.ours, inputs, **given)
        transform = getattr(getattr(made.ours, "logits", None), "transform", None)
        if isinstance(made.ours, Decoder) and transform is not None:
            ours = transform(ours[0]), ours[1]
        for row in range(3):
            real = np.s_[row : row + 1]
            if isinstance(made.ours, EncoderDecoder):
                real = row, TARGET_MASK[row]
            elif is_text:
                real = row, mask[row]
            theirs = models.states_and_logits(made.theirs, models.alone(made.theirs, row))
            for kind, found, expected in zip(largest, ours, theirs, strict=True):
                if expected is None:
                    continue
                pooled = len(found.shape) == 2
                found = models.numpy(found)[np.s_[row : row + 1] if pooled else real]
                expected = models.numpy(expected)
                if kind == "logits" and "Projection" in name:
                    # Of the whole: that of the first token, or of the end of CLIP's text.
                    found = found.reshape(-1, found.shape[-1])
                    found = found[-1:] if name.startswith("CLIPText") else found[:1]
                expected = expected.reshape(found.shape)
                largest[kind] = max(largest[kind], models.difference(found, expected))
    assert (ours[1] is None) == (theirs[1] is None)
    assert max(largest.values()) <= models.TOLERANCE, largest
    measured(made.ours, **largest)


# A classifier takes none, nor does Longformer. One is all that BLOOM takes, with distances in it.
# DeBERTa multiplies the embeddings by the mask.
WITHOUT_PAIRS = ("Classification", "longformer", "Longformer", "bloom", "deberta", "Deberta")
WITHOUT_PAIRS += ("clip", "CLIP", "siglip", "whisper", "Whisper", "PreTraining")
WITHOUT_PAIRS += ("QuestionAnswering", "qwen3_next")


@pytest.mark.parametrize("name", [x for x in TEXTS if not any(y in x for y in WITHOUT_PAIRS)])
def test_a_mask_of_pairs(made, name):
    """Beside the causal one and windows, which theirs replaces."""
    ids, pairs, config = models.tokens((2, 9)), models.random_pairs(2, 9), made.theirs.config
    ours, theirs = made.ours, made.theirs
    if isinstance(ours, EncoderDecoder):
        ours, theirs = ours.encoder, theirs.get_encoder()
    causal = isinstance(ours, Decoder)
    seen = pairs & np.tril(np.ones((9, 9), "bool")) if causal else pairs
    reach = (
        1 if config.model_type == "modernbert" else (getattr(config, "sliding_window", 0) or 9) - 1
    )
    near = seen & (np.abs(np.subtract.outer(np.arange(9), np.arange(9))) <= reach)
    by_type = {"full_attention": seen, "sliding_attention": near}
    mask = {kind: models.tensor(models.additive(x)) for kind, x in by_type.items()}
    mask = mask if getattr(config, "layer_types", None) else mask["sliding_attention"]
    given = {"input_ids": ids, "attention_mask": mask}
    if name.startswith("opt"):
        # It counts them in the mask.
        given["position_ids"] = np.tile(np.arange(9), (2, 1))
    found = models.call(theirs, **given)
    expected = found.logits if "logits" in found else found.last_hidden_state
    assert models.difference(ours(ids, attention_mask=pairs), expected) <= models.TOLERANCE


@pytest.mark.parametrize("name", models.CASES)
def test_saved_and_written_back(made, name, fresh, measured, tmp_path):
    """The same tensors, which `transformers` loads without complaint."""
    inputs, given = models.ours_of(made.ours, made.theirs, RIGHT)
    saved = fresh.check(made.ours, tmp_path, inputs, **given)
    back, told = made.read_back(tmp_path / "back", output_loading_info=True)
    before, after = models.stored(made.path), models.stored(tmp_path / "back")
    # Poolers and heads of other tasks are left out, and biases of keys that are zero.
    assert not told["unexpected_keys"] and after.keys() <= before.keys()
    if isinstance(made.ours, Decoder):
        assert after.keys() == before.keys() and not told["missing_keys"]
    # The norms of Nemotron have 1 + w, and the first rows of some tables are of no position.
    tolerance = 1e-6 if name == "nemotron" else 0.0
    for key, tensor in after.items():
        first = 2 if "embed_positions" in key and "whisper" not in name.lower() else 0
        first = 2 if before[key][:2].any() and not tensor[:2].any() else first
        np.testing.assert_allclose(tensor[first:], before[key][first:], 0, tolerance, err_msg=key)
    row = models.alone(made.theirs, 0)
    states, logits = models.states_and_logits(made.theirs, row)
    found = models.states_and_logits(back, row)[states is None]
    largest = models.difference(found, logits if states is None else states)
    assert largest <= 1e-6
    measured(made.ours, saved=saved, back=largest)


def generate(made, **options):
    """What `transformers` generates, with the logits of each step, and the length of prompts."""
    given, start = models.arrays(made.theirs), 1
    given = {name: x for name, x in given.items() if not name.startswith(("decoder", "token_type"))}
    if isinstance(made.ours, Decoder):
        given |= {"input_ids": models.ours_of(made.ours, made.theirs, LEFT)[0]}
        given["attention_mask"], start = LEFT, 9
    elif "input_ids" in given:
        given["attention_mask"] = RIGHT
    options |= {"do_sample": False, "return_dict_in_generate": True, "output_scores": True}
    options["decoder_start_token_id"] = getattr(made.theirs.config, "decoder_start_token_id", None)
    options["pad_token_id"] = made.theirs.config.pad_token_id or 0
    config = transformers.GenerationConfig(**options)
    # Where `options` say nothing, these would be read from here.
    for name in ("eos_token_id", "forced_eos_token_id"):
        setattr(made.theirs.generation_config, name, None)
    # Whisper's own cuts long sounds into pieces; this is what it calls for each.
    run = transformers.GenerationMixin.generate
    given = {name: models.tensor(x) for name, x in given.items()}
    with models.torch.no_grad():
        return run(made.theirs, **given, generation_config=config), start


def generated(made, search, count, **options):
    """What a search of ours generates; of pairs in a compiled program."""
    model = made.ours
    mask = LEFT if isinstance(model, Decoder) else RIGHT
    inputs, given = models.ours_of(model, made.theirs, mask)
    if isinstance(model, Decoder):
        last, cache = model.start(inputs, max_tokens=count, mask=given["mask"])
        return search(model.step, last, cache, max_tokens=count, **options)
    first = np.full((3, 1), made.theirs.config.decoder_start_token_id, "int32")

    def run(source, first):
        last, cache, memory = model.start(source, first, count, given.get("source_mask"))
        return search(model.step, last, cache, memory, max_tokens=count, **options)

    return generation.compiled(run, model)(inputs[0], first)


@pytest.fixture
def restless(folder, name):
    """A pair does not repeat a token: the scale of its last norm is negative."""
    cls, fields = case(name)
    kind = cls.config_class.model_type
    change = {"change": models.negate_last_norm} if kind in models.PAIRS else {}
    return folder(cls, **fields, **change)


@pytest.mark.parametrize("name", GENERATING)
def test_greedy_tokens(restless, name, measured, near=1e-4):
    """Up to the first in each row where the best two logits differ by less than rounding."""
    count = 200 if name in SEARCHED else 30
    expected, start = generate(restless, max_new_tokens=count)
    logits = np.stack([step.numpy() for step in expected.scores], axis=1)
    expected = expected.sequences.numpy()[:, start:]
    found = models.numpy(generated(restless, generation.greedy, count).tokens)
    assert isinstance(restless.ours, Decoder) or len(np.unique(expected)) > 2
    second, first = np.moveaxis(np.sort(logits, axis=-1)[..., -2:], -1, 0)
    other = found != expected
    margin = np.take_along_axis(first - second, np.argmax(other, axis=1)[:, None], axis=1)[:, 0]
    np.testing.assert_array_less(margin[other.any(axis=1)], near)
    measured(restless.ours, tokens=count)


@pytest.mark.parametrize("name", SEARCHED)
def test_4_beams(restless, name, measured):
    """All of them, best first. Without length penalty both definitions are one: sums.

    A row of a pair ends when its best live beam is below the worst of four finished ones.
    """
    decoder = isinstance(restless.ours, Decoder)
    beams = {"num_beams": 4, "length_penalty": 0.0}
    options = {} if decoder else {"early_stopping": False, "eos_token_id": 7}
    found, start = generate(restless, max_new_tokens=20, num_return_sequences=4, **beams, **options)
    pad = restless.theirs.config.pad_token_id or 0
    options = {} if decoder else {"stop_tokens": (7,), "pad_token": pad}
    ours = generated(restless, generation.beam_search, 20, num_return=4, **beams, **options)
    tokens = found.sequences.numpy()[:, start:]
    ours_tokens = models.numpy(ours.tokens).reshape(12, -1)[:, : tokens.shape[1]]
    np.testing.assert_array_equal(ours_tokens, tokens)
    scores = found.sequences_scores.numpy()
    np.testing.assert_allclose(models.numpy(ours.scores).ravel(), scores, atol=1e-3)
    measured(restless.ours, beams=4)


_UNTIED = {"tie_word_embeddings": False, "scale_decoder_outputs": None}
_POSITIONS = {f"model.{side}.embed_positions.weight": 220 for side in ("encoder", "decoder")}


@pytest.mark.parametrize(
    ("name", "stored", "changed"),
    [
        # The logits are not tied to the table of tokens.
        ("t5, 1.1", {"lm_head.weight": 50}, _UNTIED),
        # Positions are not the sines that others have.
        ("marian", _POSITIONS, {}),
        ("pegasus", _POSITIONS, {}),
    ],
)
def test_what_files_alone_say(name, stored, changed, folder, tmp_path):
    """By tensors that other files of the architecture lack: these are read, and written."""
    cls, fields = case(name)
    stored = {
        key: (n + 1) * models.normal(rows, fields["d_model"])
        for n, (key, rows) in enumerate(stored.items())
    }
    made = folder(cls, **fields).copied(tmp_path, tensors=stored, **changed)
    theirs = cls.from_pretrained(tmp_path).eval()
    inputs, given = models.ours_of(made.ours, theirs, np.ones((3, 9), "bool"))
    expected = models.call(theirs, input_ids=models.IDS, decoder_input_ids=models.TARGET).logits
    found = models.numpy(made.ours(inputs, **given))
    expected = models.numpy(expected)
    assert models.difference(found, expected, TARGET_MASK) <= models.TOLERANCE
    convert.to_huggingface(made.ours, tmp_path / "back")
    written = models.stored(tmp_path / "back")
    for key, tensor in stored.items():
        np.testing.assert_array_equal(written[key], tensor)
    wide = {x.wide_residual for x in (*made.ours.encoder.blocks, *made.ours.decoder.blocks)}
    assert wide == {name == "t5, 1.1"}


# A Swin shifts no windows in a stage that one covers in images of the folder's size, the first.
SMALL = {"image_size": 4, "depths": [2, 2]}
SIZES: dict = {key: [(17, 12)] for key in ("ViTModel", "DeiTModel", "CLIPVisionModel")}
SIZES |= {"dinov2": [(12, 20), (17, 7)], "SwinModel": [(4, 4), (9, 6), (7, 3)]}
SIZES |= {"Swinv2Model": [(3, 9), (7, 20)]}


@pytest.mark.parametrize("name", SIZES)
def test_images_of_any_size(name, folder, tmp_path):
    """One model, whose table of positions is interpolated and whose windows are padded."""
    cls, fields = case(name)
    made = folder(cls, **(fields | (SMALL if name == "SwinModel" else {})))
    encoder = models.through_a_file(made.ours, tmp_path)
    inputs = keras.Input((None, None, 2))
    model = keras.Model(inputs, encoder(inputs))
    for size in SIZES[name]:
        images = models.normal(2, *size, 2)
        given = {"pixel_values": images.transpose(0, 3, 1, 2).copy()}
        if "interpolate_pos_encoding" in models.inputs_of(cls):
            given["interpolate_pos_encoding"] = True
        expected = models.call(made.theirs, **given)
        # Of symbols, on TensorFlow: of the second size and all others.
        compiled = name in ("dinov2", "SwinModel", "Swinv2Model")
        found = model.predict(images, verbose=0) if compiled else model(images)
        assert models.difference(found, expected.last_hidden_state) <= models.TOLERANCE
        if name == "CLIPVisionModel":
            pooled = encoder.final_norm.pooled(found)
            assert models.difference(pooled, expected.pooler_output) <= models.TOLERANCE


@pytest.mark.parametrize(
    "kind",
    ["gpt2", "llama", "gpt_oss", "qwen3_next", "bert", "longformer", "deberta-v2", "t5", "swinv2"],
)
def test_gradients(kind, folder):
    """Of a step of training, through the tensors of the files."""
    cls, fields = case(kind)
    made = folder(cls, **fields)
    inputs, given = models.ours_of(made.ours, made.theirs, RIGHT)
    theirs, real = {**models.arrays(made.theirs), "attention_mask": RIGHT}, RIGHT
    if kind == "t5":
        theirs, real = {**theirs, "decoder_attention_mask": TARGET_MASK}, TARGET_MASK
    labels = models.tokens(real.shape, 2)
    if kind == "swinv2":
        theirs, real, labels = models.arrays(made.theirs), np.ones(3, bool), np.array([0, 2, 1])
    theirs["labels"] = np.where(real, labels, -100)
    made.theirs.zero_grad()
    made.theirs(**{name: models.tensor(x) for name, x in theirs.items()}).loss.backward()
    if kind in ("gpt2", "llama", "gpt_oss", "qwen3_next"):
        # Theirs compares what is written after each token.
        labels, real = np.roll(labels, -1, axis=1), np.roll(real, -1, axis=1)
        real[:, -1] = False

    def loss():
        logits = made.ours(inputs, **given)
        lost = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        return keras.ops.sum(keras.ops.multiply(lost, real / real.sum()))

    found, _ = weight_gradients(made.ours, loss)
    of = dict(zip(map(id, made.ours.trainable_variables), map(np.asarray, found), strict=True))
    architecture = ARCHITECTURES[kind]
    entries = architecture.entries(made.ours, architecture.prefix)
    expected = {name: x.grad for name, x in made.theirs.named_parameters() if x.grad is not None}
    if kind == "qwen3_next":
        # Of which files have each expert by itself.
        entries = [entry for entry in entries if ".experts." not in entry.name]
        expected = {name: x for name, x in expected.items() if ".experts." not in name}
    assert {entry.name for entry in entries} >= set(expected)
    for entry in entries:
        joined = entry.join([of[id(variable)] for variable in entry.variables])
        theirs = expected[entry.name].numpy()
        np.testing.assert_allclose(joined, theirs, rtol=1e-3, atol=1e-5, err_msg=entry.name)


@pytest.mark.parametrize("length", [15, 17])
def test_blocks_of_a_big_bird(length, folder, tmp_path):
    """Of rows longer than they need to be, with padding: states and gradients, from a file too."""
    cls, fields = case("big_bird")
    made = folder(cls, **fields, block_size=2, num_random_blocks=1)
    ids, lengths = models.tokens((3, length)), np.array([length, length - 6, 3])
    real = np.arange(length) < lengths[:, None]
    encoder = models.through_a_file(made.ours, tmp_path)
    theirs = copy.deepcopy(made.theirs.bert)
    expected = theirs(*map(models.tensor, (ids, real))).last_hidden_state
    states = type(encoder)(encoder.blocks, encoder.embeddings)
    assert models.difference(states(ids, mask=real), expected, real) <= models.TOLERANCE
    upstream = models.normal(*expected.shape) * real[..., None]
    (expected * models.tensor(upstream)).sum().backward()

    def loss():
        return keras.ops.sum(keras.ops.multiply(states(ids, mask=real), upstream))

    (found,), _ = weight_gradients(encoder.embeddings.tokens, loss)
    wanted = theirs.embeddings.word_embeddings.weight.grad
    np.testing.assert_allclose(np.asarray(found), wanted.numpy(), rtol=1e-3, atol=1e-4)


def test_short_heads_of_a_delta_net(folder):
    """The epsilon decides about queries and keys of inputs around 1e-3."""
    cls, fields = case("qwen3_next")
    made, x = folder(cls, **fields), 1e-3 * models.normal(2, 9, 24)
    layer = made.ours.blocks[0].attention
    expected = models.numpy(made.theirs.model.layers[0].linear_attn(models.tensor(x)))
    largest = np.abs(expected).max()
    np.testing.assert_allclose(models.numpy(layer(x)), expected, atol=1e-5 * largest)
    layer = type(layer).from_config({**layer.get_config(), "epsilon": 0.0})
    layer.build(x.shape)
    layer.set_weights(made.ours.blocks[0].attention.get_weights())
    assert np.abs(models.numpy(layer(x)) - expected).max() > 0.5 * largest


def test_kimi_delta_attention():
    """A decay of each feature, beside the layer of Kimi Linear, with strong decays."""
    kimi = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
    config = transformers.KimiLinearConfig(
        hidden_size=24, linear_num_heads=2, linear_head_dim=6, num_hidden_layers=2
    )
    theirs, x = kimi.KimiLinearDeltaAttention(config, 0).eval(), models.normal(2, 40, 24)
    given = {}
    for name, weight in theirs.named_parameters():
        noise = models.torch.tensor(models.normal(*weight.shape))
        weight.data = noise / weight.shape[-1] ** 0.5 if weight.ndim == 2 else noise
        given[name] = weight.detach().numpy()
    norm = RMSNorm(config.rms_norm_eps)
    options = {"use_decay": "features", "decay_rank": 6, "gate_activation": "sigmoid"}
    options |= {"epsilon": 1e-6, "conv_kernel_size": config.linear_conv_kernel_dim}
    layer = GatedDeltaNet(2, 6, head_norm=norm, use_bias=False, **options)
    layer.build(x.shape)
    names = {"query": "q", "key": "k", "value": "v", "rate": "b", "attention_output": "o"}
    found = {f"{ours}/kernel": given[f"{theirs}_proj.weight"] for ours, theirs in names.items()}
    found["gate/kernel"] = given["g_b_proj.weight"] @ given["g_a_proj.weight"]
    for ours, name in {"decay_in/kernel": "f_a", "decay/kernel": "f_b"}.items():
        found[ours] = given[f"forget_gate.{name}_proj.weight"]
    found = {name: x.T for name, x in found.items()}
    kernels = np.split(given["conv1d.weight"][:, 0].T, 3, axis=1)
    found |= {
        f"{n}_conv_kernel": x for n, x in zip(("query", "key", "value"), kernels, strict=True)
    }
    found |= {
        f"decay_{x}": given[f"forget_gate.{n}"]
        for x, n in (("scale", "A_log"), ("bias", "dt_bias"))
    }
    found["head_norm/scale"] = given["o_norm.weight"]
    for weight in layer.weights:
        weight.assign(found.pop(weight.path.split("/", 1)[1]).reshape(weight.shape))
    assert not found
    of_input = models.tensor(x).requires_grad_()
    expected = theirs(of_input)
    assert models.difference(layer(x), expected) <= models.TOLERANCE
    expected.square().sum().backward()
    (found,) = gradients(lambda x: keras.ops.sum(keras.ops.square(layer(x))), [x])
    np.testing.assert_allclose(found, of_input.grad.numpy(), rtol=1e-3, atol=1e-4)
