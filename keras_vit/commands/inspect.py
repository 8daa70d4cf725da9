"""`keras-vit inspect`: pictures of what a model has learned."""

from keras_vit.commands.arguments import check_file
from keras_vit.common.command_line import Parser


def inspect(argv: list[str]) -> None:
    """Draw what a model has learned."""
    parser = Parser(
        prog="keras-vit inspect", description="Draw what a model has learned."
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a run, a .keras file, a checkpoint, or VARIANT:NAME of `list`",
    )
    parser.add_argument(
        "images",
        nargs="*",
        metavar="IMAGES",
        help="files or folders; without them only filters and positions are drawn",
    )
    parser.add_argument(
        "--out",
        required=True,
        metavar="FOLDER",
        help="where one PNG for each property and arrays.npz are written",
    )
    arguments = parser.parse_args(argv)
    check_file(arguments.model)
    from keras_vit.commands import inspected_images

    inspected_images.inspect(arguments)
