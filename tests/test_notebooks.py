"""The notebooks of docs/ run, and hold the outputs of a run."""

import base64

import nbformat
import pytest

from docs.run_notebooks import FOLDER, run

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
# Every cell is tested, but how long a model learns does not matter to any.
SHORTER = {
    "first_steps": ("epochs, batch = 60, 32", "epochs, batch = 2, 32"),
    "own_photographs": ("--epochs 20", "--epochs 2"),
    "serving": ("epochs=30", "epochs=1"),
    "what_a_vit_sees": ("steps = 1300", "steps = 100"),
}


def pictures(notebook):
    """Numbers of the cells with a picture."""
    return {
        number
        for number, cell in enumerate(notebook.cells)
        for output in cell.get("outputs", ())
        if "image/png" in output.get("data", {})
    }


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_holds_pictures_and_no_warnings(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    counts = [cell.execution_count for cell in cells]
    assert counts == list(range(1, len(cells) + 1))
    kinds = {
        output.get("name", output.output_type)
        for cell in cells
        for output in cell.outputs
    }
    assert kinds <= {"stdout", "display_data", "execute_result"}
    assert pictures(notebook)
    assert path.stat().st_size < 2**20


def test_the_readme_shows_a_picture_of_a_notebook():
    readme = (FOLDER.parent.parent / "README.md").read_text("utf-8")
    cells = [cell for path in NOTEBOOKS for cell in nbformat.read(path, 4).cells]
    (cell,) = [cell for cell in cells if "picture" in cell.metadata]
    picture = FOLDER.parent / "static" / cell.metadata["picture"]
    (output,) = [each for each in cell.outputs if "data" in each]
    assert base64.b64decode(output.data["image/png"]) == picture.read_bytes()
    assert f"docs/static/{picture.name}" in readme


def test_the_site_links_every_notebook():
    index = (FOLDER.parent / "index.md").read_text("utf-8")
    for path in NOTEBOOKS:
        assert index.count(f"notebooks/{path.stem}") == 2


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    text = path.read_text("utf-8")
    long, short = SHORTER[path.stem]
    assert long in text
    shorter = tmp_path / path.name
    shorter.write_text(text.replace(long, short), "utf-8")
    assert pictures(run(shorter, str(tmp_path))) == pictures(nbformat.reads(text, 4))
