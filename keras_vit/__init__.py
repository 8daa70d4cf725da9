"""Vision Transformers for Keras: the paper's models, from `model.fit` to serving.

Importing this package registers its layers and models, so that
`keras.models.load_model` opens the files they were saved in.
"""

from typing import TYPE_CHECKING

from keras_vit._version import __version__ as __version__
from keras_vit.common.lazy import is_command, names_on_first_use

if TYPE_CHECKING or not is_command():
    from keras_vit import _platform  # isort: skip
    from keras_vit.api import *
    from keras_vit.api import __all__
else:
    __getattr__ = names_on_first_use(__name__)
