"""What all models refuse in words: shapes, arguments, names of files."""

import keras
import numpy as np
import pytest
from long_cases import long_after
from tiny_model import small, small_classifier

import keras_vit

pytestmark = pytest.mark.backend

SHAPE = (22, 14, 3)
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def classifier():
    return small_classifier(keras.layers.Flatten())


def resnet():
    return keras_vit.ResNet(image_size=SHAPE[:2], blocks=(1,), classes=2)


@pytest.fixture(params=["vit", "resnet", "classifier"])
def model(request, tiny_vit):
    builders = {"vit": tiny_vit, "resnet": resnet, "classifier": classifier}
    model = builders[request.param]()
    model.compile("sgd", LOSS)
    return model


@pytest.fixture
def used(tiny_vit):
    """A model that has predicted, after which Keras relaxes the shapes it traces."""
    model = tiny_vit()
    model.compile("sgd", LOSS)
    model.predict(np.zeros((2, *SHAPE)), verbose=0)
    return model


WRONG = [
    pytest.param(SHAPE, id="one image"),
    pytest.param((2, 14, 22, 3), id="sides"),
    pytest.param((2, 22, 14, 1), id="channels"),
    pytest.param((2, 11, 22, 14, 3), id="videos"),
]


@pytest.mark.parametrize("shape", long_after(1, WRONG))
def test_another_shape_is_refused_after_a_prediction_too(used, shape):
    images, labels = np.zeros(shape), np.zeros(shape[0])
    message = rf"`images` must be a batch \[B, 22, 14, 3\].*shape \({shape[0]}, "
    for use in (
        lambda: used(images),
        lambda: used.predict(images, verbose=0),
        lambda: used.evaluate(images, labels, verbose=0),
        lambda: used.fit(images, labels, verbose=0),
        lambda: used.predict_on_batch(images),
        lambda: used.test_on_batch(images, labels),
        lambda: used.train_on_batch(images, labels),
    ):
        with pytest.raises(ValueError, match=message):
            use()


@pytest.mark.parametrize("shape", WRONG)
def test_every_model_refuses_another_shape(model, shape):
    with pytest.raises(ValueError, match=r"`images` must be a batch \[B, 22, 14, 3\]"):
        model.predict(np.zeros(shape), verbose=0)


def test_the_shape_of_a_data_set_is_checked(used):
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.from_tensor_slices((np.zeros((4, *SHAPE)), np.zeros(4)))
    with pytest.raises(ValueError, match=r"batch\(32\).*\(22, 14, 3\)"):
        used.evaluate(data, verbose=0)
    assert len(used.predict(data.batch(2), verbose=0)) == 4


@pytest.mark.parametrize(
    ("build", "name", "meant"),
    [
        (keras_vit.ViTTi16, "mlp_width", "Did you mean width or mlp_dim"),
        (keras_vit.ViTTi16, "img_size", "Did you mean image_size"),
        (small, "num_classes", "Did you mean classes"),
        (small, "drop_rate", "Did you mean dropout"),
        (keras_vit.BiTR50x1, "width_facter", "Did you mean width_factor"),
        (keras_vit.ImageClassifier, "num_classes", "Did you mean classes"),
        (keras_vit.ViTTi16, "xyz", "VisionTransformer. Received"),
    ],
)
def test_an_unknown_argument_is_refused_with_what_was_meant(build, name, meant):
    with pytest.raises(TypeError, match=f"`{name}` must be .*{meant}.*{name}=16"):
        build(**{name: 16})


def test_a_class_of_ones_own_may_take_more_arguments():
    class Own(keras_vit.VisionTransformer):
        def __init__(self, *, extra, **kwargs):
            self.given = extra
            super().__init__(**kwargs)

    sizes = {"patch_size": 4, "width": 6, "depth": 1, "mlp_dim": 5, "heads": 2}
    assert Own(extra=7, image_size=8, **sizes).given == 7


@pytest.mark.parametrize("name", ["m.h5", "m.hdf5"])
def test_keras_old_format_is_refused_before_a_file_is_written(tmp_path, model, name):
    with pytest.raises(ValueError, match=rf"must end in \.keras.*{name}"):
        model.save(tmp_path / name)
    assert not list(tmp_path.iterdir())
