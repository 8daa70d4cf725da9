"""Pixels to what the model reads, and scores to names."""

import warnings

import keras
import numpy as np
import pytest
from long_cases import long_after
from PIL import Image
from tiny_model import build_vit, numpy, small_classifier

import keras_vit
from keras_vit import ImagePreprocessing, pixel_range

pytestmark = pytest.mark.backend


@pytest.fixture
def pixels():
    random = np.random.default_rng(7)
    return random.integers(0, 256, (2, 13, 17, 3)).astype("uint8")


def test_google_preprocessing_maps_bytes_to_minus_one_and_one(pixels):
    expected = pixels.astype("float64") / 127.5 - 1
    np.testing.assert_allclose(keras_vit.preprocess_input(pixels), expected, atol=1e-6)
    layer = ImagePreprocessing((13, 17))
    np.testing.assert_allclose(numpy(layer(pixels)), expected, atol=1e-6)


def test_imagenet_preprocessing_equals_torchvisions_constants(pixels):
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    result = keras_vit.preprocess_input(pixels, mode="imagenet")
    np.testing.assert_allclose(result, (pixels / 255 - mean) / std, atol=1e-5)


FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos3": Image.Resampling.LANCZOS,
}


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize("size", [(40, 97), (97, 40), (11, 13), (113, 149), (30, 64)])
def test_antialiased_resizing_equals_pillow(interpolation, size):
    """Also where bicubic interpolation overshoots, and in either order of its axes."""
    image = np.random.default_rng(1).integers(0, 256, (59, 83, 3)).astype("uint8")
    image[:, :30] = np.where(image[:, :30] > 127, 255, 0)
    expected = Image.fromarray(image).resize(size[::-1], FILTERS[interpolation])
    layer = ImagePreprocessing(
        size,
        mean=0.0,
        std=1.0,
        interpolation=interpolation,
        antialias=True,
        convention="timm",
    )
    result = numpy(layer(image[None]))[0]
    difference = np.abs(result - np.asarray(expected, "float32"))
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.01


def test_pillow_resizes_the_columns_of_tall_images_first():
    """Then a resize of one axis alone comes before that of the other."""
    image = np.random.default_rng(1).integers(0, 2, (90, 40, 3)).astype("uint8") * 255
    columns = Image.fromarray(image).resize((40, 30), Image.Resampling.LANCZOS)
    rows = Image.fromarray(image).resize((31, 90), Image.Resampling.LANCZOS)
    for first, convention in ((columns, "timm"), (rows, "hugging_face")):
        expected = first.resize((31, 30), Image.Resampling.LANCZOS)
        layer = ImagePreprocessing(
            (30, 31), 0.0, 1.0, "lanczos3", antialias=True, convention=convention
        )
        difference = numpy(layer(image[None]))[0] - np.asarray(expected, "float32")
        assert np.abs(difference).max() <= 1


@pytest.mark.parametrize(
    ("convention", "size", "resized", "corner"),
    [
        # torchvision.transforms: Resize(256) of 427 x 640, CenterCrop(224).
        ("timm", (224, 224), (256, 383), (16, 80)),
        ("hugging_face", (224, 224), (256, 383), (16, 79)),
        ("big_vision", (224, 224), (256, 384), (16, 80)),
        # timm.data.transforms.ResizeKeepRatio((182, 256)) of 427 x 640.
        ("timm", (160, 224), (182, 273), (11, 24)),
    ],
)
def test_each_convention_rounds_sizes_and_corners(convention, size, resized, corner):
    layer = ImagePreprocessing(
        size, crop_fraction=0.875, resize="small", convention=convention
    )
    assert layer.resize_size(427, 640) == resized
    places = np.stack(np.meshgrid(*map(np.arange, resized), indexing="ij"), -1)
    assert tuple(layer.center(places, resized)[0, 0]) == corner


def test_images_of_the_models_size_are_cropped_unless_they_are_fitted(pixels):
    layer = ImagePreprocessing((13, 17), 0.0, 1.0, crop_fraction=0.5)
    larger = np.asarray(
        keras.ops.image.resize(
            pixels.astype("float32"), (26, 34), data_format="channels_last"
        )
    )
    expected = np.round(larger)[:, 6:19, 8:25]
    np.testing.assert_array_equal(numpy(layer(pixels)), expected)
    np.testing.assert_array_equal(numpy(layer(pixels, fitted=True)), pixels)


