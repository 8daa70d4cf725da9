"""Checkpoint families: how each project names and lays out its arrays."""
