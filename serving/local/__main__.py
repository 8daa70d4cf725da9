"""`python -m serving.local`: the same as `python -m serving serve`."""

import sys

from .serve import main

sys.exit(main(sys.argv[1:]))