def test_a_model_normalizes_its_inputs_without_another_crop(tiny_vit):
    x = pictures(0, 255)
    cropped = ImagePreprocessing((22, 14), crop_fraction=0.5)
    model = tiny_vit(preprocessing=cropped)
    plain = tiny_vit(preprocessing=ImagePreprocessing((22, 14)))
    plain.set_weights(model.get_weights())
    np.testing.assert_array_equal(numpy(model(x)), numpy(plain(x)))


def test_a_crop_keeps_the_center():
    image = np.arange(8 * 12, dtype="float32").reshape(1, 8, 12, 1)
    layer = ImagePreprocessing((4, 6), mean=0.0, std=1.0, crop_fraction=0.5)
    np.testing.assert_array_equal(numpy(layer(image)), image[:, 2:6, 3:9])


@pytest.mark.parametrize(("height", "width"), [(30, 47), (47, 30), (30, 30), (8, 31)])
@pytest.mark.parametrize("size", [(12, 12), (10, 16), (16, 10)])
def test_the_small_resize_keeps_the_ratio_and_fills_the_crop(height, width, size):
    """As big_vision's resize_small and central_crop, here for any image size."""
    image = np.random.default_rng(0).uniform(0, 255, (1, height, width, 3))
    layer = ImagePreprocessing(
        size, mean=0.0, std=1.0, crop_fraction=0.75, resize="small"
    )
    whole = [round(side / 0.75) for side in size]
    factor = max(whole[0] / height, whole[1] / width)
    rows, columns = round(height * factor), round(width * factor)
    resized = keras.ops.image.resize(
        keras.ops.cast(image, "float32"), (rows, columns), data_format="channels_last"
    )
    top, left = (rows - size[0]) // 2, (columns - size[1]) // 2
    expected = numpy(resized)[:, top : top + size[0], left : left + size[1]]
    np.testing.assert_array_equal(numpy(layer(image)), np.round(expected))


def test_the_small_resize_of_a_square_is_the_plain_one(pixels):
    square = pixels[:, :13, :13]
    plain, small = (
        ImagePreprocessing(8, crop_fraction=0.8, resize=resize)
        for resize in ("plain", "small")
    )
    np.testing.assert_array_equal(numpy(plain(square)), numpy(small(square)))


def test_preprocessing_computes_in_float32_under_a_half_precision_policy(pixels):
    keras.config.set_dtype_policy("mixed_float16")
    try:
        layer = ImagePreprocessing((13, 17))
        output = layer(pixels.astype("float32") + 0.3)
    finally:
        keras.config.set_dtype_policy("float32")
    expected = (pixels + 0.3) / 127.5 - 1
    np.testing.assert_allclose(numpy(output), expected, atol=1e-6)


def test_preprocessing_round_trips_through_its_config():
    layer = ImagePreprocessing(
        (13, 17),
        (1.0, 2.0, 3.0),
        4.0,
        "bicubic",
        True,
        0.875,
        "small",
        "timm",
        name="p",
    )
    copy = ImagePreprocessing.from_config(layer.get_config())
    assert copy.get_config() == layer.get_config()


def test_a_config_of_an_earlier_version_follows_big_vision():
    config = ImagePreprocessing(13, resize="small").get_config()
    del config["convention"]
    assert ImagePreprocessing.from_config(config).convention == "big_vision"


def test_the_thousand_labels_are_imagenets():
    labels = keras_vit.imagenet_labels()
    assert len(labels) == len({wordnet_id for wordnet_id, _ in labels}) == 1000
    assert [wordnet_id for wordnet_id, _ in labels] == sorted(i for i, _ in labels)
    assert labels[0] == ("n01440764", "tench, Tinca tinca")
    assert labels[207] == ("n02099601", "golden retriever")
    assert labels[281][1].startswith("tabby")
    assert labels[999][0] == "n15075141"


