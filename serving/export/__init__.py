"""Export: a Keras model becomes a verified, versioned SavedModel."""
