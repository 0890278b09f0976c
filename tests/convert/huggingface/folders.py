"""Folders of tiny random models that `transformers` writes, read by ours, and both compared.

A test module has a table of models, `NAME: (class of transformers, fields of its configuration)`,
and takes `folder(*MODELS[NAME])`, a session's fixture: each folder is written and read once.
"""

import dataclasses
import functools
import json
import pathlib

import keras
import numpy as np
import pytest

from keras_attention import convert
from tests.convert.huggingface.sequences import (
    additive,
    random_pairs,
    rewritten,
    states_and_logits,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

VOCABULARY = 50
# Rows of unequal lengths, padded on one side.
LENGTHS = (9, 5, 7)
RIGHT = np.array([[n < length for n in range(9)] for length in LENGTHS])
MASKS = {"right": RIGHT, "left": RIGHT[:, ::-1].copy(), "none": np.ones((3, 9), "bool")}


def numpy(tensor):
    """A tensor of either side."""
    if isinstance(tensor, torch.Tensor):
        return tensor.detach().cpu().float().numpy()
    return np.asarray(keras.ops.convert_to_numpy(tensor))


def tokens(shape, low=3, vocabulary=VOCABULARY):
    """Random tokens, none of them special."""
    return np.random.default_rng(1).integers(low, vocabulary, shape).astype("int32")


def random_model(model_class, config, seed=0):
    """A model with all weights random, in float32, ready to be compared.

    Vectors (biases, norms) differ from what they start with by numbers of deviation 0.3; matrices
    have the deviation 1 / √inputs, so that attention is neither even nor of one key.
    """
    torch.manual_seed(seed)
    model = model_class(config).float().eval()
    if model.can_generate():
        # No stop token: it would be merged into what a test asks for.
        model.generation_config.eos_token_id = None
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.requires_grad:
                continue  # Sines, which are computed.
            noise = torch.randn_like(parameter)
            if parameter.ndim < 2:
                parameter.add_(0.3 * noise)
            else:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5)
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                buffer.normal_(std=0.2)
    return model


@dataclasses.dataclass
class Folder:
    """A folder, and the model that it was written from.

    Args:
        path: of the folder.
        theirs: the model of `transformers`.
    """

    path: pathlib.Path
    theirs: "torch.nn.Module"

    @functools.cached_property
    def ours(self):
        """Our model of the folder."""
        return convert.from_huggingface(self.path)

    def config(self):
        """The fields of `config.json`."""
        return json.loads((self.path / "config.json").read_text(encoding="utf-8"))


def write(path, model_class, config, seed=0):
    """A `Folder` with a random model."""
    model = random_model(model_class, config, seed)
    model.save_pretrained(path)
    return Folder(pathlib.Path(path), model)


def copied(source, path, **fields):
    """A copy of a folder, with other fields in `config.json`; None removes one."""
    return Folder(rewritten(source.path, pathlib.Path(path), **fields), source.theirs)


def difference(found, expected, mask=None):
    """The largest difference, of real tokens."""
    found, expected = numpy(found), numpy(expected)
    assert found.shape == expected.shape
    assert np.isfinite(found).all()
    if mask is not None:
        found, expected = found[mask], expected[mask]
    assert np.abs(expected).std() > 1e-3, "what is compared is hardly random"
    return float(np.abs(found - expected).max())


# Decoder-only models


def positions(mask):
    """Positions that count real tokens, as our stacks do."""
    return torch.tensor(np.maximum(np.cumsum(mask, axis=1) - 1, 0))


def their_output(model, ids, mask, by_positions=True):
    """The last hidden states of a decoder-only model of `transformers`, and its logits."""
    given = {"attention_mask": torch.tensor(mask).long()}
    if by_positions:
        given["position_ids"] = positions(mask)
    with torch.no_grad():
        output = model(torch.tensor(ids).long(), output_hidden_states=True, **given)
        states = model.base_model(torch.tensor(ids).long(), **given).last_hidden_state
    return states, output.logits


def check_decoder(folder, by_positions=True):
    """States and logits of each kind of padding, ≤ 1e-4; returns the largest differences.

    `by_positions` is False for models that take no positions.
    """
    mask = np.concatenate(list(MASKS.values()))
    ids = np.tile(tokens((3, 9)), (len(MASKS), 1))
    states, logits = their_output(folder.theirs, ids, mask, by_positions)
    ours, our_logits = states_and_logits(folder.ours, ids, mask=mask)
    if folder.ours.logits.transform is not None:
        ours = folder.ours.logits.transform(ours)
    found = {
        "states": difference(ours, states, mask),
        "logits": difference(our_logits, logits, mask),
    }
    assert max(found.values()) <= 1e-4, found
    return found


