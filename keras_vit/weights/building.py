"""Models built with a checkpoint's weights, or rebuilt with other arguments."""

import inspect
import logging
import math
import os
import pathlib
import re
import warnings
from typing import Any, TypeVar

import keras
import numpy as np

from keras_vit.base import ImageModel, check_model
from keras_vit.checks import check_choice
from keras_vit.errors import CheckpointError
from keras_vit.option_rows import rows
from keras_vit.options import SIZES
from keras_vit.preprocessing import ImagePreprocessing
from keras_vit.specs import image_size_pair, patch_side
from keras_vit.typing import Array, Arrays, StrPath
from keras_vit.weights.checkpoint import Checkpoint, family_of, open_checkpoint
from keras_vit.weights.config import differences, model_arguments
from keras_vit.weights.keras_files import load_keras_file
from keras_vit.weights.loading import load_open_checkpoint
from keras_vit.weights.placement import HEADS, is_relative_bias
from keras_vit.weights.preprocessing_configs import preprocessing_arguments
from keras_vit.weights.presets import check_exists, fetch, find_weights
from keras_vit.weights.reading import open_arrays
from keras_vit.weights.resampling import (
    RESIZES,
    adapt_channels,
    patch_method,
    resample_patches,
    resample_positions,
    resample_relative_bias,
)

_LOG = logging.getLogger("keras_vit")
_Model = TypeVar("_Model", bound=ImageModel)


def build_preset(
    model_class: type[_Model],
    preset: StrPath,
    arguments: dict[str, Any],
    resample: str = "google",
    grid: tuple[int, int] | None = None,
    variant: str | None = None,
) -> _Model:
    """Build a model with weights: see `PublishedModel.from_preset`.

    Args:
        model_class: `VisionTransformer` or `ResNet`.
        preset: `"VARIANT:NAME"` of published weights, `"hf://owner/name"`, or the path
            of a checkpoint of any family or of a `.keras` file.
        arguments: Arguments of the model that replace the file's.
        resample: How positions are resampled to another grid; see `load_checkpoint`.
        grid: (h, w) of the file's positions; see `load_checkpoint`.
        variant: The size that the weights must have. With it, `preset` may also be the
            NAME alone, or a `.weights.h5` file of `save_weights`.
    """
    name = os.fspath(preset)
    published = None
    if not os.path.exists(name):
        match = re.fullmatch(r"([\w+/-]+):([\w@-]+|hf://.+)", name)
        if match and variant not in (None, match[1]):
            raise ValueError(
                f"`weights` must be of the size {variant}. Received: {name!r}"
            )
        if match:
            variant, published = match[1], find_weights(*match.groups())
        elif variant is not None and re.fullmatch(r"[\w@-]+", name):
            published = find_weights(variant, name)
        else:
            check_exists(name)
    path = fetch(published or name)
    if path.suffix == ".keras":
        return _from_keras(model_class, path, arguments, resample)
    size = {} if variant is None else model_class.variant_arguments(variant)
    arguments = {**size, **arguments}
    if variant is not None and (parameters := _parameters_of_ours(path)) is not None:
        return _load_ours(model_class(**arguments), path, parameters)
    with open_checkpoint(path) as checkpoint:
        family = checkpoint.described
        if family.model != model_class.architecture:
            raise CheckpointError(
                f"The checkpoint must be one of a {model_class.__name__}. Received: "
                f"{str(path)!r} of another architecture ({family.title})"
            )
        file = _file_arguments(checkpoint, grid, arguments)
        if published is not None and "patch_size" in file and "grid" not in file:
            # The images of every published file are square.
            file["grid"] = _grid(file)
        if variant is not None and (wrong := differences(file, SIZES, arguments.get)):
            raise CheckpointError(
                f"`weights` must be of the size {variant}. Received: {str(path)!r} of "
                f"a model with {', '.join(wrong)}"
            )
        return _build(model_class, checkpoint, file, arguments, resample)


def build_open_checkpoint(
    model_class: type[_Model],
    checkpoint: Checkpoint,
    arguments: dict[str, Any],
    resample: str = "google",
    grid: tuple[int, int] | None = None,
) -> _Model:
    """`build_preset`, of a file that is open."""
    file = _file_arguments(checkpoint, grid, arguments)
    return _build(model_class, checkpoint, file, arguments, resample)


