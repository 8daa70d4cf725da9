"""Rollout: versions on disk, and the labels that decide which one answers."""