def check_pairs(folder, by_positions=True):
    """A mask of pairs, beside the causal one and windows, which theirs replaces."""
    ids, pairs = tokens((2, 9)), random_pairs(2, 9)
    config = folder.theirs.config
    seen = pairs & np.tril(np.ones((9, 9), "bool"))
    near = np.triu(seen, 1 - (getattr(config, "sliding_window", None) or 9))
    given = {"attention_mask": torch.tensor(additive(near))}
    if getattr(config, "layer_types", None):
        both = {"full_attention": seen, "sliding_attention": near}
        given = {"attention_mask": {kind: torch.tensor(additive(x)) for kind, x in both.items()}}
    if by_positions:
        given["position_ids"] = positions(np.ones((2, 9), "bool"))
    with torch.no_grad():
        expected = folder.theirs(torch.tensor(ids).long(), **given).logits
    assert difference(folder.ours(ids, attention_mask=pairs), expected) <= 1e-4


def tensors(path):
    """The tensors of a folder, by name."""
    from safetensors.numpy import load_file

    found = {}
    for file in sorted(pathlib.Path(path).glob("*.safetensors")):
        found |= load_file(file)
    return found


def check_written_back(folder, path, model=None, unread_rows=(), tolerance=0.0):
    """`to_huggingface` writes the same tensors, and `transformers` loads them without complaint.

    `unread_rows` are the first rows of tables that belong to padding, by name; `tolerance` is of
    tensors that are computed. Returns the largest difference.
    """
    convert.to_huggingface(folder.ours if model is None else model, path)
    before, after = tensors(folder.path), tensors(path)
    assert after.keys() == before.keys()
    for name, tensor in before.items():
        first = dict(unread_rows).get(name, 0)
        np.testing.assert_allclose(
            after[name][first:], tensor[first:], rtol=0, atol=tolerance, err_msg=name
        )
    loaded, told = type(folder.theirs).from_pretrained(
        path, output_loading_info=True, dtype=torch.float32
    )
    assert not told["missing_keys"] and not told["unexpected_keys"], told
    loaded.eval()
    ids = torch.tensor(tokens((3, 9))).long()
    with torch.no_grad():
        found = difference(loaded(ids).logits, folder.theirs(ids).logits)
    assert found <= 10 * tolerance
    return found


# Generation


def check_greedy(folder, count=200):
    """Greedy tokens of prompts padded on the left, from a cache on both sides; returns `count`."""
    from keras_attention import generation

    mask = MASKS["left"]
    ids = np.where(mask, tokens((3, 9)), 0)
    expected = their_generation(folder, ids, mask, max_new_tokens=count, do_sample=False)
    model = folder.ours
    last, cache = model.start(ids, max_tokens=count, mask=mask)
    found = generation.greedy(model.step, last, cache, max_tokens=count)
    assert_greedy(numpy(found.tokens), expected)
    return count


def assert_greedy(tokens, generated, near=1e-4):
    """Tokens are those that `transformers` generated, in each row to the first that is another one.

    There, the best two logits differ by less than `near`: which is larger is up to rounding.
    """
    logits = np.stack([step.numpy() for step in generated.scores], axis=1)
    expected = generated.sequences.numpy()[:, -logits.shape[1] :]
    second, first = np.moveaxis(np.sort(logits, axis=-1)[..., -2:], -1, 0)
    other = tokens != expected
    at = np.argmax(other, axis=1)[:, None]
    margin = np.take_along_axis(first - second, at, axis=1)[:, 0]
    np.testing.assert_array_less(margin[other.any(axis=1)], near)


def check_beams(folder, count=20):
    """All of 4 beams, best first, without a stop token."""
    from keras_attention import generation

    mask = MASKS["left"]
    ids = np.where(mask, tokens((3, 9)), 0)
    expected = their_tokens(
        folder, ids, mask, max_new_tokens=count, num_beams=4, num_return_sequences=4
    )
    model = folder.ours
    last, cache = model.start(ids, max_tokens=count, mask=mask)
    found = generation.beam_search(
        model.step, last, cache, num_beams=4, num_return=4, max_tokens=count
    )
    np.testing.assert_array_equal(numpy(found.tokens).reshape(-1, count), expected)


def their_tokens(folder, ids, mask, **given):
    """The tokens that `transformers` generates after a prompt."""
    found = their_generation(folder, ids, mask, **given)
    return found.sequences.numpy()[:, ids.shape[1] :]


def their_generation(folder, ids, mask, **given):
    """What `transformers` generates after a prompt, with the logits of each step."""
    config = transformers.GenerationConfig(
        pad_token_id=0, eos_token_id=None, return_dict_in_generate=True, output_scores=True, **given
    )
    with torch.no_grad():
        return folder.theirs.generate(
            torch.tensor(ids).long(),
            attention_mask=torch.tensor(mask).long(),
            generation_config=config,
        )
