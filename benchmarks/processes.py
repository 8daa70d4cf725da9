"""Processes of their own, which answer each line that they are sent."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Self

# As in keras-vit's commands, for each library that uses TensorFlow.
DEFAULTS = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "1"}


class Process:
    """A module in a process of its own, for the duration of a block.

    Args:
        arguments: Of `python -m`.
        environment: Variables that it has besides.

    Raises:
        RuntimeError: It ended before it answered; its own message is above.
    """

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.name = " ".join(arguments)
        self._process: Any = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=DEFAULTS | os.environ | environment,
        )
        self.pid = self._process.pid

    def ask(self, *request: Any) -> Any:
        """Send a request to a process that runs `answer`."""
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return json.loads(self._line())

    def find(self, pattern: str) -> re.Match[str]:
        """Wait for a line that matches."""
        while not (found := re.search(pattern, self._line())):
            pass
        return found

    def _line(self) -> str:
        line: str = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with status {self._process.wait()}")
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.terminate()
        self._process.communicate()


def answer(reply: Callable[..., Any]) -> None:
    """Answer requests; what libraries print goes to the standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(reply(*json.loads(line))), file=answers, flush=True)
