"""Self-supervised pre-training: predict what is masked of an image's patches."""
