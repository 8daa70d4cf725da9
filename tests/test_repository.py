"""What a stranger meets first: workflows, hooks, forms, metadata, citation."""

import configparser
import itertools
import pathlib
import re
import shlex
import shutil
import sys

import pytest
import yaml
from build import ProjectBuilder
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner
from packaging.metadata import Metadata
from packaging.specifiers import SpecifierSet
from pyproject_hooks import quiet_subprocess_runner

import keras_vit

ROOT = pathlib.Path(__file__).parent.parent
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").iterdir())
FILES = [
    *(path for path in GITHUB.rglob("*") if path.is_file()),
    ROOT / "CITATION.cff",
    ROOT / ".pre-commit-config.yaml",
]
HOOKS = {
    hook["id"]: hook
    for repository in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())[
        "repos"
    ]
    for hook in repository["hooks"]
}
SCHEMAS = {
    "vendor.dependabot": "dependabot.yml",
    "vendor.github-issue-config": "ISSUE_TEMPLATE/config.yml",
}
DISTRIBUTIONS = {"library": ROOT, "clients": ROOT / "serving" / "client"}


def checked_by(hook):
    """The files that a hook is for, by its `files` and `exclude`."""
    names = [path.relative_to(ROOT).as_posix() for path in FILES]
    exclude = hook.get("exclude", "$^")
    return [
        name
        for name in names
        if re.search(hook["files"], name) and not re.search(exclude, name)
    ]


def matches(schema, *files):
    """Check files as the command does, in this process."""
    words = ["--builtin-schema", schema, *(str(ROOT / file) for file in files)]
    result = CliRunner().invoke(check_jsonschema, words)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("hook", [id for id in HOOKS if "files" in HOOKS[id]])
def test_files_match_the_schema_of_their_hook(hook):
    program, flag, schema = shlex.split(HOOKS[hook]["entry"])
    assert (program, flag) == (".venv/bin/check-jsonschema", "--builtin-schema")
    files = checked_by(HOOKS[hook])
    assert files
    matches(schema, *files)


@pytest.mark.parametrize(("schema", "file"), SCHEMAS.items())
def test_other_files_match_their_schema(schema, file):
    matches(schema, GITHUB / file)


def test_hooks_run_the_tools_of_the_environment():
    for hook in HOOKS.values():
        program = shlex.split(hook["entry"])[0]
        folder, tool = program.rsplit("/", 1)
        assert folder == ".venv/bin"
        assert (pathlib.Path(sys.executable).parent / tool).exists(), tool


def jobs():
    """(name, job) of every workflow."""
    for path in WORKFLOWS:
        for name, job in yaml.safe_load(path.read_text())["jobs"].items():
            yield f"{path.stem}/{name}", job


def steps():
    """Every step of a workflow or of an action."""
    actions = [yaml.safe_load(p.read_text()) for p in GITHUB.glob("actions/*/*.yml")]
    return [
        step
        for each in [*(job for _, job in jobs()), *(a["runs"] for a in actions)]
        for step in each["steps"]
    ]


def test_workflows_run_make_targets_that_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    used = set()
    for step in steps():
        for words in re.findall(r"\bmake ([^\n;&|]+)", step.get("run", "")):
            used |= {word for word in words.split() if "=" not in word}
    assert used <= targets
    assert {"lint", "test", "docs", "constraints"} <= used


def supported(folder):
    """The Pythons of a distribution's classifiers, and those that it installs on."""
    config = configparser.ConfigParser()
    config.read(folder / "setup.cfg")
    classifiers = config["metadata"]["classifiers"]
    allowed = SpecifierSet(config["options"]["python_requires"])
    minors = [f"3.{minor}" for minor in range(30)]
    return (
        re.findall(r"Python :: (3\.\d+)", classifiers),
        [minor for minor in minors if allowed.contains(minor)],
    )


def test_every_supported_python_is_tested():
    pythons, allowed = supported(ROOT)
    assert pythons == allowed
    assert supported(DISTRIBUTIONS["clients"]) == (pythons, allowed)
    matrices = [
        job["strategy"]["matrix"]["python"] for _, job in jobs() if "strategy" in job
    ]
    assert matrices
    assert all(matrix == pythons for matrix in matrices)


def test_actions_are_pinned_to_one_commit_each():
    text = "\n".join(path.read_text() for path in GITHUB.rglob("*.yml"))
    used = re.findall(r"uses: (?!\./)(.+)", text)
    pin = r"(\S+)@[0-9a-f]{40} # v[\d.]+"
    pinned = {line: re.fullmatch(pin, line) for line in used}
    assert all(pinned.values()), [line for line in used if not pinned[line]]
    assert len({match[1] for match in pinned.values()}) == len(pinned)


