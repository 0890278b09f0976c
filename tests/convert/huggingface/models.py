"""Tiny random models of `transformers`, folders of them, and what they compute.

`FAMILIES` has one of every `model_type`, and `CASES` others of the same fields but for a class or a
few of them.
"""

import copy
import dataclasses
import functools
import inspect
import json
import pathlib
from unittest import mock

import keras
import numpy as np
import pytest

from keras_attention import EncoderDecoder, Logits, convert

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors")
transformers.logging.set_verbosity(transformers.logging.CRITICAL)
transformers.logging.disable_progress_bar()

TOLERANCE = 1e-4


def without(names, fields):
    """Fields but for some names."""
    return {name: value for name, value in fields.items() if name not in names.split()}


SIZES = {
    **dict(vocab_size=50, hidden_size=24, intermediate_size=20, num_hidden_layers=2),
    **dict(num_attention_heads=2, max_position_embeddings=64),
}
TOKENS = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 1)
PADDED = {**SIZES, "pad_token_id": 1}
GROUPS = {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 2}
SLIDING = {**GROUPS, "sliding_window": 4, **TOKENS}
WINDOWS = dict(**GROUPS, sliding_window=4, use_sliding_window=True, max_window_layers=1)
GEMMA = {**SLIDING, "head_dim": 8, "query_pre_attn_scalar": 20}
MIXTURE = {**SLIDING, "num_experts_per_tok": 2}
GPT2 = dict(vocab_size=50, n_embd=24, n_layer=2, n_head=2, n_positions=64)
SIDES = {
    **dict(vocab_size=50, d_model=12, encoder_layers=1, decoder_layers=2, decoder_ffn_dim=8),
    **dict(encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=8),
    **dict(max_position_embeddings=20, decoder_start_token_id=2, **TOKENS),
}
T5 = {
    **dict(vocab_size=50, d_model=12, d_kv=6, d_ff=10, num_layers=1, num_heads=2),
    **dict(num_decoder_layers=2, relative_attention_num_buckets=8, decoder_start_token_id=0),
    **dict(relative_attention_max_distance=9),
}
VIT = {
    **without("vocab_size max_position_embeddings", SIZES),
    **dict(image_size=8, patch_size=4, num_channels=2),
}
# A class of each `model_type`, and a configuration in which as many fields as can have a say.
_FAMILIES = {
    "LlamaForCausalLM": GROUPS,
    "MistralForCausalLM": {**GROUPS, "sliding_window": 4},
    "Qwen2ForCausalLM": WINDOWS,
    "Qwen3ForCausalLM": {**WINDOWS, "head_dim": 8},
    "SmolLM3ForCausalLM": dict(**SLIDING, use_sliding_window=True, no_rope_layer_interval=2),
    "Phi3ForCausalLM": SLIDING,
    "Starcoder2ForCausalLM": SLIDING,
    "CohereForCausalLM": {**GROUPS, **TOKENS, "use_qk_norm": True},
    "Cohere2ForCausalLM": {**SLIDING, "layer_types": ["sliding_attention", "full_attention"]},
    "Olmo2ForCausalLM": {**GROUPS, **TOKENS},
    "Olmo3ForCausalLM": {**SLIDING, "layer_types": ["sliding_attention", "full_attention"]},
    "GraniteForCausalLM": {**GROUPS, "attention_multiplier": 0.3, "embedding_multiplier": 3.0}
    | dict(residual_multiplier=0.4, logits_scaling=2.0),
    "StableLmForCausalLM": {**GROUPS, "hidden_size": 32, "use_qkv_bias": True}
    | dict(qk_layernorm=True, **TOKENS),
    "Glm4ForCausalLM": {**GROUPS, "head_dim": 8, **TOKENS},
    "NemotronForCausalLM": {**GROUPS, "hidden_size": 32, **TOKENS},
    "MixtralForCausalLM": {**MIXTURE, "num_local_experts": 4},
    "Qwen3MoeForCausalLM": dict(**MIXTURE, head_dim=8, num_experts=4, moe_intermediate_size=12)
    | dict(decoder_sparse_step=2, norm_topk_prob=True, use_sliding_window=True),
    "Qwen2MoeForCausalLM": dict(**MIXTURE, num_experts=4, moe_intermediate_size=12)
    | dict(decoder_sparse_step=2, shared_expert_intermediate_size=10, use_sliding_window=True),
    "Qwen3NextForCausalLM": dict(**GROUPS, **TOKENS, head_dim=16, moe_intermediate_size=12)
    | dict(num_experts=4, num_experts_per_tok=2, shared_expert_intermediate_size=10)
    | dict(linear_key_head_dim=6, linear_value_head_dim=5, linear_num_key_heads=2)
    | dict(linear_num_value_heads=4, full_attention_interval=2, decoder_sparse_step=2),
    "OlmoeForCausalLM": {**GROUPS, **TOKENS, "num_experts": 4, "num_experts_per_tok": 2},
    "DeepseekV3ForCausalLM": dict(
        **SIZES, num_key_value_heads=2, moe_intermediate_size=12, n_routed_experts=8
    )
    | dict(num_experts_per_tok=3, n_group=4, topk_group=2, kv_lora_rank=12, q_lora_rank=10)
    | dict(qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5, first_k_dense_replace=1)
    | TOKENS,
    "GemmaForCausalLM": {**GROUPS, "head_dim": 8, **TOKENS},
    "Gemma2ForCausalLM": GEMMA,
    "Gemma3ForCausalLM": {**GEMMA, "final_logit_softcapping": 1.0},
    "GptOssForCausalLM": dict(**MIXTURE, head_dim=8, num_local_experts=4, swiglu_limit=0.7),
    "GPT2LMHeadModel": GPT2,
    "GPTJForCausalLM": {**GPT2, "rotary_dim": 8, **TOKENS},
    "GPTNeoXForCausalLM": {**SIZES, "hidden_size": 32},
    "PhiForCausalLM": {**GROUPS, "hidden_size": 32, "qk_layernorm": True},
    "FalconForCausalLM": dict(**without("intermediate_size", SIZES), ffn_hidden_size=20, bias=True),
    "BloomForCausalLM": dict(vocab_size=50, hidden_size=24, n_layer=2, n_head=6),
    "MptForCausalLM": dict(vocab_size=50, d_model=24, n_layers=2, n_heads=6),
    "OPTForCausalLM": {**without("intermediate_size", SIZES), "ffn_dim": 20},
    "BertForMaskedLM": SIZES,
    "RobertaForMaskedLM": PADDED,
    "XLMRobertaModel": PADDED,
    "CamembertModel": PADDED,
    "LongformerForMaskedLM": {**PADDED, "type_vocab_size": 1, "attention_window": 4},
    "BigBirdForMaskedLM": SIZES,
    "DistilBertForMaskedLM": dict(vocab_size=50, dim=24, hidden_dim=20, n_layers=2, n_heads=2)
    | dict(max_position_embeddings=64),
    "ElectraForMaskedLM": {**SIZES, "embedding_size": 12},
    "MPNetForMaskedLM": SIZES,
    "AlbertForMaskedLM": {**SIZES, "embedding_size": 6, "num_hidden_groups": 2},
    "DebertaV2ForMaskedLM": dict(
        **SIZES, relative_attention=True, position_buckets=4, max_relative_positions=6
    )
    | dict(norm_rel_ebd="layer_norm", pos_att_type="p2c|c2p", share_att_key=True)
    | dict(type_vocab_size=2),
    "ModernBertForMaskedLM": dict(
        SIZES, num_hidden_layers=4, local_attention=2, classifier_bias=True
    )
    | dict(TOKENS, cls_token_id=1, sep_token_id=1),
    "T5ForConditionalGeneration": T5,
    "MT5ForConditionalGeneration": T5,
    "UMT5ForConditionalGeneration": T5,
    "BartForConditionalGeneration": SIDES,
    "MBartForConditionalGeneration": SIDES,
    "MarianMTModel": SIDES,
    "PegasusForConditionalGeneration": SIDES,
    "M2M100ForConditionalGeneration": SIDES,
    "WhisperForConditionalGeneration": without("max_position_embeddings", SIDES)
    | dict(num_mel_bins=5, max_source_positions=6, max_target_positions=20)
    | dict(begin_suppress_tokens=None),
    "ViTForImageClassification": {**VIT, "num_labels": 3},
    "DeiTModel": VIT,
    "Dinov2Model": {**without("intermediate_size", VIT), "mlp_ratio": 2},
    "SwinForImageClassification": dict(
        image_size=8, patch_size=1, num_channels=2, embed_dim=8, depths=[2, 1]
    )
    | dict(num_heads=[2, 2], window_size=2, num_labels=3),
    # Windows of 4 cells divide neither the 10 by 14 cells of the first stage nor 5 by 7 of the
    # second, which counts 4 full ones and shifts none. In training those of the first had 3 cells.
    "Swinv2ForImageClassification": dict(
        image_size=[19, 27], patch_size=2, num_channels=2, embed_dim=8, depths=[2, 2]
    )
    | dict(num_heads=[2, 4], window_size=4, pretrained_window_sizes=[3, 0], num_labels=3),
    "CLIPTextModel": {**SIZES, "eos_token_id": 49},
    "CLIPVisionModel": VIT,
    "SiglipTextModel": {**SIZES, **TOKENS, "projection_size": 10},
    "SiglipVisionModel": VIT,
}
FAMILIES = {
    getattr(transformers, name).config_class.model_type: (name, fields)
    for name, fields in _FAMILIES.items()
}
LONG = {"short_factor": [1.0, 1.5] * 3, "long_factor": [2.0, 5.0] * 3}
# Positions of every kind, so that every number of theirs has a say.
ROPE = {
    "default": {"rope_theta": 50.0},
    "linear": {"rope_theta": 50.0, "factor": 3.0},
    "dynamic": {"rope_theta": 50.0, "factor": 3.0},
    "yarn": dict(rope_theta=50.0, factor=3.0, original_max_position_embeddings=16, beta_fast=4.0)
    | dict(beta_slow=2.0, mscale=0.7, mscale_all_dim=0.4),
    "llama3": dict(rope_theta=50.0, factor=3.0, original_max_position_embeddings=16)
    | dict(low_freq_factor=1.0, high_freq_factor=4.0),
    "longrope": {**LONG, "rope_theta": 50.0, "original_max_position_embeddings": 8},
}
ROPE = {kind: {"rope_type": kind, **given} for kind, given in ROPE.items()}
LONG_PHI3 = {
    "hidden_size": 48,
    "rope_parameters": dict(rope_type="longrope", rope_theta=50.0, **LONG),
}
MIXED = ["full_attention", "sliding_attention", "full_attention"]
# Fields that differ from those of a family, which is named before the comma by itself or a class.
VARIANTS: dict = {
    "llama, biases": dict(
        attention_bias=True, mlp_bias=True, head_dim=12, tie_word_embeddings=True
    ),
    "llama, version 3.1": {"rope_parameters": ROPE["llama3"]},
    "llama, linear": {"rope_parameters": ROPE["linear"]},
    "llama, yarn": {"rope_parameters": ROPE["yarn"]},
    "gpt2, other options": dict(
        scale_attn_by_inverse_layer_idx=True, scale_attn_weights=False, n_inner=20
    )
    | dict(activation_function="relu", tie_word_embeddings=False),
    "gptj, tied": {"tie_word_embeddings": True},
    "opt, other options": dict(enable_bias=False, do_layer_norm_before=False),
    "opt, 350m": dict(word_embed_proj_dim=20, do_layer_norm_before=False),
    "gpt_neox, other options": dict(use_parallel_residual=False, tie_word_embeddings=True),
    "phi, tied": dict(tie_word_embeddings=True, qk_layernorm=False),
    "falcon, groups": dict(new_decoder_architecture=True, num_attention_heads=4, num_kv_heads=2),
    "falcon, one norm": dict(new_decoder_architecture=True, num_attention_heads=4, num_kv_heads=2)
    | dict(num_ln_in_parallel_attn=1),
    "falcon, neither": dict(multi_query=False, parallel_attn=False),
    "mpt, clipped": {"attn_config": {"clip_qkv": 0.5}},
    "gemma2, types": dict(tie_word_embeddings=False, num_hidden_layers=3, layer_types=MIXED),
    "gemma3_text, types": dict(num_hidden_layers=3, layer_types=MIXED),
    "Gemma3TextModel, both directions": dict(use_bidirectional_attention=True, sliding_window=4),
    "cohere, plain": {"use_qk_norm": False},
    "granite, biases": dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "olmo3, yarn": {
        "rope_parameters": {
            "full_attention": ROPE["yarn"],
            "sliding_attention": ROPE["default"],
        }
    },
    "qwen2_moe, other options": dict(
        decoder_sparse_step=1, norm_topk_prob=True, qkv_bias=False, use_sliding_window=False
    ),
    "stablelm, parallel": dict(
        use_parallel_residual=True, qk_layernorm=False, use_qkv_bias=False, tie_word_embeddings=True
    ),
    "siglip_vision_model, no head": {"vision_use_head": False},
    "starcoder2, other options": dict(use_bias=False, tie_word_embeddings=False),
    # Windows where there are no positions: in the second layer of three.
    "smollm3, three layers": {"num_hidden_layers": 3},
    "deepseek_v3, scaled": {"rope_parameters": ROPE["yarn"]},
    "deepseek_v3, other options": dict(
        q_lora_rank=None, rope_interleave=False, attention_bias=True, n_shared_experts=2
    )
    | dict(norm_topk_prob=False, n_group=1, topk_group=1, first_k_dense_replace=0),
    "qwen3_moe, other options": dict(
        decoder_sparse_step=1, norm_topk_prob=False, use_sliding_window=False
    ),
    "qwen3_next, other options": dict(
        decoder_sparse_step=1, norm_topk_prob=False, attention_bias=True, linear_num_key_heads=4
    )
    | dict(tie_word_embeddings=True, partial_rotary_factor=0.5),
    # Of rows that are all shorter than the length of training, and of some that are longer.
    "phi3, short": dict(LONG_PHI3, original_max_position_embeddings=128),
    "phi3, long": dict(LONG_PHI3, original_max_position_embeddings=3),
    # Windows of two and of four tokens on either side.
    "longformer, windows": {"attention_window": [4, 8]},
    "big_bird, all": dict(attention_type="original_full", rescale_embeddings=True),
    # Two groups of layers for three: the first is used twice.
    "albert, groups": {"num_hidden_layers": 3},
    "modernbert, biases": {"norm_bias": True},
    "ModernBertForSequenceClassification, mean": {"classifier_pooling": "mean"},
    # A row for each distance, and none of positions or token types.
    "deberta-v2, version 3": dict(legacy=False, type_vocab_size=0, position_biased_input=False),
    "deberta-v2, plain": dict(position_buckets=-1, max_relative_positions=4, norm_rel_ebd="none"),
    "t5, 1.1": dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "vit, oblong": {"image_size": [8, 12]},
    "swin, three stages": dict(
        embed_dim=8, depths=[3, 2, 1], num_heads=[2, 4, 2], window_size=4, mlp_ratio=1.5
    )
    | dict(image_size=[16, 64], patch_size=[1, 2], use_absolute_embeddings=True),
}
# Other classes.
CLASSES = [
    *("BertModel", "RobertaModel", "XLMRobertaForMaskedLM", "CamembertForMaskedLM", "MPNetModel"),
    *("LongformerModel", "AlbertModel", "ModernBertModel", "DebertaV2Model", "ElectraModel"),
    *("DistilBertModel", "BertForPreTraining", "ElectraForPreTraining", "ViTModel", "SwinModel"),
    *("DeiTForImageClassification", "CLIPVisionModelWithProjection", "CLIPTextModelWithProjection"),
    *("T5Model", "T5EncoderModel", "UMT5EncoderModel", "BartModel", "WhisperModel", "SmolLM3Model"),
    *(
        f"{name}ForSequenceClassification"
        for name in ("Bert", "Roberta", "DistilBert", "DebertaV2")
    ),
    *(f"{name}ForSequenceClassification" for name in ("BigBird", "Electra", "MPNet")),
    "LongformerForSequenceClassification",
    *(f"{name}ForSequenceClassification" for name in ("Albert", "ModernBert", "GPT2", "Llama")),
    *(f"{name}ForTokenClassification" for name in ("Bert", "Roberta", "ModernBert", "GPT2")),
    *("OPTForSequenceClassification", "Qwen2ForTokenClassification"),
    *(f"{name}ForQuestionAnswering" for name in ("Electra", "Llama", "Longformer", "ModernBert")),
]
CASES = [*FAMILIES, *VARIANTS, *CLASSES]
PAIRS = ("t5", "mt5", "umt5", "bart", "mbart", "marian", "pegasus", "m2m_100", "whisper")
# Ends of classes that generate.
GENERATING = ("CausalLM", "LMHeadModel", "ConditionalGeneration", "MTModel")


