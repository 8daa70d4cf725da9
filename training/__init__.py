"""Trains and evaluates Vision Transformers: `keras-vit fit`, and what belongs to it."""
