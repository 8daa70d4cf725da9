"""The sources of images by name.

digits                    scikit-learn's handwritten digits
digits:TASK               a task made of them, of `digit_tasks`
folder:PATH               image files in class folders
tfds:NAME                 TensorFlow Datasets
vtab:TASK                 a task of VTAB-1k, of `vtab`
python:MODULE:FUNCTION    a user's function that returns tf.data.Datasets
"""

import functools

import numpy as np
from etils import epath

from keras_vit.common.similar_names import did_you_mean

from ..errors import DataError
from ..recipe import DataConfig
from . import digit_tasks, vtab
from .folder import open_folder
from .labeled_images import Source, Split, host_constant
from .python_source import open_function, open_python
from .tfds import open_tfds


def open_source(config: DataConfig, channels: int) -> Source:
    """Open the source that `config.source` names, without invalid images.

    Raises:
        DataError: There are no images, some are invalid, or the source does not exist.
    """
    kind, _, rest = config.source.partition(":")
    if kind in TASKS and rest:
        return _open_task(kind, rest, channels)
    if kind == "digits":
        return open_digits(channels)
    if kind == "folder":
        return open_folder(epath.Path(rest), channels, config.on_bad_image)
    if kind == "python":
        return open_python(rest, channels)
    texts = (config.train, config.validation, config.test)
    slices = [text for text in texts if isinstance(text, str)]
    with_test = not isinstance(config.test, str)
    return open_tfds(rest, channels, config.download, slices, with_test)


TASKS = {"digits": digit_tasks, "vtab": vtab}


def _open_task(kind: str, name: str, channels: int) -> Source:
    tasks = TASKS[kind].TASKS
    if name not in tasks:
        raise DataError(
            f"{kind}:TASK must have one of the tasks {', '.join(tasks)}. Received: "
            f"{name!r}.{did_you_mean(name, tasks)}"
        )
    read = functools.partial(TASKS[kind].read_task, name)
    return open_function(f"{kind}:{name}", read, channels)


def open_digits(channels: int = 1) -> Source:
    """scikit-learn's 1,797 handwritten digits; see `digit_tasks.load_images`."""
    images, digits = digit_tasks.load_images()
    pixels = host_constant(np.repeat(images, channels, axis=-1))
    names = [f"digit {index}" for index in range(len(images))]
    split = Split(digits, 10, lambda index: pixels[index], names, channels=channels)
    # Sorted by writer.
    return Source(tuple(map(str, range(10))), {"train": split}, ordered=True)
