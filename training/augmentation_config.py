"""The recipe's section `augmentation`: a row for each augmentation, and its strength.

What they do is in `training.data`: crops in `augment.read` and `resize`, repeats in
`pipeline`, mixing in `mixup`, and each other one in a function of `augment.CHANGES`.
"""

from typing import Annotated, Literal

from keras_vit.option_rows import Check, Mark, options, rows
from keras_vit.options import Count, Rate

from .errors import number_check, require, require_rows

STRENGTH = Mark(
    "changes no image by itself: how much of another augmentation, or how often"
)
CROPS = Mark("crops the image as it is read, so it is not resized once for all epochs")
CHANGES_LABELS = Mark("mixes images, and their labels with them")


def within(least: float, most: float, above: bool = False) -> Check:
    """Check a number against both bounds, the first of which may be excluded."""
    wanted = f"in {'(' if above else '['}{least}, {most}]"
    return number_check(
        wanted, lambda v: least <= v <= most and (v > least or not above)
    )


AT_LEAST_0 = number_check("at least 0", lambda value: value >= 0)


@options
class AugmentationConfig:
    """Augmentation of the training images, different in every epoch."""

    crop_min_area: Annotated[
        float,
        within(0, 1, above=True),
        CROPS,
        "Smallest share of the image's area that a random crop (ratio 3/4 to 4/3) "
        "keeps before it is resized; 1 for no crop.",
    ] = 1.0
    simple_crop: Annotated[
        bool,
        CROPS,
        'Use DeiT III\'s "simple random crop" instead: resize the shorter side, pad by '
        "4 pixels of reflection, crop at a random position.",
    ] = False
    crop_from: Annotated[
        int,
        AT_LEAST_0,
        CROPS,
        "Resize the image to a square of this side instead, and crop the model's size "
        "at a random position (BiT-HyperRule, arXiv:1912.11370); 0 for no such crop.",
    ] = 0
    flip: Annotated[
        bool,
        "Whether to flip images left to right with probability 0.5.",
    ] = False
    shift: Annotated[
        int,
        AT_LEAST_0,
        "Largest shift in pixels of the model's input, in both directions; the border "
        "is repeated.",
    ] = 0
    rotate: Annotated[
        float,
        within(0, 180),
        "Largest rotation in degrees, clockwise and counterclockwise; the border is "
        "repeated.",
    ] = 0.0
    scale: Annotated[
        Rate,
        "Largest relative change of the height and, independently, of the width: 0.1 "
        "for sides of 90 to 110 %; the border is repeated.",
    ] = 0.0
    policy: Annotated[
        Literal["none", "randaugment", "autoaugment", "three_augment"],
        "none, randaugment (arXiv:1909.13719), autoaugment (ImageNet's policy of "
        "arXiv:1805.09501) or three_augment (DeiT III, arXiv:2204.07118).",
    ] = "none"
    layers: Annotated[
        int,
        AT_LEAST_0,
        STRENGTH,
        "Number of operations that randaugment applies to each image.",
    ] = 2
    magnitude: Annotated[
        float,
        within(0, 30),
        STRENGTH,
        "Their strength, 0 to 30.",
    ] = 10.0
    magnitude_std: Annotated[
        float,
        AT_LEAST_0,
        STRENGTH,
        "Standard deviation of normal noise added to the magnitude.",
    ] = 0.0
    color_jitter: Annotated[
        float,
        within(0, 1),
        "Largest relative change of brightness, contrast and saturation.",
    ] = 0.0
    erase: Annotated[
        float,
        within(0, 1),
        "Probability of filling a rectangle with noise (random erasing, "
        "arXiv:1708.04896).",
    ] = 0.0
    repeats: Annotated[
        Count,
        STRENGTH,
        "How often each image occurs in a batch, each time augmented differently "
        "(repeated augmentation, arXiv:1901.09335).",
    ] = 1
    mixup: Annotated[
        float,
        AT_LEAST_0,
        CHANGES_LABELS,
        "alpha of Beta(alpha, alpha), the ratio of two blended images "
        "(arXiv:1710.09412); 0 for none.",
    ] = 0.0
    cutmix: Annotated[
        float,
        AT_LEAST_0,
        CHANGES_LABELS,
        "alpha of Beta(alpha, alpha), the share of an image that is kept when a "
        "rectangle is replaced by another image's (arXiv:1905.04899); 0 for none.",
    ] = 0.0
    cutmix_share: Annotated[
        float,
        within(0, 1),
        STRENGTH,
        "With both mixup and cutmix: the share of images with cutmix.",
    ] = 0.5

    def __post_init__(self) -> None:
        require_rows("augmentation", self)
        require(
            not self.simple_crop or self.crop_min_area == 1,
            "augmentation.simple_crop",
            "false where augmentation.crop_min_area is below 1",
            self.simple_crop,
        )
        require(
            not self.crop_from or (self.crop_min_area == 1 and not self.simple_crop),
            "augmentation.crop_from",
            "0 where augmentation.crop_min_area is below 1 or simple_crop is true",
            self.crop_from,
        )


def changing_images() -> list[str]:
    """The fields by which an image has other features in each epoch."""
    return [
        name
        for name, row in rows(AugmentationConfig).items()
        if STRENGTH not in row.marks
    ]


def marked(mark: Mark, config: AugmentationConfig) -> list[str]:
    """The fields with this mark that the recipe switches on."""
    default = AugmentationConfig()
    return [
        name
        for name, row in rows(AugmentationConfig).items()
        if mark in row.marks and getattr(config, name) != getattr(default, name)
    ]
