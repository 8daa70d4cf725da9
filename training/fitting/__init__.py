"""Runs of a recipe: `fit`, `resume`, what they leave, and `push`."""
