"""The local server: TensorFlow Serving's protocol in one Python process, for laptops.

`main` is the command, `LocalServer` a server in a background thread. Both are imported
when they are first asked for, since they need TensorFlow and the extra `[serve]`.
"""

import importlib
from typing import Any

_MODULES = {"LocalServer": ".embedded", "main": ".serve"}
__all__ = ["LocalServer", "main"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name], __name__), name)
