"""Configuration of the documentation site; `make docs` builds it.

Pages that repeat what code or data already say (published weights, recipes, options,
benchmarks, the reference, the drawing of the packages) are written to
`docs/generated/` before each build and are not committed.
"""

import functools
import os
import pathlib
import sys

# TensorFlow, which the reference imports, logs device probing otherwise.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

DOCS = pathlib.Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]

import architecture_tables  # noqa: E402
import benchmark_pictures  # noqa: E402
import benchmark_tables  # noqa: E402
import option_tables  # noqa: E402
import package_drawing  # noqa: E402
import recipe_tables  # noqa: E402
import reference_pages  # noqa: E402
import weight_tables  # noqa: E402
from sphinx.util import inspect  # noqa: E402

import keras_vit  # noqa: E402

GENERATED = {
    "architectures.md": architecture_tables.page,
    "benchmarks.md": benchmark_tables.page,
    "options.md": option_tables.page,
    "packages.md": package_drawing.page,
    "packages.svg": package_drawing.drawing,
    "recipes.md": recipe_tables.page,
    "reference_analysis.md": reference_pages.analysis,
    "reference_client.md": reference_pages.client,
    "reference_keras_vit.md": reference_pages.library,
    "reference_layers.md": reference_pages.layers,
    "reference_weights.md": reference_pages.weights,
    "weights.md": weight_tables.page,
    **{
        f"benchmark_{name}.svg": functools.partial(benchmark_pictures.picture, name)
        for name in benchmark_pictures.QUESTIONS
    },
}

project = "keras-vit"
version = release = keras_vit.__version__
project_copyright = "the keras-vit authors, Apache-2.0"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["generated", "_build"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # `make notebooks` runs them

default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
napoleon_use_rtype = False
napoleon_custom_sections = [("Call arguments", "params_style")]

html_theme = "furo"
html_title = "keras-vit"
html_static_path = ["static"]
html_css_files = ["keras-vit.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "monokai"


def write_generated_pages(app) -> None:
    """Write `docs/generated/`; files that have not changed keep their time."""
    folder = DOCS / "generated"
    folder.mkdir(exist_ok=True)
    for name, page in GENERATED.items():
        text = page()
        path = folder / name
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


def constructor_signature(app, what, name, obj, options, signature, returns):
    """Show the arguments of `__init__` where Keras wraps it in `(*args, **kwargs)`."""
    if what == "class" and signature == "(*args, **kwargs)":
        found = inspect.signature(obj.__init__, bound_method=True)
        text = inspect.stringify_signature(found, unqualified_typehints=True)
        return text.partition(" -> ")[0], returns
    return None


def setup(app) -> None:
    """Register the generated pages and the signatures with Sphinx."""
    app.connect("builder-inited", write_generated_pages)
    app.connect("autodoc-process-signature", constructor_signature)
