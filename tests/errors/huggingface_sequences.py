"""What is raised by conversions of encoders and encoder–decoders of Hugging Face."""

import json
import pathlib
import tempfile

from keras_attention import convert

BERT = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": 10,
    "hidden_size": 4,
    "intermediate_size": 4,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 8,
}
MODERN = {**BERT, "model_type": "modernbert", "architectures": ["ModernBertModel"]}
LONGFORMER = {
    **BERT,
    "model_type": "longformer",
    "architectures": ["LongformerModel"],
    "pad_token_id": 1,
}
VIT = {**BERT, "model_type": "vit", "architectures": ["ViTModel"]}
for name in ("vocab_size", "max_position_embeddings"):
    del VIT[name]
SWIN = {
    "model_type": "swin",
    "architectures": ["SwinModel"],
    "image_size": 8,
    "patch_size": 1,
    "embed_dim": 4,
    "depths": [1, 1],
    "num_heads": [2, 2],
    "window_size": 4,
}
T5 = {
    "model_type": "t5",
    "architectures": ["T5Model"],
    "vocab_size": 10,
    "d_model": 4,
    "d_kv": 2,
    "d_ff": 4,
    "num_layers": 1,
    "num_heads": 2,
}


def read(fields, part=None, **changed):
    """Reads a folder with a configuration, and no weights."""

    def call():
        with tempfile.TemporaryDirectory() as folder:
            text = json.dumps({**fields, **changed})
            (pathlib.Path(folder) / "config.json").write_text(text)
            convert.from_huggingface(folder, part=part)

    return call


ROWS = {
    r"'architectures' of .* must be one of \('BertModel', 'BertForMaskedLM', .*: no other head "
    r"is supported for model_type='bert'\. Received: 'BertForMultipleChoice'": read(
        BERT, architectures=["BertForMultipleChoice"]
    ),
    r"`part` must be one of \('text', 'vision'\) for model_type='clip'\. "
    r"Received: part=None": read({"model_type": "clip"}),
    r"`part` must be one of \(None,\) for model_type='bert'\. Received: part='text'": read(
        BERT, part="text"
    ),
    r"'patch_size' of .* must be a positive integer, or two\. Received: \[4, 0\]": read(
        VIT, patch_size=[4, 0]
    ),
    r"'window_size' of .* must be a divisor .* Received: 4, for a grid of \(2, 2\)": read(
        SWIN, depths=[1, 1, 1], num_heads=[2, 2, 2]
    ),
    r"'depths' of .* must be positive integers, .* Received: \[1, 1\] and \[2\]": read(
        SWIN, num_heads=[2]
    ),
    r"'feed_forward_proj' of .* must be an activation among .* Received: 'gated-what'": read(
        T5, feed_forward_proj="gated-what"
    ),
    r"'attention_window' of .* must be an even number, at least 2, or one for each of 1 layers"
    r"\. Received: 5": read(LONGFORMER, attention_window=5),
    r"'layer_types' of .* must be 1 of 'sliding_attention' and 'full_attention'\. "
    r"Received: \['linear_attention'\]": read(MODERN, layer_types=["linear_attention"]),
}
