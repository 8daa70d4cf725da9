"""What the library, training and serving share; needs neither Keras nor TensorFlow."""
