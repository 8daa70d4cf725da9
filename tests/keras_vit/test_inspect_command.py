"""`keras-vit inspect`: files, arrays, what does not apply, and mistakes."""

import sys

import foreign_files
import keras
import numpy as np
import pytest
from long_cases import long_after
from PIL import Image

import keras_vit
from keras_vit import analysis
from keras_vit.commands import inspected_images, main

PICTURES = ["filters", "positions", "distance", "class_attention", "rollout"]


@pytest.fixture
def photos(tmp_path):
    """photos/ with a.png, of the tiny model's size, b.jpg and more/c.PNG."""
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    random = np.random.default_rng(0)
    for name, size in (
        ("a.png", (22, 14)),
        ("b.jpg", (40, 31)),
        ("more/c.PNG", (9, 5)),
    ):
        pixels = random.integers(0, 256, (*size, 3), "uint8")
        Image.fromarray(pixels).save(folder / name)
    (folder / "notes.txt").write_text("")
    (folder / ".hidden.png").write_text("")
    return folder


@pytest.fixture(scope="module")
def run_folder(tiny_vit, tmp_path_factory):
    """A run's folder, and its model."""
    model = tiny_vit(preprocessing=keras_vit.ImagePreprocessing((22, 14)))
    folder = tmp_path_factory.mktemp("run")
    model.save(folder / "best.keras")
    return folder, model


def inspect(capsys, *words, status=0):
    assert main(["inspect", *map(str, words)]) == status
    return capsys.readouterr()


def test_every_property_is_a_picture_and_an_array(run_folder, photos, tmp_path, capsys):
    folder, model = run_folder
    out = tmp_path / "new" / "out"
    printed = inspect(capsys, folder, photos, "--out", out).out
    files = [f"{name}.png" for name in PICTURES] + ["arrays.npz"]
    assert printed.splitlines() == [str(out / name) for name in files]
    assert sorted(path.name for path in out.iterdir()) == sorted(files)
    for name in PICTURES:
        with Image.open(out / f"{name}.png") as picture:
            assert picture.format == "PNG"
            assert len(picture.getcolors(10**6)) > 5
    images = inspected_images.read_images(
        [photos / "a.png", photos / "b.jpg", photos / "more" / "c.PNG"], model
    )
    np.testing.assert_array_equal(images[0], np.asarray(Image.open(photos / "a.png")))
    expected = {
        "filters": analysis.embedding_filters(model),
        "positions": analysis.position_similarity(model),
        "distance": analysis.attention_distance(model, images),
        "class_attention": analysis.class_attention(model, images),
        "rollout": analysis.attention_rollout(model, images),
    }
    with np.load(out / "arrays.npz") as arrays:
        assert set(arrays) == set(expected)
        for name, array in expected.items():
            np.testing.assert_array_equal(arrays[name], array)


def test_without_images_there_are_filters_and_positions(run_folder, tmp_path, capsys):
    printed = inspect(capsys, run_folder[0], "--out", tmp_path / "out").out
    lines = printed.splitlines()
    assert [line.rpartition("/")[2] for line in lines[:3]] == [
        "filters.png",
        "positions.png",
        "arrays.npz",
    ]
    reason = "it is seen on images, and none are given"
    assert lines[3:] == [f"no {name}.png: {reason}" for name in PICTURES[2:]]


@pytest.mark.slow
def test_a_checkpoint_reads_pixels_that_its_preprocessing_normalized(
    tiny_vit, photos, tmp_path, capsys
):
    """A `.npz` of Google's reads [-1, 1], as the same model in `.keras` does."""
    model = tiny_vit(image_size=22, heads=3, depth=1)
    model.save(tmp_path / "m.keras")
    path = foreign_files.google(model, tmp_path)
    for number, source in enumerate((tmp_path / "m.keras", path)):
        out = tmp_path / str(number)
        inspect(capsys, source, photos / "b.jpg", "--out", out)
    pixels = inspected_images.read_images([photos / "b.jpg"], model)
    expected = analysis.attention_distance(model, (pixels - 127.5) / 127.5)
    for number in range(2):
        with np.load(tmp_path / str(number) / "arrays.npz") as arrays:
            np.testing.assert_allclose(arrays["distance"], expected, rtol=1e-5)


