"""Image files in TensorFlow operations: decoding, orientation, number of pixels.

Files are read as Pillow reads them (`Image.open(file).convert("RGB")`): the first frame
of an animation on its canvas, palettes as colors, transparency dropped. TensorFlow's
own decoders differ: they read palettes of BMP as gray, transparent pixels of GIF as
black, and refuse or misread WebP files with transparency.

The modules import TensorFlow; `keras_vit.decoding` imports them when it is called.
"""
