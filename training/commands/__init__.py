"""The commands of training: their flags, what they refuse, and what they call."""