def test_published_weights_are_read_by_name(tiny_vit, tmp_path, monkeypatch, capsys):
    """A ViT's and a ResNet's, each by the class that the registry gives."""
    asked = []

    def from_preset(model_class, preset, **_):
        asked.append((model_class, preset))
        return model

    model = tiny_vit(depth=1)
    for model_class in (keras_vit.VisionTransformer, keras_vit.ResNet):
        monkeypatch.setattr(model_class, "from_preset", classmethod(from_preset))
    for preset in ("B/16:augreg_in21k", "R50x1:goog_in21k"):
        inspect(capsys, preset, "--out", tmp_path / "out")
    assert asked == [
        (keras_vit.VisionTransformer, "B/16:augreg_in21k"),
        (keras_vit.ResNet, "R50x1:goog_in21k"),
    ]


@pytest.mark.parametrize(
    ("make", "missing", "reason"),
    long_after(
        2,
        [
            (
                lambda vit: keras_vit.ResNet(
                    blocks=(1,), image_size=(22, 14), name="bit"
                ),
                PICTURES[1:],
                "Received: ResNet 'bit'",
            ),
            (
                lambda vit: vit(
                    attention="axial", class_token=False, pooling="avg", depth=1
                ),
                PICTURES[2:],
                "Received: attention='axial'",
            ),
            (
                lambda vit: vit(position_embedding="none", depth=1),
                PICTURES[1:2],
                "'none'",
            ),
            (
                lambda vit: vit(pooling=None, depth=1),
                PICTURES[4:],
                "Received: pooling=None",
            ),
        ],
    ),
)
def test_what_does_not_apply_is_named_and_the_rest_written(
    tiny_vit, photos, tmp_path, capsys, make, missing, reason
):
    make(tiny_vit).save(tmp_path / "m.keras")
    out = tmp_path / "out"
    printed = inspect(capsys, tmp_path / "m.keras", photos / "a.png", "--out", out).out
    lines = [line for line in printed.splitlines() if line.startswith("no ")]
    assert [line.split()[1] for line in lines] == [f"{name}.png:" for name in missing]
    assert all(reason in line for line in lines)
    written = {path.stem for path in out.glob("*.png")}
    assert written == set(PICTURES) - set(missing)


@pytest.mark.slow
def test_each_blocks_own_positions_are_all_kept(tiny_vit, tmp_path, capsys):
    model = tiny_vit(position_placement="every_layer")
    model.save(tmp_path / "m.keras")
    inspect(capsys, tmp_path / "m.keras", "--out", tmp_path / "out")
    with np.load(tmp_path / "out" / "arrays.npz") as arrays:
        similarity = arrays["positions"]
    assert similarity.shape == (2, 11, 7, 11, 7)
    np.testing.assert_array_equal(
        similarity[1], analysis.position_similarity(model, block=1)
    )


def mistakes(folder, photos):
    broken = photos / "broken.png"
    broken.write_bytes(b"no image")
    other = photos / "other.keras"
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save(other)
    return {
        "nothing.keras": "nothing.keras: there is no such file",
        "B/16:augreg_in21": "Did you mean B/16:augreg_in21k?",
        str(other): "holds a Sequential",
        str(photos): "Received",
        (folder, broken): f"{broken}: not a readable image",
        (folder, photos / "d.png"): "d.png: there is no such image file or folder",
        (folder, folder): "there is no such image file or folder",
    }


def test_mistakes_are_one_line_and_leave_nothing(run_folder, photos, tmp_path, capsys):
    out = tmp_path / "out"
    for words, message in mistakes(run_folder[0], photos).items():
        words = words if isinstance(words, tuple) else (words,)
        error = inspect(capsys, *words, "--out", out, status=1).err
        assert error.count("\n") == 1, error
        assert error.startswith("keras-vit inspect: ")
        assert message in error
        assert not out.exists()


def test_a_file_is_no_folder(run_folder, tmp_path, capsys):
    out = tmp_path / "out"
    out.write_text("kept")
    error = inspect(capsys, run_folder[0], "--out", out, status=2).err
    assert f"--out must be a folder. Received: {str(out)!r}" in error
    assert out.read_text() == "kept"


def test_a_missing_extra_is_reported_before_the_work(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    empty = tmp_path / "empty.keras"
    empty.touch()
    error = inspect(capsys, empty, "--out", tmp_path / "out", status=1).err
    assert error.count("\n") == 1
    assert 'pip install "keras-vit-serving[viz]"' in error
