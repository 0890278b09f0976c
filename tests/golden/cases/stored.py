"""Cases of weights that are stored in another way: LoRA and int8."""

import dataclasses
import warnings

import numpy as np

import keras_attention as ka
from tests.golden.cases.case import CASES, Case, of_layer
from tests.golden.cases.models import IDS, classifier


def lora(model):
    for name in ("query_dense", "key_dense", "value_dense", "output_dense"):
        dense = getattr(model.layers[-1], name)
        dense.enable_lora(2)
        rng = np.random.default_rng(9)
        for weight in (dense.lora_kernel_a, dense.lora_kernel_b):
            weight.assign(rng.normal(size=weight.shape).astype("float32"))


of_layer("lora", lambda: ka.MultiHeadAttention(2, 4), 8, 6)
CASES["lora"] = dataclasses.replace(CASES["lora"], change=lora)


def int8(model):
    with warnings.catch_warnings():
        # Keras says of each layer without weights, such as dropout, that it stays as it is.
        warnings.filterwarnings("ignore", message=".*does not have a `quantize")
        model.quantize("int8")


# A number that is rounded the other way moves the output by about one in 127.
INT8 = {"change": int8, "tolerance": 0.02}
of_layer("int8", lambda: ka.MultiHeadAttention(2, 4, value_dim=5, use_gate=True), 8, 6)
CASES["int8"] = dataclasses.replace(CASES["int8"], **INT8)
CASES["int8-classifier"] = Case(classifier, (IDS,), **INT8)
