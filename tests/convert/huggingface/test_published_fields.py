"""Fields of the `config.json` of published models, with small sizes: none is refused."""

import pytest

from keras_attention.convert.huggingface.architectures import ARCHITECTURES
from keras_attention.convert.huggingface.config import Config
from tests.convert.huggingface.sequences import SIZES

DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
SIDES = {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in {"layers": 1, "attention_heads": 2, "ffn_dim": 8, "layerdrop": 0.0}.items()
}
BART = {
    **SIDES,
    "d_model": 8,
    "vocab_size": 50,
    "activation_function": "gelu",
    "activation_dropout": 0.1,
    "attention_dropout": 0.1,
    "dropout": 0.1,
    "classif_dropout": 0.1,
    "classifier_dropout": 0.0,
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "normalize_before": False,
    "normalize_embedding": True,
    "max_position_embeddings": 20,
    "num_hidden_layers": 1,
    "is_encoder_decoder": True,
    "scale_embedding": False,
    "early_stopping": True,
    "num_beams": 4,
    "no_repeat_ngram_size": 3,
    "forced_bos_token_id": 0,
    "gradient_checkpointing": False,
    "_num_labels": 3,
}
FIELDS = {
    "bert": {
        **SIZES,
        **DROPOUT,
        "architectures": ["BertForMaskedLM"],
        "gradient_checkpointing": False,
        "position_embedding_type": "absolute",
        "directionality": "bidi",
        "pooler_fc_size": 768,
        "pooler_num_attention_heads": 12,
        "pooler_num_fc_layers": 3,
        "pooler_size_per_head": 128,
        "pooler_type": "first_token_transform",
    },
    "roberta": {
        **SIZES,
        **DROPOUT,
        "architectures": ["RobertaForMaskedLM"],
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 1,
        "layer_norm_eps": 1e-05,
        "type_vocab_size": 1,
    },
    "distilbert": {
        "architectures": ["DistilBertForMaskedLM"],
        "activation": "gelu",
        "attention_dropout": 0.1,
        "dim": 8,
        "dropout": 0.1,
        "hidden_dim": 8,
        "max_position_embeddings": 20,
        "n_heads": 2,
        "n_layers": 1,
        "qa_dropout": 0.1,
        "seq_classif_dropout": 0.2,
        "sinusoidal_pos_embds": False,
        "tie_weights_": True,
        "vocab_size": 50,
    },
    "albert": {
        **SIZES,
        **DROPOUT,
        "architectures": ["AlbertForMaskedLM"],
        "classifier_dropout_prob": 0.1,
        "down_scale_factor": 1,
        "embedding_size": 6,
        "gap_size": 0,
        "hidden_act": "gelu_new",
        "inner_group_num": 1,
        "net_structure_type": 0,
        "num_hidden_groups": 1,
        "num_memory_blocks": 0,
    },
    "deberta-v2": {
        **SIZES,
        **DROPOUT,
        "architectures": ["DebertaV2ForSequenceClassification"],
        "id2label": {"0": "entailment", "1": "neutral"},
        "layer_norm_eps": 1e-07,
        "legacy": True,
        "max_relative_positions": -1,
        "norm_rel_ebd": "layer_norm",
        "pooler_dropout": 0,
        "pooler_hidden_act": "gelu",
        "pooler_hidden_size": 16,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "position_buckets": 8,
        "relative_attention": True,
        "share_att_key": True,
        "type_vocab_size": 0,
    },
    "t5": {
        "architectures": ["T5ForConditionalGeneration"],
        "d_ff": 8,
        "d_kv": 4,
        "d_model": 8,
        "dropout_rate": 0.1,
        "feed_forward_proj": "relu",
        "initializer_factor": 1.0,
        "is_encoder_decoder": True,
        "layer_norm_epsilon": 1e-06,
        "n_positions": 512,
        "num_heads": 2,
        "num_layers": 1,
        "output_past": True,
        "relative_attention_num_buckets": 32,
        "task_specific_params": {},
        "vocab_size": 50,
    },
    "bart": {**BART, "architectures": ["BartModel"]},
    "mbart": {
        **BART,
        "architectures": ["MBartForConditionalGeneration"],
        "normalize_before": True,
        "add_final_layer_norm": True,
        "static_position_embeddings": False,
        "scale_embedding": True,
        "output_past": True,
    },
    "marian": {
        **BART,
        "architectures": ["MarianMTModel"],
        "activation_function": "swish",
        "normalize_embedding": False,
        "static_position_embeddings": True,
        "extra_pos_embeddings": 58101,
        "force_bos_token_to_be_generated": False,
        "bad_words_ids": [[49]],
        "decoder_vocab_size": 50,
        "share_encoder_decoder_embeddings": True,
    },
    "vit": {
        "architectures": ["ViTForImageClassification"],
        "attention_probs_dropout_prob": 0.0,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "hidden_size": 8,
        "image_size": 8,
        "intermediate_size": 8,
        "layer_norm_eps": 1e-12,
        "num_attention_heads": 2,
        "num_channels": 3,
        "num_hidden_layers": 1,
        "patch_size": 4,
        "qkv_bias": True,
        "id2label": {"0": "tench", "1": "goldfish"},
        "label2id": {"tench": 0, "goldfish": 1},
    },
}


@pytest.mark.any_backend
@pytest.mark.parametrize("kind", FIELDS)
def test_no_field_is_unknown(kind):
    fields = {**FIELDS[kind], "model_type": kind, "transformers_version": "4.6.0"}
    fields |= {"torch_dtype": "float32", "use_cache": True, "pad_token_id": 1}
    architecture = ARCHITECTURES[kind]
    architecture.model(Config(fields, architecture.FIELDS[kind]), None)
