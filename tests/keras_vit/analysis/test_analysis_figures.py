"""Figures of the analyses: what their pixels and axes show."""

import builtins

import numpy as np
import pytest
from PIL import Image

from keras_vit.analysis import NotApplicableError, figures


def shown(drawn, axis=0):
    """The arrays of a figure's images, in the order in which they were drawn."""
    return [image.get_array() for image in drawn.axes[axis].get_images()]


def boxes(drawn):
    """Left, right, bottom and top of a figure's images."""
    return [tuple(image.get_extent()) for image in drawn.axes[0].get_images()]


def test_filters_are_gray_at_zero_and_each_reaches_black_or_white():
    filters = np.zeros((9, 5, 3, 3))
    filters[0, 1, 2] = (0.5, 0, -0.25)
    filters[8, 4, 0] = -3.0
    drawn = figures.draw_filters(filters)
    tiles = shown(drawn)
    assert len(tiles) == 9
    np.testing.assert_allclose(tiles[0][1, 2], (1, 0.5, 0.25))
    np.testing.assert_allclose(tiles[0][0, 0], 0.5)
    np.testing.assert_allclose(tiles[8][4, 0], 0)
    np.testing.assert_allclose(tiles[4], 0.5, err_msg="a filter of zeros")
    assert boxes(drawn)[8] == pytest.approx((1.1, 2.1, 2.1, 1.1)), (
        "second row and column"
    )
    pixels = figures.pixels(drawn)
    assert pixels.dtype == np.uint8
    for color in ((255, 128, 64), (128, 128, 128), (0, 0, 0)):
        assert (np.abs(pixels.astype(int) - color).max(-1) <= 1).any(), color


def test_gray_filters_are_drawn_and_those_of_other_channels_refused():
    [tile] = shown(figures.draw_filters(np.array([[[[2.0]], [[-1.0]]]])))
    np.testing.assert_allclose(tile, [[[1, 1, 1]], [[0.25, 0.25, 0.25]]])
    with pytest.raises(NotApplicableError, match="Received: 5 channels"):
        figures.draw_filters(np.ones((2, 3, 3, 5)))


def test_each_patchs_similarity_is_a_map_at_its_place():
    random = np.random.default_rng(0)
    similarity = random.uniform(-1, 1, (3, 2, 3, 2))
    [mosaic] = shown(figures.draw_positions(similarity))
    assert mosaic.shape == (3 * 3 + 2, 2 * 2 + 1)
    for row in range(3):
        for column in range(2):
            part = mosaic[4 * row : 4 * row + 3, 3 * column : 3 * column + 2]
            np.testing.assert_array_equal(part, similarity[row, column])
    assert np.ma.getmaskarray(np.ma.masked_invalid(mosaic))[3].all(), "a gap"


def test_positions_of_each_block_have_axes_of_their_own():
    similarity = np.random.default_rng(0).uniform(-1, 1, (5, 3, 2, 3, 2))
    drawn = figures.draw_positions(similarity)
    titles = [axis.get_title() for axis in drawn.axes[:5]]
    assert titles == [f"block {i}" for i in range(1, 6)]
    np.testing.assert_array_equal(shown(drawn, 4)[0][:3, :2], similarity[4, 0, 0])


def test_rows_and_columns_of_many_patches_are_not_all_numbered():
    drawn = figures.draw_positions(np.ones((1, 37, 1, 37)))
    ticks = drawn.axes[0].get_xticks()
    labels = [label.get_text() for label in drawn.axes[0].get_xticklabels()]
    assert labels == [str(number) for number in range(1, 38, 3)]
    np.testing.assert_allclose(ticks, np.arange(0, 37, 3) * 38 + 18)


def test_distances_are_points_over_depth():
    distances = np.array([[3.0, 9.0, 5.0], [7.0, 2.0, 11.0]])
    axis = figures.draw_distances(distances, uniform=6.5).axes[0]
    *heads, uniform = axis.get_lines()
    for head, line in enumerate(heads):
        np.testing.assert_array_equal(line.get_xdata(), [1, 2])
        np.testing.assert_array_equal(line.get_ydata(), distances[:, head])
    assert list(uniform.get_ydata()) == [6.5, 6.5]
    low, high = axis.get_ylim()
    assert low == 0
    assert high > 11
    texts = [text.get_text() for text in axis.get_legend().get_texts()]
    assert texts == ["head 1", "head 2", "head 3", "uniform attention"]


def test_one_patch_has_no_distance_and_is_drawn_all_the_same():
    figures.pixels(figures.draw_distances(np.zeros((2, 3)), uniform=0.0))


def test_the_image_is_beside_its_attention_by_head():
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (11, 6, 4, 3), "uint8")
    attention = random.uniform(size=(11, 5, 3, 2))
    drawn = figures.draw_class_attention(images, attention)
    arrays = shown(drawn)
    assert len(arrays) == figures.MOST_ROWS * 6
    np.testing.assert_allclose(arrays[6 * 2], images[2] / 255)
    np.testing.assert_array_equal(arrays[6 * 2 + 4], attention[2, 3])
    left, right, bottom, top = boxes(drawn)[6 * 2 + 4]
    assert (left, right) == pytest.approx((4.4, 5.4))
    assert bottom - top == pytest.approx(1.5), "as high as the image"


def test_rollout_darkens_what_is_not_attended():
    images = np.full((1, 224, 448, 1), 200, "uint8")
    rollout = np.array([[[0.0, 0.5], [0.5, 0.0]]])
    image, attended = shown(figures.draw_rollout(images, rollout))
    np.testing.assert_allclose(image, 200 / 255)
    assert attended.shape == (224, 448, 3)
    np.testing.assert_allclose(attended[10, 440], 200 / 255, rtol=1e-5)
    np.testing.assert_allclose(attended[10, 10], 0, atol=1e-6)
    np.testing.assert_allclose(attended[112, 224], 100 / 255, atol=0.01)


def test_small_images_keep_their_pixels():
    images = np.arange(2 * 8 * 4, dtype="uint8").reshape(2, 8, 4, 1)
    drawn = figures.draw_rollout(images, np.ones((2, 4, 2)))
    large = shown(drawn)[2]
    assert large.shape == (8 * 28, 4 * 28, 3)
    expected = images[1, 3, 2, 0] / 255
    np.testing.assert_allclose(large[28 * 3 + 14, 28 * 2 + 14], expected)


def test_a_figure_is_saved_as_png(tmp_path):
    path = tmp_path / "a.tmp"
    figures.save(figures.draw_distances(np.ones((2, 3))), path)
    assert Image.open(path).format == "PNG"


def test_a_missing_matplotlib_is_one_line(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r'pip install "keras-vit-serving\[viz\]"$'):
        figures.draw_filters(np.ones((1, 2, 2, 3)))


def test_drawing_leaves_pyplot_alone():
    import matplotlib.pyplot

    before = matplotlib.get_backend(), matplotlib.pyplot.get_fignums()
    figures.pixels(figures.draw_filters(np.ones((1, 2, 2, 3))))
    assert (matplotlib.get_backend(), matplotlib.pyplot.get_fignums()) == before
