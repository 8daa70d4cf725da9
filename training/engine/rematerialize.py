"""Rematerialization (gradient checkpointing) of encoder blocks."""

import functools

import keras


def rematerialize_blocks(model: keras.Model) -> None:
    """Make a Vision Transformer recompute each encoder block in the backward pass.

    In training only the input of each block stays in memory (arXiv:1604.06174). The
    model's file does not change.

    `keras.RematScope` cannot do it: in a graph TensorFlow rejects the keyword
    `training`, and dropout would draw another mask the second time.

    Args:
        model: A `keras_vit.VisionTransformer`. It is changed.
    """
    for layer in model.layers:
        if layer.name.startswith("encoder_block_"):
            _rematerialize(layer)


def _rematerialize(block: keras.layers.Layer) -> None:
    once = block.call
    variables = block.variables  # weights, and the states of the seed generators
    weights = {id(weight) for weight in block.weights}
    seeds = [v for v in variables if id(v) not in weights]

    def compute(first, tokens, *values):
        """The block as a pure function of its input and all its variables."""
        with keras.StatelessScope(
            state_mapping=list(zip(variables, values, strict=True))
        ) as scope:
            outputs = once(tokens, first=first, training=True)
            return outputs, *(scope.get_current_value(seed) for seed in seeds)

    def call(tokens, first=None, training=False):
        if not training:
            return once(tokens, first=first, training=False)
        values = [variable.value for variable in variables]
        computed = keras.remat(functools.partial(compute, first))
        outputs, *states = computed(tokens, *values)
        for seed, state in zip(seeds, states, strict=True):
            seed.assign(state)
        return outputs

    block.call = call
