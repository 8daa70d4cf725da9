"""`python -m serving`: the commands of serving, as `keras-vit` runs them."""

from keras_vit.common.commands import end_process, run


def main(argv: list[str] | None = None) -> int:
    """Run one command; see `keras_vit.common.commands.run`."""
    return run(__package__, argv)


if __name__ == "__main__":
    end_process(main())
