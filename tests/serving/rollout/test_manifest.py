"""Manifests of versions that somebody else wrote."""

import json

import pytest

from keras_vit.common.file_names import MANIFEST
from serving.__main__ import main
from serving.rollout import manifest

MALFORMED = {
    "no object": "[]",
    "no JSON": "{",
    "nested": "[" * 10**6,
    "no files": '{"format": 1}',
    "files as a list": '{"format": 1, "files": ["a"]}',
    "another format": '{"format": 2, "files": {}}',
}


@pytest.fixture
def version(tmp_path):
    """A function that writes a version with a manifest."""

    def write(text):
        path = tmp_path / "m" / "1" / MANIFEST
        path.parent.mkdir(parents=True)
        path.write_text(text)
        return tmp_path / "m" / "1"

    return write


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_manifest_is_none(name, version):
    folder = version(MALFORMED[name])
    assert manifest.read_if_valid(folder) is None
    assert manifest.damage(folder) == [f"{MANIFEST}: missing or not readable"]


FIELDS = {
    "created": "2026-11-26T10:00",
    "options": {"precision": "float32"},
    "agreement": {"max_difference": 1e-6, "top1": 1.0},
    "files": {"a": {"bytes": 3, "sha256": ""}},
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [None, 3, {"x": "y"}])
def test_malformed_fields_are_listed_as_unknown(field, value, version, capsys):
    folder = version(json.dumps({"format": 1, **FIELDS, field: value}))
    assert main(["versions", str(folder.parent)]) == 0
    output = capsys.readouterr()
    assert not output.err
    assert output.out.splitlines()[-1].split()[0] == "1"
