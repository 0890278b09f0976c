"""Names of 0.1.0 that are others now: what is written with them works, and is saved with the new.

Files of 0.1.0 are in `golden/`; that no former name goes is in `docs/test_api.py`.
"""

import functools
import inspect

import keras
import numpy as np
import pytest

from keras_attention import (
    AttentionCell,
    LocalAttention,
    SelfAttention,
    feature_maps,
    layers,
    positions,
    saving,
    visualization,
)
from keras_attention.losses import SmoothedCrossentropy

B, T, S, D = 2, 3, 5, 8
X, MEMORY = np.ones((B, T, D), "float32"), np.ones((B, S, D), "float32")

RENAMED = [
    (LocalAttention, {"window": 2, "mode": "predictive"}, "centre_initializer", "ones"),
    (SmoothedCrossentropy, {}, "ignore", 3),
]


@pytest.mark.parametrize("cls, given, old, value", RENAMED)
def test_a_former_argument_is_the_present_one(cls, given, old, value):
    make, new = functools.partial(cls, **given), saving.former_names(cls)[old]
    made = make(**{old: value})
    config, expected = made.get_config(), make(**{new: value}).get_config()
    assert old not in config and config[new] == expected[new] != make().get_config()[new]
    assert getattr(made, old) is getattr(made, new)
    assert old not in inspect.signature(cls).parameters
    config[old] = config.pop(new)  # as 0.1.0 wrote it
    for again in (
        cls.from_config(config),
        keras.saving.deserialize_keras_object(
            {**keras.saving.serialize_keras_object(made), "config": config}
        ),
    ):
        assert again.get_config()[new] == expected[new]
    setattr(made, old, "other")
    assert getattr(made, new) == "other"


@keras.saving.register_keras_serializable(package="tests")
class FormerArgument(LocalAttention):
    """Passes an argument on as 0.1.0 named it."""

    def __init__(self, window, centre_initializer="zeros", **kwargs):
        super().__init__(window, centre_initializer=centre_initializer, **kwargs)


@keras.saving.register_keras_serializable(package="tests")
class FormerLoss(SmoothedCrossentropy):
    def __init__(self, ignore=-1, name="former"):
        super().__init__(0.0, ignore=ignore, name=name)

    def get_config(self):
        return {"ignore": self.ignore, "name": self.name}


def test_a_subclass_may_have_the_former_name():
    layer = FormerArgument(2, "ones", units=3)
    config = layer.get_config()
    assert "center_initializer" not in config and config["units"] == 3
    again = FormerArgument.from_config(config)
    assert isinstance(again.center_initializer, keras.initializers.Ones)
    assert again.get_config()["centre_initializer"] == config["centre_initializer"]
    loss = FormerLoss.from_config(FormerLoss(4).get_config())
    assert loss.ignore_class == loss.ignore == 4


def test_former_methods_of_the_cell():
    cell = AttentionCell(keras.layers.GRUCell(D), "dot", return_attention_scores=True)
    outputs = keras.layers.RNN(cell, return_sequences=True)(
        X, initial_state=cell.initial_state(MEMORY)
    )
    mask = np.arange(S) < np.array([[S], [2]])
    pairs = [
        (cell.start(MEMORY, mask=mask), cell.start_states(MEMORY, mask=mask)),
        (cell.split(outputs), cell.split_outputs(outputs)),
    ]
    for former, present in pairs:
        former, present = keras.tree.flatten(former), keras.tree.flatten(present)
        for one, other in zip(former, present, strict=True):
            np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (one, other)))


class Mixin:
    """Overrides what 0.1.0 named `expect_values`, and calls that of its base."""

    def expect_values(self, value_shape):
        super().expect_values(value_shape)
        self.seen = tuple(value_shape)


class Seen(Mixin, positions.Position):
    def bias(self, i, j, num_heads):
        return keras.ops.cast(i - j, "float32")


class SeenShaw(Mixin, positions.Shaw):
    pass


class SeenBelow(Seen):
    """Overrides the present name of what its base has under the former one."""

    def build_values(self, value_shape):
        super().build_values(value_shape)
        self.below = True


@pytest.mark.parametrize("position", [Seen(), SeenShaw(2), SeenBelow()])
def test_a_former_method_of_positions_may_be_overridden(position):
    layer = SelfAttention(2, 4, value_dim=3, position=position)
    assert layer(X).shape == (B, T, 6)
    assert position.seen == (B, T, 2, 3)
    assert getattr(position, "below", None) is (True if type(position) is SeenBelow else None)
    position.seen = None
    position.expect_values((B, T, 2, 3))
    assert position.seen == (B, T, 2, 3)


def test_a_former_method_of_positions_is_the_present_one():
    shaw = positions.Shaw(2)
    shaw.expect_values((B, T, 2, 3))
    shaw.build((B, T, 2, 4), (B, T, 2, 4))
    assert sorted(tuple(weight.shape) for weight in shaw.weights) == [(1, 5, 3), (1, 5, 4)]


def test_what_has_moved_is_where_it_was():
    assert layers.feature_maps is feature_maps
    assert visualization.attention_page is visualization.attention_html
    assert "attention_page" not in visualization.__all__
