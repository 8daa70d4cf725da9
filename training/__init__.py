"""Trains Vision Transformers from the checkout: `keras-vit fit`."""
