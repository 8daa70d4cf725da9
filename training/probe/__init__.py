"""Evaluation of frozen features: few-shot, linear probe, nearest neighbors."""
