"""Modules that released programs may import by a former path: those that define public classes."""

import importlib
import sys

# The former paths of each module.
FORMER = {
    "alignments.base": "alignments.coverage alignments.location_sensitive",
    "alignments.monotonic": "alignments.mocha",
    "layers.blocks.feed_forward": "layers.feed_forward layers.mixture_of_experts",
    "layers.blocks.norms": "layers.norms layers.layer_scale layers.rms_norm",
    "layers.blocks.transformer_block": "layers.transformer_block",
    "layers.embeddings.grid_embedding": "layers.grid_embedding",
    "layers.embeddings.patches": "layers.patch_embedding layers.patch_merging",
    "layers.embeddings.position_embedding": "layers.position_embedding",
    "layers.embeddings.scaled_embedding": "layers.scaled_embedding",
    "layers.linear_time.gated_states": "layers.gated_delta_net layers.gated_linear_attention "
    "layers.retention",
    "layers.linear_time.linear_attention": "layers.linear_attention",
    "layers.linear_time.state_attention": "layers.state_attention layers.state_heads",
    "layers.low_rank_attention": "layers.linformer_attention layers.nystrom_attention",
    "layers.pooling": "layers.attention_pooling layers.class_token layers.feed_forward_attention",
    "layers.presets": "layers.hard_attention layers.local_attention layers.local_self_attention "
    "layers.reinforce_loss layers.relative_position_attention layers.self_attention",
    "layers.recurrent.attention_cell": "layers.attention_cell",
    "layers.recurrent.attention_rnn": "layers.attention_rnn",
    "layers.recurrent.pointers": "layers.pointer_generator layers.pointer_head",
    "layers.sets": "layers.induced_set_attention_block layers.learned_queries "
    "layers.slot_attention",
    "models.embeddings": "models.logits",
    "patterns.base": "patterns.groups",
    "patterns.built_in": "patterns.derived patterns.random_blocks",
    "positions.biases": "positions.alibi positions.cope positions.fire positions.grid_bias "
    "positions.kerple positions.relative_bias",
    "positions.relative": "positions.disentangled positions.shaw positions.transformer_xl",
    "positions.rotary": "positions.axial_rotary positions.mixed_rotary positions.xpos",
    "scores.built_in": "scores.location scores.perceptrons scores.products",
}


for _path, _names in FORMER.items():
    _module = importlib.import_module(f"keras_attention.{_path}")
    for _former in _names.split():
        _parent, _name = f"keras_attention.{_former}".rsplit(".", 1)
        sys.modules[f"{_parent}.{_name}"] = _module
        setattr(sys.modules[_parent], _name, _module)