def _from_keras(
    model_class: type[_Model],
    path: pathlib.Path,
    arguments: dict[str, Any],
    resample: str,
) -> _Model:
    """Load a model from a `.keras` file and replace some of its arguments."""
    model = load_keras_file(path)
    if not isinstance(model, model_class):
        raise CheckpointError(
            f"The .keras file must hold a {model_class.__name__}. Received: "
            f"{str(path)!r} with a {type(model).__name__}"
        )
    return rebuild(model, resample, **arguments) if arguments else model


def _file_arguments(
    checkpoint: Checkpoint, grid: tuple[int, int] | None, asked: dict[str, Any]
) -> dict[str, Any]:
    """Model arguments of a checkpoint, `preprocessing` as arguments of the layer."""
    policy = preprocessing_arguments(checkpoint)
    if "pooling" in asked and asked["pooling"] is None:
        asked = {**asked, "classes": None}
    return {**model_arguments(checkpoint, grid, asked), "preprocessing": policy}


def _grid(file: dict[str, Any]) -> tuple[int, int] | None:
    """Grid of the file's own image size, if known."""
    if "image_size" not in file:
        return None
    side = patch_side(file["patch_size"], file.get("resnet_blocks"))
    height, width = file["image_size"]
    return height // side, width // side


def _parameters_of_ours(path: pathlib.Path) -> int | None:
    """Number of parameters in a file of our models' `save_weights`; None for others."""
    if not path.name.endswith(".weights.h5"):
        return None
    with open_arrays(path) as file:
        if family_of(file.arrays) is not None:
            return None
        return sum(
            math.prod(array.shape)
            for name, array in file.arrays.items()
            if "seed_generator" not in name
        )


def _load_ours(model: _Model, path: pathlib.Path, stored: int) -> _Model:
    """Load a `.weights.h5` file; `load_weights` alone ignores what the model lacks."""
    if stored != model.count_params():
        raise CheckpointError(
            "`weights` must be of the same model, of which `save_weights` keeps no "
            f"description. Received: {str(path)!r} with {stored:,} parameters, for a "
            f"model with {model.count_params():,}"
        )
    model.load_weights(path)
    return model


def _build(
    model_class: type[_Model],
    checkpoint: Checkpoint,
    file: dict[str, Any],
    arguments: dict[str, Any],
    resample: str,
) -> _Model:
    """Build the checkpoint's model, some arguments replaced, and load its weights."""
    path = checkpoint.file.path
    pooling = arguments.get("pooling", file["pooling"])
    theirs = file["classes"]
    wanted = None if pooling is None else arguments.get("classes", theirs)
    if wanted is theirs is None and checkpoint.second_classifiers:
        policy = "drop"
    elif (wanted, pooling) == (theirs, file["pooling"]):
        policy = "load"
    elif wanted is None:
        policy = "drop"
    elif theirs is None:
        policy = "keep"
    else:
        policy = "reset"
    chosen = {key: value for key, value in file.items() if key != "grid"}
    if policy != "load":
        for name in ("representation_size", "class_names", "distilled"):
            chosen.pop(name, None)
    names, given = chosen.get("class_names"), arguments.get("class_names")
    if names and given and list(given) != names:
        _LOG.warning("%s: `class_names` replace the file's, %s, ...", path, names[0])
    chosen.update(arguments)
    chosen.update(_preprocessing(path, file["preprocessing"], arguments, chosen))
    if "heads" in inspect.signature(model_class).parameters and "heads" not in chosen:
        raise ValueError(
            "`heads` must be given: neither the file's arrays nor its config state it. "
            f"Received: {str(path)!r}"
        )
    model = model_class(**chosen)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the report is logged, with the same words
        report = load_open_checkpoint(
            model, checkpoint, file, policy, resample, settings="ignore"
        )
    changed = report.resampled or report.adapted or report.dropped or report.notes
    _LOG.log(logging.WARNING if changed else logging.INFO, "%s", report)
    return model


