"""Rematerialization (gradient checkpointing) of encoder blocks."""

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

    def compute(*arrays):
        """The block as a pure function of its inputs and all its variables."""
        inputs, values = arrays[: -len(variables)], arrays[-len(variables) :]
        with keras.StatelessScope(
            state_mapping=list(zip(variables, values, strict=True))
        ) as scope:
            outputs = once(*inputs, training=True)
            return outputs, *(scope.get_current_value(seed) for seed in seeds)

    def call(tokens, queries=None, training=False):
        if not training:
            return once(tokens, queries, training=False)
        inputs = [tokens] if queries is None else [tokens, queries]
        values = [variable.value for variable in variables]
        outputs, *states = keras.remat(compute)(*inputs, *values)
        for seed, state in zip(seeds, states, strict=True):
            seed.assign(state)
        return outputs

    block.call = call
