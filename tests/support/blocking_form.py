"""Derive the blocking clients' methods from those for asyncio: `make client`.

The text is replaced word by word, then formatted.
"""

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "serving" / "client"
SOURCE, RESULT = FOLDER / "async_client.py", FOLDER / "blocking_client.py"
NOTICE = f"# Written by `make client` from {SOURCE.name}: edit that one.\n"
WORDS = {
    r"import asyncio\n": "",
    r"an asyncio client": "a blocking client, which threads may share",
    r"asyncio clients": "blocking clients",
    r"tasks import in_order, in_thread": "threads import in_order",
    r"await in_thread\((\w+), ": r"\1(",
    r"await asyncio\.sleep": "time.sleep",
    r"async def ": "def ",
    r"await ": "",
    r"AsyncIterator, Iterable": "Iterable, Iterator",
    r"AsyncIterator": "Iterator",
    r"AsyncClient": "BlockingClient",
    r"__a(enter|exit)__": r"__\1__",
}


def blocking_form(source: str) -> str:
    """The text of `blocking_client.py`, given that of `async_client.py`."""
    for pattern, word in WORDS.items():
        source = re.sub(pattern, word, source)
    command = ["ruff", "format", "--stdin-filename", str(RESULT), "-"]
    formatted = subprocess.run(
        [sys.executable, "-m", *command],
        input=NOTICE + source,
        capture_output=True,
        check=True,
        text=True,
    )
    return formatted.stdout


if __name__ == "__main__":
    RESULT.write_text(blocking_form(SOURCE.read_text("utf-8")), "utf-8")