def _preprocessing(
    path: pathlib.Path,
    described: dict[str, Any] | None,
    arguments: dict[str, Any],
    chosen: dict[str, Any],
) -> dict[str, Any]:
    """Choose `preprocessing` and `include_preprocessing`: the caller's or the config's.

    Args:
        path: Of the checkpoint.
        described: What a config beside it says, as arguments of the layer, or None.
        arguments: The caller's arguments of the model.
        chosen: All of the model's arguments.
    """
    include = arguments.get("include_preprocessing", False)
    if "preprocessing" in arguments:
        ours = arguments["preprocessing"]
        if described is not None and ours is not None:
            theirs = ImagePreprocessing(ours.image_size, **described)
            _warn_of_other_statistics(str(path), theirs, ours)
        return {}
    if not described and not include:
        return {"preprocessing": None}
    if described is None:
        raise ValueError(
            "`preprocessing` must be given with include_preprocessing=True: nothing "
            f"beside the file describes it. Received: {str(path)!r}"
        )
    channels = chosen["channels"]
    statistics = described.get("mean"), described.get("std")
    if any(isinstance(v, tuple) and len(v) != channels for v in statistics):
        if include:
            raise ValueError(
                f"`preprocessing` must be given for {channels} channels. Received: "
                f"{str(path)!r} with mean={statistics[0]}, std={statistics[1]}"
            )
        _LOG.warning("%s: its preprocessing is not for %d channels", path, channels)
        return {"preprocessing": None}
    layer = ImagePreprocessing(chosen.get("image_size", 224), **described)
    return {"preprocessing": layer, "include_preprocessing": include}


def _warn_of_other_statistics(
    name: str, theirs: ImagePreprocessing, ours: ImagePreprocessing
) -> None:
    """Warn if the weights were trained on pixels normalized in another way."""
    if any(
        not np.allclose(getattr(theirs, number), getattr(ours, number), rtol=1e-3)
        for number in ("mean", "std")
    ):
        _LOG.warning(
            "%s: trained on pixels with mean=%s, std=%s; `preprocessing` has mean=%s, "
            "std=%s",
            *(name, theirs.mean, theirs.std, ours.mean, ours.std),
        )


def with_image_size(
    model: _Model,
    image_size: int | tuple[int, int],
    patch_size: int | None = None,
    resample: str = "google",
) -> _Model:
    """Rebuild a model for images of another size and adapt its weights.

    Args:
        model: A `VisionTransformer` or a `ResNet`. It is not changed.
        image_size: (H, W) or one integer, in pixels.
        patch_size: Another side of the patches, by FlexiViT's pseudo-inverse resize;
            the model's own when absent.
        resample: How positions are resampled: `"google"` (as the official code),
            `"timm"`, `"bicubic"`, `"bilinear"`, `"antialiased"`.

    Returns:
        A new model, not compiled.

    Raises:
        ValueError: The size does not fit the patches, or the model's positions are
            relative ones, which belong to their grid.
        TypeError: `model` is another kind of model.
    """
    check_model(model)
    check_choice("resample", resample, tuple(RESIZES))
    changes: dict[str, Any] = {"image_size": image_size_pair(image_size)}
    if patch_size is not None:
        changes["patch_size"] = patch_size
    if patch_size is not None and not hasattr(model, "patch_size"):
        raise ValueError(
            "`patch_size` must be None for a model without patches. "
            f"Received: patch_size={patch_size}, model={model!r}"
        )
    return rebuild(model, resample, **changes)


# Layers above the encoder, which are newly initialized under another pooling.
_TOP = ("attention_pooling/", "fc_norm/", "projection/", "pre_logits/", *HEADS)


def rebuild(model: _Model, resample: str = "google", **changes: Any) -> _Model:
    """Rebuild a model with some arguments replaced and adapt its weights.

    The classifier is newly initialized if its classes, their names or the features that
    it reads change; so are layers above the encoder that the model does not have.

    Args:
        model: A `VisionTransformer` or a `ResNet`. It is not changed.
        resample: How positions are resampled; see `with_image_size`.
        **changes: Arguments of the model. The preprocessing follows `image_size`
            unless it is given.

    Returns:
        A new model, not compiled. Newly initialized and omitted layers are logged.

    Raises:
        ValueError: An argument that the weights would not fit or follow.
    """
    own, changes = model.get_config(), {**changes}
    own_rows = rows(model.options_class)
    if "image_size" in changes:
        size = changes["image_size"] = image_size_pair(changes["image_size"])
        if model.preprocessing is not None:
            changes.setdefault("preprocessing", _for_size(model.preprocessing, size))
    for name, value in changes.items():
        if not own_rows[name].adaptable and value != own[name]:
            raise ValueError(
                f"`{name}` must be {own[name]!r}, as the weights have it. "
                f"Received: {name}={value!r}"
            )
    if model.preprocessing is not None and changes.get("preprocessing") is not None:
        _warn_of_other_statistics(
            model.name, model.preprocessing, changes["preprocessing"]
        )
    if "dtype" in changes:
        changes["dtype"] = keras.dtype_policies.get(changes["dtype"])
    for name in changes.keys() & {"preprocessing", "dtype"}:
        changes[name] = keras.saving.serialize_keras_object(changes[name])
    new: _Model = type(model).from_config({**own, **changes})
    copy_weights(model, new, resample)
    return new