def case(name):
    """The class and the fields of a case, with room for 200 tokens."""
    kind, changed = name.split(",")[0], VARIANTS.get(name, {})
    cls = getattr(transformers, FAMILIES[kind][0] if kind in FAMILIES else kind)
    fields = FAMILIES[cls.config_class.model_type][1]
    if "Classification" in name:
        changed = {**changed, "num_labels": 3}
    # Caches of T5 have as many layers as its encoder there.
    more = {"num_layers": 3, **dict.fromkeys(("max_position_embeddings", "n_positions"), 220)}
    more = {**more, "max_target_positions": 220}
    return cls, {**fields, **{k: v for k, v in more.items() if k in fields}, **changed}


# Inputs: rows of unequal lengths

LENGTHS, TARGET_LENGTHS = (9, 5, 1), (2, 5, 4)
RIGHT = np.arange(9) < np.array(LENGTHS)[:, None]
LEFT = RIGHT[:, ::-1].copy()
TARGET_MASK = np.arange(5) < np.array(TARGET_LENGTHS)[:, None]


def tokens(shape, seed=1, low=4):
    """Random tokens, none of them special."""
    return np.random.default_rng(seed).integers(low, 50, shape).astype("int32")


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


IDS, TARGET, SOUND = tokens((3, 9), 0), tokens((3, 5)), normal(3, 12, 5)
# Global tokens: for a text the first one, which ours need not be told.
FIRST = np.eye(1, 9, dtype="int32").repeat(3, axis=0)
GLOBAL = np.isin(np.arange(27), [3, 8, 9, 13]).reshape(3, 9).astype("int32")
TYPES_OF_TOKENS = np.random.default_rng(1).integers(0, 2, IDS.shape).astype("int32")


