"""All timings that a CPU can make within half an hour: `make bench`.

    python -m benchmarks [--minutes 30]

Refreshes benchmarks/*.json, from which `make docs` makes its page. The most important
come first; what is not finished when the time is over keeps its old file. Needs the
peers: `pip install -e ".[parity,formats]"`.
"""

import argparse
import subprocess
import sys
import time

# With fewer cases or rounds than each takes by itself.
RUNS = (
    "forward --quick --rounds 4",
    "train_step --quick --rounds 4",
    "attention --quick --rounds 1",
    "data --rounds 1",
    "loading --rounds 1",
)


def main() -> int:
    """Run the benchmarks; the exit status is 1 where one failed or had no time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    end = time.monotonic() + 60 * parser.parse_args().minutes
    missing = []
    for run in RUNS:
        print(f"\npython -m benchmarks.{run}", flush=True)
        began = time.monotonic()
        try:
            subprocess.run(
                [sys.executable, "-m", *f"benchmarks.{run}".split()],
                check=True,
                timeout=max(end - began, 0.0),
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            missing.append(f"{run.split()[0]}: {error}")
        else:
            print(f"{(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    for line in missing:
        print(f"not measured: {line}", file=sys.stderr)
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
