"""`keras-vit inspect`: pictures of what a model has learned."""

import os

from keras_vit.commands.arguments import check_file
from keras_vit.common.activity import activity
from keras_vit.common.command_line import Parser
from keras_vit.errors import ImageFileError


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
    for image in arguments.images:
        if not os.path.exists(image):  # found before Keras is imported
            raise ImageFileError(f"{image}: there is no such image file or folder")
    with activity("keras-vit inspect", redraw=False):
        from keras_vit.commands import inspected_images

        inspected_images.inspect(arguments)