def test_predictions_are_named_best_first():
    scores = np.zeros((2, 1000))
    scores[0, [207, 281]] = 0.7, 0.3
    scores[1, 999] = 1.0
    best = keras_vit.decode_predictions(scores, top=2)
    assert best[0] == [
        ("n02099601", "golden retriever", 0.7),
        ("n02123045", "tabby, tabby cat", 0.3),
    ]
    assert best[1][0][0] == "n15075141"


def test_predictions_use_the_models_own_names():
    best = keras_vit.decode_predictions(np.array([[0.1, 0.9]]), 1, ["cat", "dog"])
    assert best == [[("1", "dog", 0.9)]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: keras_vit.decode_predictions(np.zeros((1, 3))),
            r"`preds`.*\(batch, 1000\).*\(1, 3\)",
        ),
        (
            lambda: keras_vit.preprocess_input(np.zeros(3), mode="caffe"),
            "`mode` must be one of 'google', 'imagenet'.*'caffe'",
        ),
        (
            lambda: keras_vit.preprocess_input(np.zeros(3), "channels_first"),
            "`data_format` must be.*channels_first",
        ),
        (
            lambda: ImagePreprocessing(8, interpolation="cubic"),
            "`interpolation` must be one of 'nearest', 'bilinear'.*'cubic'",
        ),
        (lambda: ImagePreprocessing(8, crop_fraction=0), r"`crop_fraction`.*\(0, 1\]"),
        (lambda: ImagePreprocessing((8, 0)), "`image_size` must be"),
        (lambda: ImagePreprocessing(8, resize="big"), "`resize` must be.*'big'"),
        (lambda: ImagePreprocessing(8, convention="fb"), "`convention` must be.*'fb'"),
    ],
)
def test_an_error_names_the_argument_and_what_came(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def pictures(low, high, dtype="float32", seed=5):
    random = np.random.default_rng(seed)
    values = random.uniform(low, high, (2, 22, 14, 3))
    return (values if dtype == "float32" else np.round(values)).astype(dtype)


@pytest.fixture(scope="module")
def compiled_models():
    """A model of normalized pixels and one of raw pixels, compiled."""
    raw = ImagePreprocessing((22, 14))
    models = build_vit(depth=1), build_vit(depth=1, preprocessing=raw)
    for model in models:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.0), loss)
    return models


@pytest.fixture
def fresh(compiled_models):
    """A function that gives one of them as if it had seen no images."""

    def take(raw=False):
        model = compiled_models[raw]
        model._range_fits, model._range_warnings = False, ()
        return model

    return take


USES = {
    "call": lambda model, x: model(x),
    "call with a tensor": lambda model, x: model(keras.ops.convert_to_tensor(x)),
    "call while training": lambda model, x: model(x, training=True),
    "predict": lambda model, x: model.predict(x, verbose=0),
    "predict x=": lambda model, x: model.predict(x=x, verbose=0),
    "evaluate": lambda model, x: model.evaluate(x, np.zeros(len(x)), verbose=0),
    "fit": lambda model, x: model.fit(x, np.zeros(len(x)), verbose=0),
}
uses = pytest.mark.parametrize("use", long_after(6, USES.values()), ids=USES)


def user_warnings(seen):
    """Without those of deprecations, which TensorFlow causes on Python 3.13."""
    return [warning for warning in seen if warning.category is UserWarning]


@uses
def test_pixels_for_a_model_of_normalized_ones_give_one_warning(fresh, use):
    model = fresh()
    with pytest.warns(UserWarning, match=r"from 0.* to 255.*preprocess_input") as seen:
        use(model, pictures(0, 255))
    [warning] = user_warnings(seen)
    assert warning.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        use(model, pictures(0, 255))  # once


@pytest.mark.parametrize(
    "use",
    [USES["call"], pytest.param(USES["fit"], marks=pytest.mark.slow)],
    ids=["call", "fit"],
)
def test_a_model_of_raw_pixels_warns_of_normalized_images(fresh, use):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        use(fresh(raw=True), pictures(0, 255))
    with pytest.warns(UserWarning, match="reads pixels from 0 to 255") as seen:
        use(fresh(raw=True), pictures(-1, 1))
    assert len(user_warnings(seen)) == 1


