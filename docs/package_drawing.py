"""The packages: a drawing of their dependencies, as SVG, and a map of their modules.

Folders, first sentences and import statements are read from the tree at each build, so
that neither can differ from the code. A box is a folder. An arrow is an import, also
one through modules beside the folders, such as `keras_vit/vit.py`. Left out are arrows
to `keras_vit.common`, which every package imports, and those that others imply. Boxes
bring their own background and the arrows are of a middle gray: the picture is readable
on light and on dark pages.
"""

import ast
import functools
import pathlib
from collections.abc import Iterator

from markdown_table import table

ROOT = pathlib.Path(__file__).parent.parent
COLORS = {"training": "#2f7d4f", "keras_vit": "#2563a8", "serving": "#a8541c"}
SHARED = "keras_vit.common"
WIDTH, BOX_HEIGHT, STEP, TOP, GAP, MARGIN = 190, 34, 46, 62, 90, 60


@functools.cache
def modules() -> dict[str, pathlib.Path]:
    """Every module of the packages by its dotted name, a package by its own."""
    found = {}
    for package in COLORS:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(module: str) -> Iterator[str]:
    """The modules that one imports when it runs, wherever in the file it does."""
    path = modules()[module]
    package = module if path.stem == "__init__" else module.rpartition(".")[0]
    for node in _statements(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            parts = package.split(".")
            above = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join(filter(None, [*above, node.module]))
            names = [f"{base}.{alias.name}" for alias in node.names]
            names = [name if name in modules() else base for name in names]
        yield from (name for name in names if name in modules())


def _statements(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements, but for those that only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif not (
            isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        ):
            yield from _statements(node)


def box(module: str) -> str | None:
    """The folder that a module is in; None for one beside the folders."""
    package, *rest = module.split(".")
    folder = f"{package}.{rest[0]}" if rest else ""
    is_folder = folder in modules() and modules()[folder].stem == "__init__"
    return folder if is_folder else None


@functools.cache
def edges() -> set[tuple[str, str]]:
    """Pairs (importer, imported) of boxes of one package, or of two packages."""
    found = set()
    for module in modules():
        package, source = module.split(".")[0], box(module)
        # The whole of training imports the library, of serving one folder.
        importer = source if package == "serving" else package
        for name in imports(module):
            if name.split(".")[0] != package and not name.startswith(SHARED):
                found.add((importer, name.split(".")[0]))
        if source is not None:
            found |= {(source, target) for target in _reached(module)}
    return {edge for edge in found if not _implied(*edge, found)}


def _reached(module: str) -> set[str]:
    """Other boxes of its package that a module imports, itself or through modules."""
    package = module.split(".")[0]
    found: set[str | None] = set()
    seen, ahead = {module, package}, [module]
    while ahead:
        for name in imports(ahead.pop()):
            if name in seen or name.split(".")[0] != package:
                continue
            seen.add(name)
            found.add(box(name))
            if box(name) is None:
                ahead.append(name)
    return {name for name in found if name not in (None, SHARED, box(module))}


def _implied(source: str, target: str, found: set[tuple[str, str]]) -> bool:
    """Whether other arrows lead from one box to the other."""
    seen, ahead = {source}, [source]
    while ahead:
        start = ahead.pop()
        ends = {end for begin, end in found if begin == start and end not in seen}
        if start == source:
            ends.discard(target)
        if target in ends:
            return True
        seen |= ends
        ahead += ends
    return False


def boxes(package: str) -> list[str]:
    """The folders of a package, each above those that it imports; `common` last."""
    names = {box(module) for module in modules() if module.startswith(f"{package}.")}
    levels = {name: 0 for name in names if name}
    for _ in names:
        for source, target in edges():
            if source in levels and target in levels:
                levels[target] = max(levels[target], levels[source] + 1)
    return sorted(levels, key=lambda name: (name == SHARED, levels[name], name))


# Color and folders of each package, from top to bottom.
PACKAGES = {
    package: (color, [name.partition(".")[2] for name in boxes(package)])
    for package, color in COLORS.items()
}
HEIGHTS = {name: TOP + STEP * len(each) for name, (_, each) in PACKAGES.items()}


def drawing() -> str:
    """Return the SVG."""
    parts = []
    places: dict[str, tuple[int, int]] = {}
    for column, (package, (color, names)) in enumerate(PACKAGES.items()):
        x = MARGIN + column * (WIDTH + GAP)
        parts.append(
            f'<rect x="{x}" y="16" width="{WIDTH}" height="{HEIGHTS[package] - 16}" '
            f'rx="10" fill="{color}" fill-opacity="0.14" stroke="{color}"/>'
            f'<text x="{x + 14}" y="44" class="title" fill="{color}">{package}</text>'
        )
        for row, name in enumerate(names):
            y = TOP + row * STEP
            places[f"{package}.{name}"] = (x, y + BOX_HEIGHT // 2)
            parts.append(
                f'<rect x="{x + 12}" y="{y}" width="{WIDTH - 24}" '
                f'height="{BOX_HEIGHT}" rx="6" fill="{color}"/>'
                f'<text x="{x + 24}" y="{y + 22}" class="name">{name}</text>'
            )
        places[package] = (x, HEIGHTS[package] // 2)
    arrows = [_arrow(places, *edge) for edge in sorted(edges())]
    return _PAGE.format(
        width=2 * MARGIN + 3 * WIDTH + 2 * GAP,
        height=max(HEIGHTS.values()) + 16,
        body="\n".join([*parts, *arrows]),
    )


_PAGE = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<title>training and serving.export import keras_vit; nothing else crosses</title>
<style>
.title {{ font: 700 18px system-ui, sans-serif; }}
.name {{ font: 600 15px system-ui, sans-serif; fill: #fff; }}
.arrow {{ fill: none; stroke: #888; stroke-width: 2; marker-end: url(#head); }}
</style>
<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7"
 markerHeight="7" orient="auto"><path d="M0 0 L10 5 L0 10 z" fill="#888"/></marker>
{body}
</svg>
"""


def _arrow(places: dict[str, tuple[int, int]], source: str, target: str) -> str:
    """An arrow between packages, or an arc beside the boxes of one package."""
    (x0, y0), (x1, y1) = places[source], places[target]
    if x0 != x1:
        start = x0 if x0 > x1 else x0 + WIDTH
        end = x1 + WIDTH + 3 if x0 > x1 else x1 - 3
        y0 = y0 if "." in source else y1
        return f'<path class="arrow" d="M{start} {y0} L{end} {y0}"/>'
    left = x0 == MARGIN
    side = x0 if left else x0 + WIDTH
    bulge = side + (-1 if left else 1) * (12 + 0.12 * abs(y1 - y0))
    side += 11 if left else -11
    y0, y1 = (y0 + 5, y1 - 5) if y0 < y1 else (y0 - 5, y1 + 5)
    return (
        f'<path class="arrow" d="M{side} {y0} C{bulge} {y0} {bulge} {y1} {side} {y1}"/>'
    )


def page() -> str:
    """Return the map: a table for each package, its folders before its modules."""
    return "\n\n".join(_section(package) for package in COLORS) + "\n"


def _section(package: str) -> str:
    children = [m for m in modules() if m.rpartition(".")[0] == package]
    rows = [
        [f"`{_place(module)}`", _sentence(module)]
        for module in sorted(children, key=lambda m: (not _is_folder(m), m))
        if not module.rpartition(".")[2].startswith("_")
    ]
    title = f"### `{package}/`\n\n{_sentence(package)}"
    return f"{title}\n\n{table(['where', 'what it is'], rows)}"


def _is_folder(module: str) -> bool:
    return modules()[module].stem == "__init__"


def _place(module: str) -> str:
    path = module.partition(".")[2].replace(".", "/")
    return f"{path}/" if _is_folder(module) else f"{path}.py"


def _sentence(module: str) -> str:
    """The first sentence of its docstring."""
    text = ast.get_docstring(ast.parse(modules()[module].read_text("utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())
