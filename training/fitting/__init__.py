"""Runs from their start to the model that is shared."""