# Images, and whether a model of raw pixels and one of normalized ones is fed wrongly.
RANGES = {
    "-1 to 1": (pictures(-1, 1), True, False),
    "0 to 1": (pictures(0, 1), True, False),
    "standardized": (pictures(-2.1, 2.7), True, False),
    "float16": (pictures(-1, 1).astype("float16"), True, False),
    "0 to 255": (pictures(0, 255), False, True),
    "bytes": (pictures(0, 255, "uint8"), False, True),
    "neither divided nor positive": (pictures(-124, 132), None, True),
    "overshooting, by a bicubic resize": (pictures(-4, 261), False, None),
    "dark": (pictures(0, 30), False, None),
}


@pytest.mark.parametrize(("x", "of_raw", "of_normalized"), RANGES.values(), ids=RANGES)
def test_pixels_of_the_other_range_are_detected(x, of_raw, of_normalized):
    for raw, mistake in ((True, of_raw), (False, of_normalized)):
        if mistake is not None:
            assert mistake is (pixel_range.problem(x, raw) != "")


def test_dark_bytes_give_no_verdict_of_a_raw_pixel_model():
    assert pixel_range.problem(pictures(0, 1, "uint8"), raw=True) is None


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("value", [0, 0.5, 1, 255, -1, np.nan, np.inf])
def test_constant_or_non_finite_images_give_no_verdict(raw, value):
    for dtype in ("float32", "float64"):
        x = np.full((2, 22, 14, 3), value, dtype)
        assert pixel_range.problem(x, raw) is None
    x[0, 0, 0, 0] = np.nan
    assert pixel_range.problem(x, raw) is None


@pytest.mark.parametrize(
    "x", [None, [], {}, iter(()), "images", np.zeros((0, 2, 2, 3))]
)
def test_inputs_that_are_not_arrays_give_no_verdict(x):
    assert pixel_range.problem(x, True) is pixel_range.problem(x, False) is None


def test_images_without_a_verdict_do_not_end_the_checks(fresh):
    model = fresh(raw=True)
    model(np.zeros((2, 22, 14, 3)))
    with pytest.warns(UserWarning, match="reads pixels"):
        model(pictures(-1, 1))


def test_images_are_checked_until_they_fit_once(fresh, monkeypatch):
    model = fresh()
    model(pictures(-1, 1))
    monkeypatch.setattr("keras_vit.pixel_range.problem", None)
    model(pictures(0, 255))


class Batches(keras.utils.PyDataset):
    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


def data_set(batches):
    tf = pytest.importorskip("tensorflow")
    return tf.data.Dataset.from_tensor_slices(batches[0]).batch(1)


SOURCES = {
    "tf.data": data_set,
    "PyDataset": Batches,
    "generator": lambda batches: (batches[0] for _ in range(9)),
    "dictionaries": lambda batches: data_set(
        [({"images": images}, labels) for images, labels in batches]
    ),
}


