"""Visualization: the attention scores of a model, as a figure and as an HTML page."""

from keras_attention.visualization.collect import collect_attention
from keras_attention.visualization.page import attention_html
from keras_attention.visualization.plot import overlay_attention, plot_attention

__all__ = ["attention_html", "collect_attention", "overlay_attention", "plot_attention"]

# The name of `attention_html` in 0.1.0.
attention_page = attention_html
