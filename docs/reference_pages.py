"""The reference pages, which list the public names of each package."""

import inspect
import types
from collections.abc import Collection, Sequence

from markdown_table import table

import keras_vit
import serving.client

# Methods that the models call on each other.
INTERNAL = {"keep_options"}


def library() -> str:
    """`keras_vit`: classes, functions, and the models of published sizes."""
    members = _members(keras_vit)
    named = [n for n, m in members.items() if inspect.isfunction(m) and n[0].isupper()]
    classes = [n for n, m in members.items() if inspect.isclass(m)]
    classes.sort(key=lambda name: name != "VisionTransformer")  # it comes first
    functions = [
        n for n, m in members.items() if inspect.isfunction(m) and n not in named
    ]
    sizes = [[f"`{name}`", _first_line(members[name])] for name in named]
    return "\n\n".join(
        [
            "## Classes",
            *(
                _class(getattr(keras_vit, name), f"keras_vit.{name}")
                for name in classes
            ),
            "## Functions",
            *(_directive("autofunction", f"keras_vit.{name}") for name in functions),
            "## Models of published sizes",
            "All take the arguments of `ViTB16`.",
            table(["constructor", "model"], sizes),
            _directive("autofunction", "keras_vit.ViTB16"),
        ]
    )


def layers() -> str:
    """`keras_vit.layers` and `keras_vit.decoding`."""
    decoding = _members(keras_vit.decoding)
    return "\n\n".join(
        [
            *(
                _directive("autoclass", f"keras_vit.layers.{name}")
                for name in _members(keras_vit.layers)
            ),
            "## Image decoding",
            *(
                _directive("autofunction", f"keras_vit.decoding.{name}")
                for name, member in decoding.items()
                if inspect.isfunction(member)
            ),
        ]
    )


def analysis() -> str:
    """`keras_vit.analysis`."""
    return "\n\n".join(
        _directive("autofunction", f"keras_vit.analysis.{name}")
        for name, member in _members(keras_vit.analysis).items()
        if inspect.isfunction(member)
    )


def weights() -> str:
    """What `keras_vit.weights` has beside the names in `keras_vit`."""
    own = {
        name: member
        for name, member in _members(keras_vit.weights).items()
        if name not in keras_vit.__all__
    }
    return "\n\n".join(
        _class(member, f"keras_vit.weights.{name}")
        if inspect.isclass(member)
        else _directive("autofunction", f"keras_vit.weights.{name}")
        for name, member in own.items()
        if inspect.isclass(member) or inspect.isfunction(member)
    )


def client() -> str:
    """`serving.client`: clients, answers, errors."""
    members = _members(serving.client)
    errors = [n for n, m in members.items() if issubclass(m, Exception)]
    clients = ["RestClient", "GrpcClient", "AsyncRestClient", "AsyncGrpcClient"]
    answers = [n for n in members if n not in errors + clients]
    parts = ["All clients have the methods of `RestClient`."]
    common = _own_members(serving.client.RestClient)
    for name in clients:
        omitted = common if name != "RestClient" else ()
        parts += [_class(members[name], f"serving.client.{name}", omitted)]
    parts += ["## Answers"]
    parts += [_class(members[name], f"serving.client.{name}") for name in answers]
    parts += ["## Errors"]
    parts += [_directive("autoexception", f"serving.client.{name}") for name in errors]
    return "\n\n".join(parts)


def _members(module: types.ModuleType) -> dict[str, object]:
    return {
        name: getattr(module, name)
        for name in module.__all__
        if not name.startswith("__")
    }


def _first_line(member: object) -> str:
    return (inspect.getdoc(member) or "").splitlines()[0]


def _class(cls: type, name: str, omitted: Collection[str] = ()) -> str:
    """The directives of a class and its members."""
    lines = []
    for member in _own_members(cls):
        if member not in omitted:
            a_property = isinstance(inspect.getattr_static(cls, member), property)
            role = "autoproperty" if a_property else "automethod"
            lines += ["", f"   .. {role}:: {name}.{member}"]
    return _directive("autoclass", name, lines)


def _directive(kind: str, name: str, content: Sequence[str] = ()) -> str:
    """An autodoc directive, which is reStructuredText inside a Markdown page."""
    return "\n".join(["```{eval-rst}", f".. {kind}:: {name}", *content, "```"])


def _own_members(cls: type) -> list[str]:
    """Methods and properties that no base class outside this project has."""
    packages = ("keras_vit", "serving", "training")
    ours = [c for c in cls.__mro__ if c.__module__.split(".")[0] in packages]
    others = [c for c in cls.__mro__ if c not in ours]
    names = dict.fromkeys(name for c in reversed(ours) for name in vars(c))
    return [
        name
        for name in names
        if not name.startswith("_")
        and name not in INTERNAL
        and not any(hasattr(other, name) for other in others)
        and (
            callable(getattr(cls, name, None))
            or isinstance(inspect.getattr_static(cls, name), property)
        )
    ]