@pytest.mark.parametrize("source", long_after(2, SOURCES.values()), ids=SOURCES)
@pytest.mark.parametrize(
    "use",
    [
        pytest.param(
            lambda model, x: model.fit(x, steps_per_epoch=1, shuffle=False, verbose=0),
            marks=pytest.mark.slow,
        ),
        lambda model, x: model.evaluate(x, steps=1, verbose=0),
    ],
    ids=["fit", "evaluate"],
)
def test_the_first_batch_of_a_source_is_checked(fresh, source, use):
    """As of `image_dataset_from_directory`, which gives float32 from 0 to 255."""

    def batches(*bounds):
        return source([(pictures(*bounds), np.zeros(2))])

    with pytest.warns(
        UserWarning, match=r"from 0.* to 255, .*preprocess_input"
    ) as seen:
        use(fresh(), batches(0, 255))
    ours = [w for w in user_warnings(seen) if "structure" not in str(w.message)]
    assert len(ours) == 1
    with pytest.warns(UserWarning, match="reads pixels from 0 to 255"):
        use(fresh(raw=True), batches(-1, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "The structure of `inputs`")  # Keras's
        use(fresh(), batches(-1, 1))
        use(fresh(raw=True), batches(0, 255))


VALIDATION = {
    "arrays": lambda images, labels: (images, labels),
    "list": lambda images, labels: [images, labels],
    "tf.data": lambda images, labels: data_set([(images, labels)]),
    "PyDataset": lambda images, labels: Batches([(images, labels)]),
}


@pytest.mark.parametrize("source", long_after(1, VALIDATION.values()), ids=VALIDATION)
def test_validation_images_are_checked_by_themselves(fresh, source):
    def fit(*bounds):
        model.fit(
            *training,
            validation_data=source(pictures(*bounds), labels),
            epochs=2,
            verbose=0,
        )

    labels = np.zeros(2)
    training = pictures(-1, 1), labels
    model = fresh()
    with pytest.warns(UserWarning, match="the validation images are .* to 255") as seen:
        fit(0, 255)
    assert len(user_warnings(seen)) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(0, 255)
    model = fresh()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(-1, 1)


@pytest.mark.parametrize(
    "use",
    [
        lambda model, x: model(inputs=x),
        lambda model, x: model({"images": x}),
        lambda model, x: model.predict([x], verbose=0),
        lambda model, x: model.fit({"images": x}, np.zeros(2), verbose=0),
    ],
    ids=["inputs", "dictionary", "list", "fit"],
)
def test_images_are_checked_in_every_form_that_keras_takes(fresh, use):
    with pytest.warns(UserWarning, match="the images are .* to 255"):
        use(fresh(), pictures(0, 255))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "The structure of `inputs`")  # Keras's
        use(fresh(), pictures(-1, 1))


def test_images_of_a_later_call_are_checked_too(fresh):
    """The usual mistake: trained on normalized images, asked about raw ones."""
    model = fresh()
    model.fit(pictures(-1, 1), np.zeros(2), verbose=0)
    for use in (
        lambda: model.predict(pictures(0, 255), verbose=0),
        lambda: model.evaluate(pictures(0, 255), np.zeros(2), verbose=0),
    ):
        model._range_warnings = ()
        with pytest.warns(UserWarning, match="the images are .* to 255"):
            use()


def test_a_checked_data_set_is_read_once_and_unchanged():
    tf = pytest.importorskip("tensorflow")
    read, seen = [], []

    def elements():
        for index in range(5):
            read.append(index)
            yield np.full((2, 3), index, "float32"), index

    signature = tf.TensorSpec((None, 3)), tf.TensorSpec((), "int32")
    data = tf.data.Dataset.from_generator(elements, output_signature=signature)
    checked = pixel_range.at_first_batch(data, seen.append)
    assert checked.element_spec == data.element_spec
    assert (read, seen) == ([], [])
    assert [int(label) for _, label in checked] == read == list(range(5))
    np.testing.assert_array_equal(seen, [np.zeros((2, 3))])


@pytest.mark.slow
def test_symbolic_images_and_features_are_not_checked(fresh):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        headless = build_vit(depth=1, classes=None)
        for model in (fresh(raw=True), fresh(), headless):
            images = keras.Input((22, 14, 3))
            wrapped = keras.Model(images, model(images / 2))
            wrapped.predict(pictures(-1, 1), verbose=0)
            model.features_model().predict(pictures(-1, 1), verbose=0)


def test_a_backbone_of_another_kind_may_read_what_it_likes():
    model = small_classifier(keras.layers.Flatten())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(pictures(0, 255))
    with pytest.warns(UserWarning, match="reads normalized pixels"):
        keras_vit.ResNet(image_size=(22, 14), blocks=(1,), classes=3)(pictures(0, 255))


def test_the_pixel_check_adds_nothing_to_a_graph(tiny_vit):
    tf = pytest.importorskip("tensorflow")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("graphs are TensorFlow's")
    model = tiny_vit()
    spec = tf.TensorSpec([None, 22, 14, 3], "float32")
    functional = tf.function(super(keras_vit.base.ImageModel, model).__call__)
    expected = functional.get_concrete_function(spec).graph.as_graph_def()
    given = tf.function(model).get_concrete_function(spec).graph.as_graph_def()
    assert [n.op for n in given.node] == [n.op for n in expected.node]
