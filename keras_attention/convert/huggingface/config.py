"""The configuration of a Hugging Face model, of which nothing may be left unread."""

import json
import pathlib

# Fields that say nothing of what a model computes: of tokenizers, generation, training, and of the
# program that wrote the file.
_IGNORED = """
    architectures model_type _name_or_path name_or_path transformers_version auto_map torch_dtype
    dtype use_cache return_dict output_attentions output_hidden_states output_past torchscript
    pruned_heads use_bfloat16 gradient_checkpointing chunk_size_feed_forward pretraining_tp
    _attn_implementation attn_implementation _attn_implementation_autoset slow_but_exact
    bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id unk_token_id mask_token_id
    decoder_start_token_id forced_bos_token_id forced_eos_token_id suppress_tokens
    begin_suppress_tokens bad_words_ids prefix tokenizer_class language max_length min_length
    num_beams length_penalty no_repeat_ngram_size top_k top_p temperature early_stopping do_sample
    repetition_penalty task_specific_params id2label label2id num_labels problem_type
    finetuning_task initializer_range initializer_factor init_std init_method
"""
IGNORED = frozenset(_IGNORED.split())


class Config:
    """Fields by name; `check_read` raises if one was never asked for.

    Args:
        values: the fields, as in `config.json`.
        where: what they are of, for messages.
        folder: the folder of the model, if there is one.
    """

    def __init__(self, values, where="config.json", folder=None):
        self.values, self.where, self.folder = values, where, folder
        self._read = set()

    @classmethod
    def of(cls, folder):
        """That of a folder."""
        path = pathlib.Path(folder) / "config.json"
        if not path.parent.is_dir():
            kind = "a file" if path.parent.exists() else "nothing: download the model there first"
            raise ValueError(f"`folder` must be a folder. Received: {folder}, which is {kind}")
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(
                f"`folder` must have a `config.json` of a Hugging Face model. Received: {path}, "
                f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
            raise ValueError(
                f"`{path}` must be an object with a `model_type`. Received: {values!r}"
            )
        return cls(values, str(path), folder)

    def __contains__(self, name):
        return self.values.get(name) is not None

    def __getitem__(self, name):
        """A field that must be there."""
        if name not in self.values:
            raise ValueError(f"`{self.where}` must have a field {name!r}. Received: none")
        return self.get(name)

    def get(self, name, default=None):
        """A field; `default` where it is missing or null."""
        self._read.add(name)
        value = self.values.get(name)
        return default if value is None else value

    def require(self, name, *supported, default=None):
        """A field that must have one of some values."""
        value = self.get(name, default)
        if value not in supported:
            raise ValueError(
                f"{name!r} of `{self.where}` must be one of {supported}: nothing else is supported "
                f"for model_type={self.values.get('model_type')!r}. Received: {value!r}"
            )
        return value

    def part(self, name):
        """A field that is a configuration itself."""
        value = self.get(name, {})
        if not isinstance(value, dict):
            raise ValueError(f"{name!r} of `{self.where}` must be an object. Received: {value!r}")
        return Config(value, f"{name} of {self.where}")

    def ignore(self, *names):
        """Fields that change nothing in what is converted: rates of dropout that are 0 in use."""
        self._read.update(names)

    def check_read(self):
        """Raises if there are fields that nobody asked for, whose effect would be lost."""
        unread = {
            name: value
            for name, value in self.values.items()
            if name not in self._read | IGNORED and value is not None
        }
        if unread:
            raise ValueError(
                f"`{self.where}` has fields that are not supported for model_type="
                f"{self.values.get('model_type')!r}. Received: {unread}"
            )
