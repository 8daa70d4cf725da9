"""`python -m training COMMAND`: run a command, and report errors in one line."""

import os
import sys

from .errors import TrainingError

if __name__ == "__main__":
    # TensorFlow's start-up messages say nothing about this project.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        from .cli import main
    except ModuleNotFoundError as error:
        sys.exit(
            f"error: python -m training needs {error.name}: "
            'pip install -c constraints.txt -e ".[train]"'
        )
    try:
        main()
    except TrainingError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except OSError as error:  # a full disk, a folder without permission
        print(f"error: {error}; `fit` with --resume continues", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("stopped; `fit` with --resume continues", file=sys.stderr)
        sys.exit(130)
