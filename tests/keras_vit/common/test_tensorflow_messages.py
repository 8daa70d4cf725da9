"""Messages of TensorFlow are cut down to their reason."""

import pytest
import tensorflow as tf

from keras_vit.common.tensorflow_messages import reason_of

IN_A_GRAPH = """Graph execution error:

Detected at node Assert/Assert defined at (most recent call last):
  File "/a b/photos.py", line 11, in read

  File "/a b/photos.py", line 116, in {name}

assertion failed: [Rows: ] [3] [and: ] [4]
\t [[{{{{node Assert/Assert}}}}]] [Op:__inference_read_10]"""


# In a message of a test with threads, a function had no name.
@pytest.mark.parametrize("name", ["decode", "<lambda>", ""])
def test_frames_are_no_reason(name):
    error = tf.errors.InvalidArgumentError(None, None, IN_A_GRAPH.format(name=name))
    assert reason_of(error) == "Rows:  3 and:  4"
