"""The long description: README.md with links that work on a package index.

Relative links and pictures break there. They become absolute with the address of the
repository, which `Source` among setup.cfg's `project_urls` states, and the version's
tag. While there is none (docs/releases.md), links to files become their text, and
pictures are left out.
"""

import configparser
import pathlib
import re
import runpy

from setuptools import setup

ROOT = pathlib.Path(__file__).parent
# `[text](path)` and `![text](path)`: no address, no place on the same page.
RELATIVE = re.compile(r"(!?)\[([^]]*)\]\((?!https?:|#)([^)]+)\)")


def long_description(readme: str, source: str | None, version: str) -> str:
    """Make README's links absolute, or remove them where there is no address."""

    def absolute(match: re.Match[str]) -> str:
        picture, text, path = match.groups()
        if source is None:
            return "" if picture else text
        folder = "raw" if picture else "blob"
        return f"{picture}[{text}]({source}/{folder}/v{version}/{path})"

    return RELATIVE.sub(absolute, readme)


def source_address() -> str | None:
    """`Source` among the project's addresses."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", "utf-8")
    lines = config["metadata"]["project_urls"].strip().splitlines()
    return dict(re.split(r"\s*=\s*", line) for line in lines).get("Source")


setup(
    long_description=long_description(
        (ROOT / "README.md").read_text("utf-8"),
        source_address(),
        runpy.run_path(str(ROOT / "keras_vit" / "_version.py"))["__version__"],
    )
)