def images(config):
    """Images of the size of a configuration, with their colors last."""
    size = config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    return normal(3, height, width, config.num_channels)


def inputs_of(cls):
    """The names of the inputs of a class."""
    return inspect.signature(cls.forward).parameters.keys()


def arrays(model):
    """The inputs of a model of `transformers`, by the names there."""
    config, taken = model.config, inputs_of(type(model))
    found = {"decoder_input_ids": TARGET}
    if "pixel_values" in taken:
        return {"pixel_values": images(config).transpose(0, 3, 1, 2).copy()}
    if "input_features" in taken:
        return {"input_features": SOUND.swapaxes(1, 2).copy(), **found}
    found["input_ids"] = IDS.copy()
    if config.model_type == "clip_text_model":
        # The end of the text, where it pools.
        for row, length in enumerate(LENGTHS):
            found["input_ids"][row, length - 1] = 49
    if getattr(config, "type_vocab_size", 0) > 1:
        found["token_type_ids"] = TYPES_OF_TOKENS
    of_text = "SequenceClassification" in type(model).__name__
    found["global_attention_mask"] = FIRST if of_text else GLOBAL
    return {name: x for name, x in found.items() if name in taken}


def tensor(x):
    """An array as PyTorch has it: integers of 64 bits."""
    if not isinstance(x, np.ndarray):
        return x
    return torch.tensor(x.astype("int64") if x.dtype.kind in "ib" else x)


