"""The commands that ask a server: classify, embed, attention and status."""