def test_actions_of_the_checkout_exist():
    local = {step["uses"] for step in steps() if step.get("uses", "").startswith("./")}
    assert local
    for folder in local:
        assert (ROOT / folder / "action.yml").exists(), folder


def test_workflows_may_only_read_and_end():
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] == {"contents": "read"}, path
        assert workflow["concurrency"]["cancel-in-progress"], path
    for name, job in jobs():
        assert "permissions" not in job, name
        assert job["timeout-minutes"] <= 90, name
    for step in steps():
        if "checkout@" in step.get("uses", ""):
            assert step["with"] == {"persist-credentials": False}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """What metadata is made of: making it leaves files beside."""
    folder = tmp_path_factory.mktemp("repository")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist")
    for package in ("keras_vit", "training", "serving"):
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    for name in ("pyproject.toml", "setup.cfg", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def metadata(folder):
    """What a package index shows, checked as it checks it."""
    made = ProjectBuilder(folder, runner=quiet_subprocess_runner).prepare(
        "wheel", folder / "metadata"
    )
    text = (pathlib.Path(made) / "METADATA").read_bytes()
    return Metadata.from_email(text, validate=True)


@pytest.fixture(scope="module", params=DISTRIBUTIONS)
def shown(request, copy):
    return metadata(copy / DISTRIBUTIONS[request.param].relative_to(ROOT))


def test_the_metadata_is_complete(shown):
    assert shown.license_expression == "Apache-2.0"
    assert shown.license_files == ["LICENSE"]
    assert shown.summary
    assert shown.author
    assert shown.keywords
    assert shown.description_content_type == "text/markdown"
    assert str(shown.version) == keras_vit.__version__
    kinds = {classifier.split(" :: ")[0] for classifier in shown.classifiers}
    assert kinds >= {"Development Status", "Intended Audience", "Operating System"}
    assert kinds >= {"Programming Language", "Topic", "Typing"}


# Links of Markdown that are no addresses and lead to no place on the same page.
RELATIVE = r"\]\((?!https?://|#)[^)]*\)"


def test_the_description_has_no_relative_links(shown):
    assert "```python" in shown.description
    assert re.findall(RELATIVE, shown.description) == []


def test_links_become_absolute_with_the_address_of_the_repository(copy, tmp_path):
    """With the lines that docs/releases.md has for the day when there is one."""
    folder = shutil.copytree(copy, tmp_path / "copy")
    page = (ROOT / "docs" / "releases.md").read_text()
    address = "https://repository.example"
    [lines] = re.findall(r"```ini\n(.*?)```", page, re.DOTALL)
    lines = lines.replace("ADDRESS", address)
    setup = (folder / "setup.cfg").read_text()
    changed = re.sub(r"project_urls =\n(?: +.*\n)+", lines, setup)
    assert changed != setup
    (folder / "setup.cfg").write_text(changed)
    found = metadata(folder)
    assert len(found.project_urls) == 5
    for label, url in found.project_urls.items():
        path = url.removeprefix(address)
        place = re.sub("^/blob/main/", "", path)
        assert label == "Paper" or path != url
        assert place == path or (ROOT / place).exists(), url
    links = re.findall(RELATIVE, (ROOT / "README.md").read_text())
    tag = f"v{found.version}"
    assert links
    assert re.findall(RELATIVE, found.description) == []
    for link in links:
        path = link[2:-1]
        file = f"{address}/blob/{tag}/{path}", f"{address}/raw/{tag}/{path}"
        assert any(f"]({url})" in found.description for url in file), link
    assert "![" in found.description
    pictures = re.findall(r"!\[[^]]*\]\(([^)]*)\)", found.description)
    assert all(url.startswith(f"{address}/raw/{tag}/") for url in pictures)


def test_the_citation_is_of_this_version_and_license():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == keras_vit.__version__
    assert citation["license"] == "Apache-2.0"
    [paper] = citation["references"]
    assert len(paper["authors"]) == 12


def test_forms_have_ids_once_and_a_required_field():
    for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml"):
        fields = [
            field
            for field in yaml.safe_load(path.read_text()).get("body", [])
            if field["type"] != "markdown"
        ]
        ids = [field["id"] for field in fields]
        assert len(ids) == len(set(ids)), path
        required = [f.get("validations", {}).get("required") for f in fields]
        assert path.stem == "config" or any(required), path


def test_texts_of_the_forms_name_files_and_headings_that_exist():
    texts = [p for p in GITHUB.rglob("*") if p.suffix in (".md", ".yml")]
    named = set(
        itertools.chain.from_iterable(
            re.findall(r"\b((?:docs/)?\w+\.md)(?:, \"([^\"]+)\")?", path.read_text())
            for path in texts
        )
    )
    assert named
    for name, heading in named:
        page = (ROOT / name).read_text()
        assert not heading or re.search(f"^## .*{heading}", page, re.M), (name, heading)