def numpy(x):
    """A tensor of either side."""
    if isinstance(x, torch.Tensor):
        return x.detach().cpu().float().numpy()
    return np.asarray(keras.ops.convert_to_numpy(x))


def call(model, **given):
    with torch.no_grad():
        return model(**{name: tensor(x) for name, x in given.items()})


def alone(model, row):
    """The inputs of a row without padding."""
    lengths = {"decoder_input_ids": TARGET_LENGTHS[row]}
    found = {name: x[row : row + 1] for name, x in arrays(model).items()}
    return {
        name: x if x.dtype.kind == "f" else x[:, : lengths.get(name, LENGTHS[row])]
        for name, x in found.items()
    }


def states_and_logits(model, given):
    """The last states of a model of `transformers`, and its logits or None."""
    name = type(model).__name__
    found = call(model, **given)
    if name == "SiglipVisionModel" and model.use_head:
        return found.pooler_output, None
    if name == "SiglipTextModel":
        # Of the last token, as of all others.
        return found.last_hidden_state, model.head(found.last_hidden_state)
    if "Projection" in name:
        return None, found.text_embeds if "Text" in name else found.image_embeds
    if "last_hidden_state" in found:
        return found.last_hidden_state, None
    if "start_logits" in found:
        logits = torch.stack([found.start_logits, found.end_logits], dim=-1)
    else:
        logits = found.prediction_logits if "prediction_logits" in found else found.logits
    logits = logits[..., None] if name == "ElectraForPreTraining" else logits
    if model.config.is_encoder_decoder:
        return call(model, **given, output_hidden_states=True).decoder_hidden_states[-1], logits
    return call(model.base_model, **given).last_hidden_state, logits


