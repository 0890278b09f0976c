"""Visualization: the attention scores of a model, as a figure and as an HTML page."""

from keras_attention.visualization.collect import collect_attention
from keras_attention.visualization.page import attention_page
from keras_attention.visualization.plot import plot_attention

__all__ = ["attention_page", "collect_attention", "plot_attention"]
