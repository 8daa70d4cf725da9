"""Decode the files of a folder, in the order of their names.

Usage: python decode_files.py FOLDER PIXELS

Prints a line of JSON for each: name, CPU seconds, the process's peak of memory in MiB,
and the error. Files of more PIXELS are refused, as an exported graph does.
"""

import json
import pathlib
import resource
import sys
import time

import tensorflow as tf

from keras_vit import decoding
from keras_vit.image_files.formats import count_pixels


def main(folder, pixels):
    @tf.function(input_signature=[tf.TensorSpec([], tf.string)], autograph=False)
    def decode(data):
        few = tf.debugging.Assert(count_pixels(data) <= pixels, ["too many pixels"])
        with tf.control_dependencies([few]):
            return decoding.decode_image(tf.identity(data))

    for path in sorted(pathlib.Path(folder).iterdir()):
        data, error = tf.constant(path.read_bytes()), ""
        start = time.process_time()
        try:
            decode(data)
        except tf.errors.InvalidArgumentError as refused:
            error = refused.message
        seconds = time.process_time() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(json.dumps([path.name, seconds, peak, error]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