def ours_of(model, theirs, mask=None, target_mask=TARGET_MASK):
    """The arguments of ours for the inputs of `transformers`: inputs, and those by name."""
    given = arrays(theirs)
    if "pixel_values" in given:
        return images(theirs.config), {}
    if "input_features" in given:
        return [SOUND, TARGET], {"target_mask": target_mask}
    if mask is None:
        return ([IDS, TARGET] if isinstance(model, EncoderDecoder) else given["input_ids"]), {}
    # The real tokens of a row are where the mask has them.
    padding = getattr(theirs.config, "pad_token_id", None) or 0
    names = "input_ids", "token_type_ids", "global_attention_mask"
    placed = {name: given[name] for name in names if name in given}
    for name, values in placed.items():
        filled = 0 if name.startswith("global") else padding
        placed[name] = np.full(mask.shape, filled, "int32")
        for row, real in enumerate(mask):
            placed[name][row, real] = values[row, : real.sum()]
    if isinstance(model, EncoderDecoder):
        return [placed["input_ids"], TARGET], {"source_mask": mask, "target_mask": target_mask}
    ours = {"token_type_ids": "types", "global_attention_mask": "global_mask"}
    more = {
        ours[name]: x for name, x in placed.items() if name in ours and given[name] is not FIRST
    }
    return placed["input_ids"], {"mask": mask, **more}


