"""Check on import that the operating system is one that keras-vit runs on."""

import sys

if sys.platform == "win32":
    # With the package's own name, `python -m keras_vit` prints no traceback.
    raise ImportError(
        "keras-vit runs on Linux and macOS; on Windows, install it inside WSL2 "
        "(`wsl --install`). Received: sys.platform='win32'",
        name="keras_vit",
    )
