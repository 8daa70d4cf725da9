"""Trains Vision Transformers from the checkout: `python -m training fit`."""