def _for_size(
    layer: ImagePreprocessing, image_size: tuple[int, int]
) -> ImagePreprocessing:
    """Copy of the preprocessing layer for another image size."""
    config = {**layer.get_config(), "image_size": image_size}
    resized: ImagePreprocessing = type(layer).from_config(config)
    return resized


def copy_weights(model: ImageModel, new: ImageModel, resample: str = "google") -> None:
    """Copy weights into a model that differs as `rebuild` allows.

    Raises:
        ValueError: The weights do not fit; the new model keeps its own then.
    """
    arrays = {weight.path: weight for weight in model.weights}
    if not _same_classifier(model, new):
        arrays = {k: v for k, v in arrays.items() if not k.startswith(HEADS)}
    values = {}
    for weight in new.weights:
        path = weight.path
        if path in arrays:
            values[path] = _resized(path, arrays[path], model, new, resample)
        elif path.startswith(_TOP):
            continue
        shape = values[path].shape if path in values else None
        if shape != tuple(weight.shape):
            raise ValueError(
                f"The weights must have {path} of shape {tuple(weight.shape)}. "
                f"Received: {'none' if shape is None else shape}"
            )
    for weight in new.weights:
        if weight.path in values:
            weight.assign(values[weight.path])
    fresh = _layers(new, values)
    left_out = [layer for layer in _layers(model, values) if layer not in fresh]
    for layers, what in ((fresh, "newly initialized"), (left_out, "dropped")):
        for layer in layers:
            _LOG.warning("%s: %s", layer, what)


def _same_classifier(model: ImageModel, new: ImageModel) -> bool:
    """Whether the classifier's weights mean the same in both models."""
    names = (model.class_names, new.class_names)
    return (None in names or names[0] == names[1]) and all(
        getattr(model, name, None) == getattr(new, name, None)
        for name in ("classes", "pooling", "projection", "representation_size")
    )


def _layers(model: ImageModel, values: Arrays) -> list[str]:
    """Names of the layers whose weights are missing in the values."""
    paths = [weight.path for weight in model.weights if weight.path not in values]
    return list(dict.fromkeys(path.partition("/")[0] for path in paths))


def _resized(
    path: str, weight: keras.Variable, model: ImageModel, new: ImageModel, resample: str
) -> Array:
    """Adapt one weight of a model to the new one."""
    array: Array = keras.ops.convert_to_numpy(weight)
    layer, _, name = path.rpartition("/")
    if path in ("embedding/kernel", "stem_conv/kernel") and array.shape[2] == 3:
        array = adapt_channels(array, new.channels)
    if path == "embedding/kernel":
        return resample_patches(array, (new.patch_size,) * 2, patch_method(resample))
    if is_relative_bias(path):
        return resample_relative_bias(array, model.grid, new.grid, resample)
    if "relative" in path and model.grid != new.grid:
        raise ValueError(
            "`model` must not have relative position embeddings, which are tied to its "
            f"grid. Received: {path} for {model.grid} instead of {new.grid}"
        )
    if not layer.startswith("position_embedding"):
        return array
    (height, width), (new_height, new_width) = model.grid, new.grid
    if name == "rows":
        flat = resample_positions(
            array[:, :, 0], (height, 1), (new_height, 1), 0, resample
        )
        return flat[:, :, None]
    if name == "columns":
        flat = resample_positions(array[:, 0], (width, 1), (new_width, 1), 0, resample)
        return flat[:, None]
    if name == "embedding":
        prefix = array.shape[1] - height * width
        return resample_positions(array, model.grid, new.grid, prefix, resample)
    return array
