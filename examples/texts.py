"""Tokens, by the package `tokenizers`, and models of folders in Hugging Face's format."""

import hashlib
import json
from pathlib import Path

import keras
import numpy as np

import keras_attention
from examples.shared import UsageError, one_line, read_text
from keras_attention import convert

ops = keras.ops

PADDING, UNKNOWN = "[PAD]", "[UNK]"  # 0 and 1 in every tokenizer that is trained here
TOKENIZER = "tokenizer.json"


def train_tokenizer(kind, texts, size, special=(), word=r"\w+", lowercase=False, **options):
    """A tokenizer of at most `size` tokens, trained on texts.

    Its `kind` is "words", which match the pattern `word`; "bpe", of bytes, to which nothing is
    unknown (Sennrich et al. 2016); or "unigram", as SentencePiece's (Kudo 2018). `special` tokens
    such as "[START]", which no text has, are numbered from 2 on. `options` are the trainer's.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    options |= {"vocab_size": size, "special_tokens": [PADDING, UNKNOWN, *special]}
    options["show_progress"] = False
    if kind == "words":
        tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(word), "removed", invert=True)
        trainer = trainers.WordLevelTrainer(**options)
    elif kind == "bpe":
        tokenizer, alphabet = Tokenizer(models.BPE()), pre_tokenizers.ByteLevel.alphabet()
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(initial_alphabet=alphabet, **options)
    else:
        tokenizer, tokenizer.decoder = Tokenizer(models.Unigram()), decoders.Metaspace()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(unk_token=UNKNOWN, **options)
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    try:
        tokenizer.train_from_iterator(texts, trainer)
    except Exception as error:  # The package has no class of its own for too few tokens.
        raise UsageError(f"No {size:,} tokens can be learned: {one_line(error)}") from None
    if kind == "unigram":  # The order of equally likely pieces is by chance.
        state, first = json.loads(tokenizer.to_str()), len(options["special_tokens"])
        vocab = [(piece, round(score, 6)) for piece, score in state["model"]["vocab"]]
        vocab = vocab[:first] + sorted(vocab[first:], key=lambda pair: (-pair[1], pair[0]))
        state["model"]["vocab"] = vocab
        tokenizer = Tokenizer.from_str(json.dumps(state))
    return tokenizer


def characters(text):
    """A tokenizer whose tokens are the characters of a text, and no others, in Unicode's order."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({c: n for n, c in enumerate(sorted(set(text)))}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def load_tokenizer(folder):
    """The tokenizer of a folder. It neither shortens texts nor pads them."""
    from tokenizers import Tokenizer

    text = read_text(path := Path(folder) / TOKENIZER)
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # The package has no class of its own for damaged files.
        raise UsageError(f"{path} is damaged: {one_line(error)}") from None
    tokenizer.encode_special_tokens = True  # "[PAD]" in a text is a text.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def encode(tokenizer, texts, special=False):
    """Texts as rows of numbers; with `special`, with the tokens that the tokenizer adds."""
    found = tokenizer.encode_batch(list(texts), add_special_tokens=special)
    return [np.array(one.ids, "int32") for one in found]


def pad(rows, length=None, multiple=1):
    """Rows as one array, padded with 0 to `length`, by default the longest's.

    Few different lengths need few programs to be compiled: `multiple` rounds them up.
    """
    length = length or -(-max(map(len, rows)) // multiple) * multiple
    padded = np.zeros((len(rows), length, *rows[0].shape[1:]), rows[0].dtype)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return padded


def tokenizer_of(run, train):
    """The tokenizer of a `Run`: `train()` at its beginning, and from then on its file."""
    if not (run.path / TOKENIZER).exists():
        run.write(TOKENIZER, lambda path: train().save(str(path)))
    return load_tokenizer(run.path)


def pretrained_checksum(folder):
    """Of all that the model and the tokenizer of a folder are made of."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UsageError(f"--pretrained {folder} is not a directory.")
    for name in ("config.json", TOKENIZER):
        if not (folder / name).is_file():
            raise UsageError(
                f"--pretrained {folder} has no {name}: it must be a folder that `transformers` "
                "wrote, with the tokenizer."
            )
    found = hashlib.sha256()
    for path in (folder / "config.json", folder / TOKENIZER, *sorted(folder.glob("*.safetensors"))):
        with path.open("rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()


def load_pretrained(folder, length, option):
    """The model and the tokenizer of a folder, for `length` tokens at once, the `option`'s."""
    tokenizer = load_tokenizer(folder)
    try:
        model = convert.from_huggingface(folder)
    except (ValueError, OSError) as error:
        raise UsageError(f"--pretrained {folder} cannot be read: {one_line(error)}") from error
    config = model.metadata["huggingface"]
    embeddings = getattr(model, "embeddings", None)
    if not hasattr(getattr(embeddings, "tokens", None), "vocabulary_size"):
        raise UsageError(
            f"--pretrained {folder} must be an encoder or a decoder of texts: "
            f"{config['model_type']!r} is not."
        )
    # RoBERTa's table has rows of no position, which its configuration counts.
    limits = [getattr(embeddings.positions, "max_length", None)]
    limits += [config.get(name) for name in ("max_position_embeddings", "n_positions")]
    longest = min((limit for limit in limits if limit is not None), default=length)
    if length > longest:
        raise UsageError(
            f"--pretrained {folder} is for at most {longest} tokens: give such a {option}, "
            f"received {length}."
        )
    known, needed = embeddings.tokens.vocabulary_size, max(tokenizer.get_vocab().values()) + 1
    if needed > known:
        raise UsageError(
            f"The tokenizer of {folder} has {needed:,} tokens, and the model beside it {known:,}."
        )
    return model, tokenizer


def summary(ids, model, lora=None):
    """One vector (B, D) of a text, of numbers that are one more than the folder's, and 0 padding.

    That is the first token's in an encoder, which is trained to sum a text up in it, and the last
    one's in a decoder, where it alone has seen all others. With `lora` adapters of this rank are
    trained, and nothing else of the model.
    """
    # The same without logits, which are for another task.
    stack = type(model)(model.blocks, model.embeddings, model.final_norm, dtype=model.dtype_policy)
    stack.build((None, None))
    if lora:
        keras_attention.enable_lora(stack, lora)
    mask = ops.not_equal(ids, 0)
    x = stack(ops.maximum(ids - 1, 0), mask=mask)
    place = ops.zeros_like(ids[:, 0])
    if isinstance(model, keras_attention.Decoder):
        place = ops.sum(ops.cast(mask, "int32"), axis=1) - 1
    return ops.take_along_axis(x, place[:, None, None], axis=1)[:, 0]
