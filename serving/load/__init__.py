"""Load: measures a server under load, and soaks it for half an hour.

Knows servers by their protocol alone: TensorFlow Serving and the local server are
measured by the same code.
"""
