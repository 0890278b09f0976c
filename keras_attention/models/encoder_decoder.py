"""`EncoderDecoder`: a sequence to another."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from keras_attention import saving
from keras_attention.core.hints import Cache, Dtype, Tensor, Tensors
from keras_attention.generation import Generated, Stream
from keras_attention.models.decoder import Decoder
from keras_attention.models.encoder import Encoder
from keras_attention.models.generating import Generating, rounded
from keras_attention.sequences import masks, shapes


class EncoderDecoder(saving.ConfigurableModel, Generating):
    """A Transformer from a source to a target (Vaswani et al. 2017; T5, BART).

    A `keras.Model`: `fit([source, target_in], target_out)` trains it.

    Args:
        encoder: an `Encoder`.
        decoder: a `Decoder` of blocks with `cross_attention=True`. If both have embeddings of
            one layer of tokens, that table is shared.
        metadata: as in `Encoder`.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        inputs: `[source, target]`, integers (B, S) and (B, T).
        source_mask, target_mask: boolean (B, S) and (B, T), True = a real token; combined with
            those of the embeddings.
        training: whether to apply dropout.
        logits_to_keep: as in `Decoder`, of the target.

    Returns:
        Logits (B, T, vocabulary_size): of the token after each of the target.

    Raises:
        TypeError: a part is not of its class.

    Example:

    >>> import keras
    >>> from keras_attention import Decoder, Embeddings, Encoder, EncoderDecoder, Logits
    >>> from keras_attention import ScaledEmbedding, TransformerBlock
    >>> tokens = ScaledEmbedding(100, 16, mask_zero=True)
    >>> model = EncoderDecoder(
    ...     Encoder([TransformerBlock(32, 2)], Embeddings(tokens)),
    ...     Decoder(
    ...         [TransformerBlock(32, 2, causal=True, cross_attention=True)],
    ...         Embeddings(tokens),
    ...         logits=Logits(100),
    ...     ),
    ... )
    >>> source = keras.ops.convert_to_tensor([[5, 7, 3, 0]])
    >>> model([source, keras.ops.convert_to_tensor([[1, 9]])]).shape
    (1, 2, 100)
    >>> model.generate(source, [[1]], max_tokens=6).tokens.shape
    (1, 6)
    """

    def __init__(
        self,
        encoder: Encoder,
        decoder: Decoder,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.metadata = metadata
        self.encoder = saving.check_layer("encoder", encoder, Encoder)
        self.decoder = saving.check_layer("decoder", decoder, Decoder)

    def build(self, inputs_shape):
        source, target = _two(inputs_shape, (list, tuple))
        if not self.encoder.built:
            self.encoder.build(source)
        if not self.decoder.built:
            context = self.encoder.compute_output_spec(keras.KerasTensor(source))
            self.decoder.build(target, context.shape)

    def call(
        self,
        inputs: Tensors,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        training: bool | None = None,
        logits_to_keep: int | None = None,
    ) -> Tensor:
        source, target = _two(inputs)
        shapes.check_count("logits_to_keep", logits_to_keep, minimum=0, optional=True)
        context = self.encoder(source, mask=source_mask, training=training)
        given = {"mask": target_mask, "training": training, "logits_to_keep": logits_to_keep}
        return self.decoder(target, context, **given)

    def generate(
        self,
        source: Tensor | None,
        prompt: Tensor | None,
        max_tokens: int | Tensor,
        method: str = "greedy",
        *,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        cache: Any = None,
        draft: Any = None,
        **settings: Any,
    ) -> Generated:
        """Tokens that follow the beginnings of targets, by one compiled program that is kept.

        Args:
            source: integers (B, S), or what else the encoder takes; None with a `cache`.
            prompt: integers (B, T), usually one column of start tokens.
            source_mask, target_mask: as in a call.
            max_tokens, method, cache, draft, settings: as in `Decoder.generate`.

        Returns:
            A `Generated`, as `Decoder.generate`.

        Raises:
            ValueError, TypeError: as `Decoder.generate`.
        """
        more, given = _sources(source, source_mask), {"cache": cache, "draft": draft, **settings}
        return self._request(prompt, max_tokens, more, target_mask, method, **given).text()

    def stream(
        self,
        source: Tensor | None,
        prompt: Tensor | None,
        max_tokens: int | Tensor,
        *,
        chunk: int = 8,
        **settings: Any,
    ) -> Stream:
        """The tokens of `generate` as they are drawn. See `Decoder.stream`."""
        mask = settings.pop("target_mask", None)
        more = _sources(source, settings.pop("source_mask", None))
        return self._request(prompt, max_tokens, more, mask, **settings).stream(chunk)

    def _memory(self, arrays):
        """The keys and values of a source."""
        context = self.encoder(arrays["source"], mask=arrays.get("source_mask"), training=False)
        return self.decoder.cache_context(context, masks.implicit(context))

    def _build_for(self, ids, more):
        self([more["source"], ids], source_mask=more.get("source_mask"), logits_to_keep=0)

    def start(
        self,
        source: Tensor,
        prompt: Tensor,
        max_tokens: int,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        cache_dtype: Dtype | None = None,
        spare: int = 0,
    ) -> tuple[Tensor, list[Cache], list[Cache]]:
        """Reads a source and the beginning of a target, so that `step` can go on.

        Args:
            source: integers (B, S).
            prompt: integers (B, T), the beginning of the target: usually one column of start
                tokens. Longer ones are padded on the left. See `Decoder.start`.
            max_tokens: how many tokens may follow.
            source_mask: as in a call.
            target_mask: boolean (B, T), True = a real token of `prompt`.
            cache_dtype, spare: as in `Decoder.start`.

        Returns:
            `(last, cache, memory)`: arguments of
            `generation.greedy(model.step, last, cache, max_tokens=max_tokens, memory=memory)`.

        Raises:
            ValueError: batch sizes differ; or as `Decoder.start`.
            TypeError: as `Decoder.start`.
        """
        source = keras.ops.convert_to_tensor(source)
        prompt, target_mask = self.decoder._checked(prompt, target_mask, max_tokens)
        shapes.check_same("Batch sizes", source=source.shape[0], prompt=prompt.shape[0])
        sources = {"source": source, "source_mask": source_mask}
        if not self.built:
            self._build_for(prompt, sources)
        memory = self._memory(sources)
        given = {"mask": target_mask, "cache_dtype": cache_dtype, "spare": spare}
        last, cache = self.decoder.start(prompt, max_tokens, memory, **given)
        return last, cache, memory

    def step(
        self, tokens: Tensor, cache: list[Cache], memory: list[Cache]
    ) -> tuple[Tensor, list[Cache]]:
        """The logits after one more token of each row. See `Decoder.step`."""
        return self.decoder.step(tokens, cache, memory)

    def steps(
        self, tokens: Tensor, cache: list[Cache], memory: list[Cache], mask: Tensor | None = None
    ) -> tuple[Tensor, list[Cache]]:
        """The logits after each of several tokens of each row. See `Decoder.steps`."""
        return self.decoder.steps(tokens, cache, memory, mask)

    def cut_cache(self, cache: list[Cache], length: int | Tensor) -> list[Cache]:
        """The caches of the first tokens of each target. See `Decoder.cut_cache`."""
        return self.decoder.cut_cache(cache, length)

    def grow_cache(self, cache: list[Cache], length: int, spare: int = 0) -> list[Cache]:
        """The same caches with entries for more tokens. See `Decoder.grow_cache`."""
        return self.decoder.grow_cache(cache, length, spare)

    def compute_mask(self, inputs, previous_mask=None):
        _, target = _two(inputs)
        of_target = previous_mask[1] if isinstance(previous_mask, (list, tuple)) else None
        return self.decoder.compute_mask(target, of_target)

    def compute_output_shape(self, inputs_shape):
        _, target = _two(inputs_shape, (list, tuple))
        return self.decoder.compute_output_shape(target)

    def compute_output_spec(
        self, inputs, source_mask=None, target_mask=None, training=None, logits_to_keep=None
    ):
        source, target = _two(inputs)
        self.encoder.compute_mask(source, source_mask)
        given = {"mask": target_mask, "logits_to_keep": logits_to_keep}
        context = self.encoder.compute_output_spec(source)
        return self.decoder.compute_output_spec(target, context, **given)


def _sources(source, mask):
    """The arrays of a source; tokens are padded to a size that is rounded."""
    if source is None:
        return {}
    source = keras.ops.convert_to_numpy(source)
    mask = None if mask is None else keras.ops.convert_to_numpy(mask).astype(bool)
    if source.ndim == 2 and source.dtype.kind in "iu":
        mask = np.ones(source.shape, bool) if mask is None else mask
        more = ((0, 0), (0, rounded(source.shape[1], 16) - source.shape[1]))
        source, mask = np.pad(source, more), np.pad(mask, more)
    return {"source": source} if mask is None else {"source": source, "source_mask": mask}


def _two(inputs, kinds=object):
    """Source and target, checked: arrays, or their shapes, which are of `kinds`."""
    two = isinstance(inputs, (list, tuple)) and len(inputs) == 2
    if not two or not all(isinstance(x, kinds) for x in inputs):
        raise ValueError(
            "An EncoderDecoder is called with one list, `model([source, target])`, and the masks "
            f"of both after it. Received as the list: {inputs!r}"
        )
    return inputs
