"""Rematerialization (gradient checkpointing) of encoder blocks."""

import keras

from keras_vit.typing import Tensor, Tokens


def rematerialize_blocks(model: keras.Model) -> None:
    """Make a Vision Transformer recompute each encoder block in the backward pass.

    In training only the input of each block stays in memory (arXiv:1604.06174). The
    model's file does not change.

    `keras.RematScope` cannot do it: in a graph TensorFlow rejects the keyword
    `training`, and dropout would draw another mask the second time.
    """
    for layer in model.layers:
        if layer.name.startswith("encoder_block_"):
            _rematerialize(layer)


def _rematerialize(block: keras.layers.Layer) -> None:
    once = block.call

    def call(
        tokens: Tokens,
        context: dict[str, Tensor] | None = None,
        training: bool = False,
    ) -> Tokens:
        if not training:
            return once(tokens, context, training=False)
        variables = block.variables  # weights, and the states of the seed generators
        weights = {id(weight) for weight in block.weights}
        seeds = [v for v in variables if id(v) not in weights]
        names = sorted(context or {})

        def compute(tokens: Tokens, *values: Tensor) -> tuple[Tensor, ...]:
            """The block as a pure function of its tensors and all its variables."""
            given = dict(zip(names, values, strict=False))
            states = zip(variables, values[len(names) :], strict=True)
            with keras.StatelessScope(state_mapping=list(states)) as scope:
                outputs = once(tokens, given, training=True)
                return outputs, *(scope.get_current_value(seed) for seed in seeds)

        # Copies: outside of a graph the second time would read the next step's seeds.
        values = (keras.ops.copy(variable.value) for variable in variables)
        tensors = ((context or {})[name] for name in names)
        outputs, *states = keras.remat(compute)(tokens, *tensors, *values)
        for seed, state in zip(seeds, states, strict=True):
            seed.assign(state)
        return outputs

    block.call = call
