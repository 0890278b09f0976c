"""A case of each layer of sequences: how it is made and called, for tests of tools around layers.

Layers, their arguments and what they are called with come from the registry of `tests/contract`.
"""

import keras

import keras_attention as ka
from tests.arrays import numpy
from tests.contract import registry, rows
from tests.contract.registry import ENTRIES, D, T

BATCH = 3
# A cell is no layer of sequences, nor is a norm of heads, a loss takes rewards, models take tokens;
# the others have outputs of their own dtype or order, and relations alone.
OTHERS = {ka.AttentionCell, ka.AttentionRNN, ka.PatchEmbedding, ka.ReinforceLoss, ka.Logits}
OTHERS |= {ka.PointerGenerator, ka.PointerHead, ka.HeadNorm}
OTHERS |= {ka.Decoder, ka.Embeddings, ka.Encoder, ka.EncoderDecoder}
# Entries beside those of the classes themselves.
FORMS = (
    "Attention-raw",
    "LocalAttention-predictive",
    "LongformerAttention-global",
    "every-option",
    "score-Additive",
    "normalization-Sparsemax",
    "position-Disentangled",
    "position-RelativeBias",
    "TransformerBlock-cross",
)


class Case:
    """An entry of the registry, alone or attending to another sequence where it can."""

    def __init__(self, entry):
        self.entry, self.layer, self.make = entry, entry.cls, entry.make
        # Whether sequences may have any number of positions.
        self.any_length = not entry.traits.cells
        self.float_inputs = not entry.ids

    def __str__(self):
        return str(self.entry)

    def arrays(self, seed=0):
        """Input arrays, of which the first is differentiated by."""
        x = rows.numbers(BATCH, T, D, ids=self.entry.ids, seed=seed)
        given, crosses = [], self.entry.traits.crosses
        call = self.entry.call or (registry.of_queries if crosses else lambda call, x: call(x))
        call(lambda *inputs: given.extend(inputs) or x, keras.ops.convert_to_tensor(x))
        return [numpy(array) for array in given]

    def call(self, layer, arrays, **kwargs):
        return layer(*arrays, **kwargs)

    def symbols(self, batch=None, lengths=True):
        """Symbolic inputs; with `lengths=False` the numbers of positions are unknown."""
        return [
            keras.Input(
                batch_shape=(batch, x.shape[1] if lengths else None, *x.shape[2:]),
                dtype=str(x.dtype),
            )
            for x in self.arrays()
        ]

    def model(self):
        symbols = self.symbols(lengths=not self.any_length)
        return keras.Model(alone(symbols), self.call(self.make(), symbols))


def alone(inputs):
    """What a model of these inputs takes: the list, or the only one of it."""
    return inputs if len(inputs) > 1 else inputs[0]


def outputs_of(result):
    return keras.tree.flatten(result)


CASES = [
    Case(entry)
    for name, entry in ENTRIES.items()
    if name in FORMS or (hasattr(ka, name) and entry.cls not in OTHERS)
]
# Without other forms of the same layers.
LAYERS = [case for case in CASES if str(case) == case.layer.__name__]
