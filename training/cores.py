"""The processor's cores."""

import os
import sys


def usable_cores() -> int:
    """Cores that this process may use; all where it cannot know, as on macOS."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
