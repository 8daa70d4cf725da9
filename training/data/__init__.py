"""Input data: sources of images, splits, augmentation, and the tf.data pipeline."""
