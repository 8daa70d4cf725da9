"""Run the notebooks of the documentation and keep their pictures: `make notebooks`."""

import base64
import os
import pathlib
import sys
import tempfile
import time

import nbformat
from nbclient import NotebookClient

FOLDER = pathlib.Path(__file__).parent / "notebooks"
SECONDS = 600  # for one cell


def run(path: pathlib.Path, folder: str) -> nbformat.NotebookNode:
    """Run a notebook in a folder, for the files that it writes.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TTY_COMPATIBLE": "0",  # rich: no spinners, although Jupyter forces colors
        # `keras-vit` is that of this environment.
        "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    NotebookClient(
        notebook,
        timeout=SECONDS,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": folder}},
    ).execute(env=environment)
    return notebook


def keep_pictures(notebook: nbformat.NotebookNode) -> None:
    """Write the pictures of cells whose metadata name a file in static/."""
    for cell in notebook.cells:
        if name := cell.metadata.get("picture"):
            (output,) = (each for each in cell.outputs if "data" in each)
            picture = base64.b64decode(output.data["image/png"])
            (FOLDER.parent / "static" / name).write_bytes(picture)


def main(names: list[str]) -> None:
    """Run the notebooks of these names, or all, and write them with their outputs."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            notebook = run(path, folder)
        notebook.metadata["language_info"] = {
            "name": "python",
            "pygments_lexer": "ipython3",
        }
        nbformat.write(notebook, path)
        keep_pictures(notebook)
        print(f"{path.stem}: {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
