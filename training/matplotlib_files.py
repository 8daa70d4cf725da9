"""matplotlib, for pictures in files."""

from .errors import TrainingError


def pyplot():
    """Import matplotlib.pyplot for drawing into files.

    Raises:
        TrainingError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise TrainingError(
            'the pictures need matplotlib: pip install -c constraints.txt -e ".[viz]"'
        ) from None
    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot
