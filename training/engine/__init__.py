"""The training engine: trainers, optimizer, checkpoints, and devices."""
