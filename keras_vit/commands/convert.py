"""`keras-vit convert`: from any family to Keras or another family."""

from keras_vit.commands.arguments import check_file, image_size, one_of
from keras_vit.common.command_line import Parser
from keras_vit.weights.resampling import RESIZES


def convert(argv: list[str]) -> None:
    """Write a checkpoint as that of another family."""
    parser = Parser(
        prog="keras-vit convert",
        description="Write a checkpoint as that of another family.",
    )
    parser.add_argument("source", metavar="IN", help="a checkpoint, or a .keras file")
    parser.add_argument(
        "target",
        metavar="OUT",
        help="NAME.keras, NAME.npz (Google), or a folder (with --to)",
    )
    parser.add_argument(
        "--to",
        type=one_of("timm", "hugging_face", "keras_hub"),
        metavar="{timm,hugging_face,keras_hub}",
        help="for a folder",
    )
    parser.add_argument("--heads", type=int, help="if IN does not state their number")
    parser.add_argument(
        "--image_size", type=image_size, metavar="H[xW]", help="in pixels; resizes"
    )
    parser.add_argument(
        "--grid", type=image_size, metavar="H[xW]", help="of IN's position embeddings"
    )
    parser.add_argument(
        "--resample",
        type=one_of(*RESIZES),
        default="google",
        metavar=f"{{{','.join(RESIZES)}}}",
        help="default google",
    )
    arguments = parser.parse_args(argv)
    check_file(arguments.source)
    from keras_vit.commands import weights_files

    weights_files.convert(arguments)
