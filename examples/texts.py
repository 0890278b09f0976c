"""Tokens, by the package `tokenizers`, batches of them, and folders in Hugging Face's format."""

import json
from pathlib import Path

import keras
import numpy as np

import keras_attention
from examples.shared import UsageError, checksum, one_line, read_text
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


class Batches(keras.utils.PyDataset):
    """The batches of an epoch, whose order depends on the seed and the epoch alone.

    Args:
        draw: from a NumPy generator to a list of arrays of indices, one for each batch.
        arrays: from such indices to what `fit` takes.
        lengths: from such indices to the lengths of these arrays, where batches differ in them.
        seed, devices: of the order; how many share a batch, whose rows are repeated if need be.
    """

    def __init__(self, draw, arrays, lengths=None, seed=0, devices=1):
        super().__init__()
        self.draw, self.arrays, self.lengths = draw, arrays, lengths
        self.seed, self.devices = seed, devices
        self.start(0)

    def start(self, epoch):
        """Draws the batches of an epoch, counted from 0."""
        batches = self.draw(np.random.default_rng((self.seed, epoch)))
        self.batches = [np.resize(b, -(-len(b) // self.devices) * self.devices) for b in batches]
        if self.lengths:
            # On TensorFlow, Keras takes for constant what the first two batches have in common.
            lengths = np.array([self.lengths(batch) for batch in self.batches])
            differ = (lengths != lengths[0]).reshape(len(lengths), -1).sum(axis=1)
            self.batches.insert(1, self.batches.pop(int(differ.argmax())))

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.arrays(self.batches[index])


def batches_by_length(rows, labels, size, pad, seed=0, devices=1, shuffle=True, pool=50):
    """`Batches` of padded rows of about the same length, in any order, and their labels."""
    lengths = np.array([len(row) for row in rows])

    def draw(rng):
        # `pool` batches are drawn, and their rows sorted: with them goes most of the padding.
        order = rng.permutation(len(rows)) if shuffle else np.arange(len(rows))
        found, drawn = [], pool * size if shuffle else len(rows)
        for start in range(0, len(rows), drawn):
            some = order[start : start + drawn]
            some = some[np.argsort(lengths[some], kind="stable")]
            found += [some[i : i + size] for i in range(0, len(some), size)]
        return [found[i] for i in rng.permutation(len(found))] if shuffle else found

    def arrays(indices):
        return pad([rows[i] for i in indices]), labels[indices]

    def length(indices):
        longest = rows[indices[np.argmax(lengths[indices])]]
        return pad([longest]).shape[1]

    return Batches(draw, arrays, length, seed, devices)


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
    paths = [folder / "config.json", folder / TOKENIZER, *sorted(folder.glob("*.safetensors"))]
    return checksum(block for path in paths for block in _blocks(path))


def _blocks(path):
    with path.open("rb") as file:
        yield from iter(lambda: file.read(2**24), b"")


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


def warmup_and_cosine(rate, steps, share=0.06):
    """A rate that rises linearly in this share of the steps, followed by a cosine to 0."""
    warmup = max(1, round(share * steps))
    return keras.optimizers.schedules.CosineDecay(
        rate / warmup, max(1, steps - warmup), warmup_target=rate, warmup_steps=warmup
    )


def fine_tuning(rate, steps):
    """Adam with decoupled weight decay and a linear warmup, followed by a cosine to 0."""
    rate = warmup_and_cosine(rate, steps)
    made = keras.optimizers.AdamW(rate, weight_decay=0.01, global_clipnorm=1.0)
    made.exclude_from_weight_decay(var_names=["bias", "gamma", "beta", "scale"])
    return made
