"""The drawing of the packages and of the dependencies between them, as SVG.

The arrows are read from the import statements, so that the drawing cannot differ from
the code. Left out are a package's modules at its top level, which all of its
sub-packages may use, `keras_vit.common`, and arrows that others imply. Boxes bring
their own background and the arrows are of a middle gray: the picture is readable on
light and on dark pages.
"""

import ast
import html
import pathlib
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parent.parent
# Color and sub-packages of each package, from top to bottom.
PACKAGES = {
    "training": (
        "#2f7d4f",
        {
            "commands": "keras-vit fit, evaluate, probe, ...",
            "studies": "comparisons and baselines",
            "recipes": "one YAML file per recipe",
            "fitting": "a run from recipe to report",
            "reporting": "TensorBoard, pictures, report",
            "evaluation": "evaluate and predict",
            "tpu": "steps compiled for TPUs",
            "architectures": "recipe to model",
            "probe": "k-NN, linear and few-shot",
            "self_supervision": "masked patches: MAE, SimMIM",
            "engine": "trainers, optimizer, checkpoints",
            "data": "sources, splits, augmentation",
        },
    ),
    "keras_vit": (
        "#2563a8",
        {
            "commands": "keras-vit info, convert, inspect",
            "analysis": "attention distance, similarity",
            "vit, resnet, classifier": "the models",
            "layers": "attention, MLP, tokens, positions",
            "options, option_rows": "one row per option",
            "preprocessing, decoding": "from image files to pixels",
            "image_files": "BMP, GIF, WebP, orientation",
            "features": "features and attention maps",
            "weights": "checkpoints in and out",
            "common": "what all packages share",
        },
    ),
    "serving": (
        "#a8541c",
        {
            "export": "model to verified SavedModel",
            "rollout": "labels and versions",
            "load": "load generator",
            "local": "TensorFlow Serving's protocol",
            "page": "a server in a browser",
            "client_commands": "keras-vit classify, embed, ...",
            "client": "REST and gRPC clients",
        },
    ),
}
WIDTH, BOX_HEIGHT, STEP, TOP, GAP, MARGIN = 250, 46, 60, 64, 90, 70
HEIGHT = TOP + STEP * max(len(boxes) for _, boxes in PACKAGES.values()) + 20


def drawing() -> str:
    """Return the SVG."""
    parts = []
    places: dict[str, tuple[int, int]] = {}
    for column, (package, (color, boxes)) in enumerate(PACKAGES.items()):
        x = MARGIN + column * (WIDTH + GAP)
        parts.append(
            f'<rect x="{x}" y="16" width="{WIDTH}" height="{HEIGHT - 16}" rx="10" '
            f'fill="{color}" fill-opacity="0.14" stroke="{color}"/>'
            f'<text x="{x + 14}" y="44" class="title" fill="{color}">{package}</text>'
        )
        for row, (name, about) in enumerate(boxes.items()):
            y = TOP + row * STEP
            places[f"{package}.{name}"] = (x, y + BOX_HEIGHT // 2)
            parts.append(_box(x + 12, y, name, about, color))
        places[package] = (x, HEIGHT // 2)
    arrows = [_arrow(places, *edge) for edge in sorted(_edges())]
    return _PAGE.format(
        width=2 * MARGIN + 3 * WIDTH + 2 * GAP,
        height=HEIGHT + 16,
        body="\n".join([*parts, *arrows]),
    )


_PAGE = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<title>training and serving.export import keras_vit; nothing else crosses</title>
<style>
text {{ font: 12px system-ui, sans-serif; }}
.title {{ font-size: 17px; font-weight: 700; stroke: none; }}
.name {{ font-weight: 600; font-size: 14px; fill: #fff; }}
.about {{ fill: #fff; }}
.arrow {{ fill: none; stroke: #888; stroke-width: 2; marker-end: url(#head); }}
</style>
<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7"
 markerHeight="7" orient="auto"><path d="M0 0 L10 5 L0 10 z" fill="#888"/></marker>
{body}
</svg>
"""


def _box(x: int, y: int, name: str, about: str, color: str) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{WIDTH - 24}" height="{BOX_HEIGHT}" rx="6" '
        f'fill="{color}"/>'
        f'<text x="{x + 10}" y="{y + 19}" class="name">{html.escape(name)}</text>'
        f'<text x="{x + 10}" y="{y + 36}" class="about">{html.escape(about)}</text>'
    )


def _arrow(places, source: str, target: str) -> str:
    """An arrow between packages, or an arc beside the boxes of one package."""
    (x0, y0), (x1, y1) = places[source], places[target]
    if x0 != x1:
        start = x0 if x0 > x1 else x0 + WIDTH
        end = x1 + WIDTH + 3 if x0 > x1 else x1 - 3
        y0 = y0 if "." in source else y1
        return f'<path class="arrow" d="M{start} {y0} L{end} {y0}"/>'
    left = x0 == MARGIN
    side = x0 if left else x0 + WIDTH
    bulge = side + (-1 if left else 1) * (12 + 0.14 * abs(y1 - y0))
    side += 11 if left else -11
    y0, y1 = (y0 + 7, y1 - 7) if y0 < y1 else (y0 - 7, y1 + 7)
    return (
        f'<path class="arrow" d="M{side} {y0} C{bulge} {y0} {bulge} {y1} {side} {y1}"/>'
    )


def _edges() -> set[tuple[str, str]]:
    """Pairs (importer, imported): sub-packages of one package, or two packages."""
    edges = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            source = _drawn(".".join(path.relative_to(ROOT).with_suffix("").parts))
            for module in _imports(path):
                target = _drawn(module)
                if source is None or target is None or source == target:
                    continue
                if source.split(".")[0] != target.split(".")[0]:
                    edges.add((_importer(source), target))
                elif "." in source and "." in target:
                    edges.add((source, target))
    return {edge for edge in edges if not _implied(*edge, edges)}


def _implied(source: str, target: str, edges: set[tuple[str, str]]) -> bool:
    """Whether other arrows lead from one box to the other; there are no circles."""
    others = {end for start, end in edges if start == source} - {target}
    return any((o, target) in edges or _implied(o, target, edges) for o in others)


def _importer(source: str) -> str:
    """The whole of `training` imports the library, of `serving` one sub-package."""
    return source if source.startswith("serving.") else source.split(".")[0]


def _drawn(module: str) -> str | None:
    """The box that a module belongs to; the package where it is in none."""
    package, _, rest = module.partition(".")
    shared = module.startswith("keras_vit.common.")  # which all packages import
    if package not in PACKAGES or shared:
        return None
    first = rest.split(".")[0]
    if first in PACKAGES[package][1] and package != "keras_vit":
        return f"{package}.{first}"
    return package


def _imports(path: pathlib.Path) -> Iterator[str]:
    """Absolute names of all that a module imports."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(parts[: -node.level]) if node.level else ""
            base = ".".join(filter(None, [above, node.module]))
            yield from (f"{base}.{alias.name}" for alias in node.names)
