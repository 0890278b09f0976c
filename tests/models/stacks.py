"""Random weights of stacks."""

import numpy as np


def randomize(model, seed=0):
    rng = np.random.default_rng(seed)
    for weight in model.trainable_variables:
        weight.assign(rng.normal(size=weight.shape) / 2)
    return model