def watched(model, inputs, **given):
    """The states that logits are made of, and these, or None, of one call of ours."""
    seen, called = [], Logits.call

    def watch(self, x, *table):
        seen.append(x)
        return called(self, x, *table)

    with mock.patch.object(Logits, "call", watch):
        found = model(inputs, **given)
    logits = getattr(model, "decoder", model).logits
    return (found, None) if logits is None else (seen[0], found)


def difference(found, expected, mask=None):
    """The largest difference, of real tokens."""
    found, expected = numpy(found), numpy(expected)
    assert found.shape == expected.shape
    assert np.isfinite(found).all()
    if mask is not None:
        found, expected = found[mask], expected[mask]
    assert expected.size == 1 or expected.std() > 1e-3, "what is compared is hardly random"
    return float(np.abs(found - expected).max())


# Masks of pairs


def random_pairs(rows, length):
    """A mask of pairs: each token attends to itself at least."""
    allowed = np.random.default_rng(2).random((rows, length, length)) < 0.5
    return allowed | np.eye(length, dtype="bool")


def additive(allowed):
    """A mask of pairs as `transformers` takes it."""
    return np.where(allowed, 0.0, np.finfo("float32").min).astype("float32")[:, None]


# Models and folders


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
            if name.endswith(("correction_bias", "final_logits_bias")):
                buffer.normal_(std=0.2)
    return model


