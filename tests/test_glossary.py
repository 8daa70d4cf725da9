"""The glossary's letters and drawing are those of the code."""

import html
import pathlib
import re

import pytest

from keras_vit import SPECS, VisionTransformer, layers

DOCS = pathlib.Path(__file__).parents[1] / "docs"
# All different, as the letters are; h, w and D are 3, 5 and 26.
SIZES = {
    **{"image_size": (21, 35), "patch_size": 7, "classes": 19},
    **{"width": 26, "depth": 2, "heads": 2, "mlp_dim": 11},
}
LETTERS = {
    **{None: "B", 21: "H", 35: "W", 4: "C", 3: "h", 5: "w", 15: "h · w"},
    **{16: "N", 26: "D", 2: "A", 13: "K", 11: "M", 19: "classes"},
}


@pytest.fixture(scope="module")
def model():
    return VisionTransformer(channels=4, representation_size=26, **SIZES)


@pytest.fixture(scope="module")
def drawing():
    """The texts of the drawing, from tag to tag."""
    text = (DOCS / "static" / "vit.svg").read_text("utf-8")
    return re.findall(r">([^<>\n]+)</text>", html.unescape(text))


def in_letters(shape):
    return f"[{', '.join(LETTERS[size] for size in shape)}]"


def test_the_letters_are_those_of_the_layers():
    table = (DOCS / "glossary.md").read_text("utf-8").split("## Letters")[1]
    rows = re.findall(r"^\| ([\w, ]+) \| ([^|]+) \|", table, re.M)[1:]
    of_code = re.findall(r"^ {4}([\w, ]+?)  +(.+)$", layers.__doc__, re.M)
    assert rows == of_code


def test_the_drawing_has_each_layer_and_its_class(model, drawing):
    pairs = re.findall(r"(\w+)(?:, L times)? “(\w+)”", " ".join(drawing))
    classes = {each.name: type(each).__name__ for each in model._flatten_layers()}
    assert {name: classes[name] for _, name in pairs} == dict(map(reversed, pairs))
    drawn = set(re.findall(r"“(\w+)”", " ".join(drawing)))
    block = model.get_layer("encoder_block_0")
    for of in (model, block, block.mlp):
        layers_with_weights = {each.name for each in of._layers if each.weights}
        assert layers_with_weights <= drawn


def test_the_drawing_has_the_shapes_of_the_model(model, drawing):
    outputs = [layer.output for layer in model.layers]
    outputs += model.attention_weights_model().outputs
    for shape in {output.shape for output in outputs}:
        assert in_letters(shape) in " ".join(drawing)


def test_the_drawing_has_the_sizes_of_the_base_model(drawing):
    base = SPECS["B"]
    sizes = {
        **{"P": 16, "N": 1 + (224 // 16) ** 2, "D": base.width, "A": base.heads},
        **{"K": base.width // base.heads, "M": base.mlp_dim, "L": base.depth},
    }
    assert {f"{letter} = {size}" for letter, size in sizes.items()} <= set(drawing)
