"""The console script `keras-vit`: the commands of library, training and serving."""

import ast
import difflib
import importlib
import importlib.util
import sys
from pathlib import Path

COMMANDS = {
    "keras_vit.training": {
        "fit": "train a model",
        "resume": "continue or extend a run",
        "launch": "train with several workers on this machine",
        "evaluate": "evaluate a model on labeled images",
        "predict": "classify image files",
        "push": "share a finished run on Hugging Face",
        "recipes": "list the recipes, or print one",
        "compare": "train recipes on the same images",
        "data-speed": "measure a recipe's input pipeline",
        "tpu-check": "check, without a TPU, that a recipe runs on one",
        "baselines": "compare finished runs with scikit-learn",
    },
    "keras_vit": {
        "info": "parameters, FLOPs, tokens, memory; or what a file is",
        "list": "list the published weights",
        "convert": "write a checkpoint in another project's format",
    },
    "keras_vit.serving": {
        "export": "write a model as a versioned SavedModel",
        "versions": "list a model's versions and labels",
        "promote": "move a label's version to `stable`",
        "rollback": "return to the previous version",
        "prune": "remove old versions",
        "serve": "start the local server",
        "page": "show a model on a server in a browser",
        "classify": "classify images on a server",
        "embed": "write the embeddings of images",
        "attention": "draw attention maps",
        "status": "list the versions on a server",
        "load": "measure a server under load",
    },
}


def main(argv: list[str] | None = None) -> int:
    """Run a command with the arguments after its name.

    Args:
        argv: Name of the command and its arguments; default: the process's own.

    Returns:
        The command's exit status; 2 for an unknown command.
    """
    argv = sys.argv[1:] if argv is None else argv
    name = argv[0] if argv else "--help"
    if name in ("-h", "--help"):
        print(_usage())
        return 0 if argv else 2
    for package, commands in COMMANDS.items():
        if name in commands:
            if package != "keras_vit":
                import_on_first_use("keras_vit")
            return importlib.import_module(f"{package}.__main__").main(argv)
    print(f"keras-vit: no command {name!r}.{_hint(name)}", file=sys.stderr)
    return 2


def import_on_first_use(package: str) -> None:
    """Run a package's `__init__` only once a name that it imports is used.

    Its modules can be imported before: `keras_vit.serving` without `keras_vit`, which
    imports Keras and TensorFlow. Most commands answer in a tenth of that time. Those
    that open `.keras` files use a name first, which registers the models.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or (loader := spec.loader) is None:
        raise ModuleNotFoundError(f"{package} must be installed", name=package)
    module = importlib.util.module_from_spec(spec)
    tree = ast.parse(Path(str(spec.origin)).read_text("utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    names = {alias.name for node in imports for alias in node.names}

    def load(attribute: str) -> object:
        if attribute not in names:
            raise AttributeError(f"{package} has no attribute {attribute!r}")
        del module.__getattr__
        loader.exec_module(module)
        return getattr(module, attribute)

    module.__getattr__ = load  # type: ignore[method-assign]
    sys.modules[package] = module


def _usage() -> str:
    lines = ["usage: keras-vit COMMAND ...", ""]
    for commands in COMMANDS.values():
        lines += [f"  {name:12}{about}" for name, about in commands.items()]
        lines.append("")
    return "\n".join([*lines, "COMMAND --help: more"])


def _hint(name: str) -> str:
    names = [each for commands in COMMANDS.values() for each in commands]
    similar = difflib.get_close_matches(name, names, n=1)
    if similar:
        return f" Did you mean {similar[0]!r}?"
    return f" There are: {', '.join(names)}"


if __name__ == "__main__":
    sys.exit(main())