@dataclasses.dataclass
class Folder:
    """A folder, and the model of `transformers` that it was written from."""

    path: pathlib.Path
    theirs: "torch.nn.Module"

    @functools.cached_property
    def ours(self):
        """Our model of the folder."""
        return convert.from_huggingface(self.path)

    def config(self):
        """The fields of `config.json`."""
        return json.loads((self.path / "config.json").read_text(encoding="utf-8"))

    def copied(self, path, without=(), tensors=None, **fields):
        """A copy with other fields in `config.json`, and other tensors; None removes a field."""
        path.mkdir(parents=True, exist_ok=True)
        for file in self.path.iterdir():
            (path / file.name).write_bytes(file.read_bytes())
        config = {k: v for k, v in {**self.config(), **fields}.items() if v is not None}
        (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        if without or tensors:
            save(
                path, {n: x for n, x in stored(path).items() if n not in without} | (tensors or {})
            )
        return Folder(path, self.theirs)

    def read_back(self, path, **options):
        """The model that `transformers` reads from what ours writes."""
        convert.to_huggingface(self.ours, path)
        return type(self.theirs).from_pretrained(path, dtype=torch.float32, **options)


def write(path, model_class, fields, seed=0, change=lambda model: None):
    """A `Folder` with a random model, which may be changed before."""
    # A configuration may change what it is given.
    model = random_model(model_class, model_class.config_class(**copy.deepcopy(fields)), seed)
    model.tie_weights()
    change(model)
    model.save_pretrained(path)
    return Folder(pathlib.Path(path), model)


def stored(path):
    """The tensors of a folder, by name."""
    from safetensors.numpy import load_file

    found = {}
    for file in sorted(pathlib.Path(path).glob("*.safetensors")):
        found |= load_file(file)
    return found


def save(path, tensors):
    from safetensors.numpy import save_file

    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def through_a_file(model, folder):
    """The model as it is read from a `.keras` file."""
    model.save(folder / "model.keras")
    return keras.saving.load_model(folder / "model.keras")


def negate_last_norm(model):
    """So that a decoder does not repeat a token."""
    decoder = model.get_decoder()
    for name in ("final_layer_norm", "layer_norm", "ln_f"):
        if hasattr(decoder, name):
            getattr(decoder, name).weight.data.neg_()
            return
    decoder.layers[-1].final_layer_norm.weight.data.neg_()
