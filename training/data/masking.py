"""The masks of self-supervised pre-training, as pure functions of an example's seed."""

import tensorflow as tf

from keras_vit import VisionTransformer

from ..recipe import Recipe, SelfSupervisionConfig
from .augment import example_seed, for_purpose

# Shares of the masked patches in masked patch prediction (appendix B.1.2): whose
# embedding becomes [mask], and whose becomes another patch's; the rest stays.
REPLACED, MOVED = 0.8, 0.1

# Purposes of an example's random numbers, after those of the augmentation.
ORDER, KIND, OTHER = range(16, 19)
EVALUATION_EPOCH = 2**32 - 1  # of the seeds of evaluated images, whose masks stay


class Masking:
    """Chooses the masked patches of an image, which has N patches.

    Attributes:
        masked: Number of masked patches, the same in every image.
    """

    def __init__(self, config: SelfSupervisionConfig, patches: int, seed: int) -> None:
        self.task = config.task
        self.patches = patches
        self.masked = masked_patches(config, patches)
        self.seed = seed

    @classmethod
    def of(cls, encoder: VisionTransformer, recipe: Recipe) -> "Masking":
        """The masking of a run with this encoder."""
        height, width = encoder.grid
        return cls(recipe.self_supervision, height * width, recipe.seed)

    def __call__(self, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The mask of an example, by its seed.

        Returns:
            int32 [N], which embedding each patch gets: its own index, another patch's,
            or N for [mask]; with `mae` instead a random order of the patches, the
            visible ones first. And float32 [N], 1 for the masked patches.
        """
        uniform = tf.random.stateless_uniform([self.patches], for_purpose(seed, ORDER))
        order = tf.argsort(uniform, stable=True)
        visible = self.patches - self.masked
        masked = tf.argsort(order) >= visible
        weights = tf.cast(masked, tf.float32)
        if self.task == "mae":
            return order, weights
        own = tf.range(self.patches)
        if self.task == "simmim":
            return tf.where(masked, self.patches, own), weights
        return tf.where(masked, self._corrupted(own, seed), own), weights

    def _corrupted(self, own: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """What each patch becomes if it is masked: int32 [N]."""
        kind = tf.random.stateless_uniform([self.patches], for_purpose(seed, KIND))
        offset = tf.random.stateless_uniform(
            [self.patches], for_purpose(seed, OTHER), 1, self.patches, tf.int32
        )
        other = (own + offset) % self.patches
        moved = tf.where(kind < REPLACED + MOVED, other, own)
        return tf.where(kind < REPLACED, self.patches, moved)

    def of_evaluated(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The mask of an image in evaluation, by its index: the same every time."""
        return self(example_seed(self.seed, tf.constant(EVALUATION_EPOCH), index))


def masked_patches(config: SelfSupervisionConfig, patches: int) -> int:
    """Number of masked patches: at least one, and one stays visible."""
    visible = round((1 - config.share) * patches)
    return patches - min(max(visible, 1), patches - 1)
