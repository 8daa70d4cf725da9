"""Resampling of position embeddings and patch kernels, and other input channels."""

import dataclasses
from collections.abc import Callable

import numpy as np

from keras_vit.checks import check_choice
from keras_vit.typing import Array


def linear(distance: Array) -> Array:
    """Triangle (bilinear) kernel, of distances in pixels of the source."""
    weights: Array = np.maximum(1 - distance, 0)
    return weights


def cubic(a: float) -> Callable[[Array], Array]:
    """Keys' cubic convolution of slope `a` at distance 1 (Keys 1981, equation 4)."""

    def kernel(x: Array) -> Array:
        near = (a + 2) * x**3 - (a + 3) * x**2 + 1
        far = a * (x**3 - 5 * x**2 + 8 * x - 4)
        return np.where(x < 1, near, np.where(x < 2, far, 0))

    return kernel


@dataclasses.dataclass(frozen=True)
class Resize:
    """A resize of one axis: its kernel and its convention.

    Args:
        kernel: Weight of a source pixel by its distance.
        corners: Whether the first and last pixels' centers meet, or the borders.
        antialias: Whether the kernel widens when shrinking; what is left of it at a
            border is then normalized, else the border pixel is repeated.
    """

    kernel: Callable[[Array], Array]
    corners: bool = False
    antialias: bool = False


RESIZES = {
    "google": Resize(linear, corners=True),
    "timm": Resize(cubic(-0.5), antialias=True),
    "bicubic": Resize(cubic(-0.75)),
    "bilinear": Resize(linear),
    "antialiased": Resize(linear, antialias=True),
}
PATCH_RESIZES = {
    "bilinear": RESIZES["antialiased"],
    "timm": RESIZES["timm"],
}


def resize_matrix(old: int, new: int, resize: Resize) -> Array:
    """Matrix [new, old] that resizes a vector of `old` pixels to `new`."""
    if resize.corners:
        centers = np.arange(new) * ((old - 1) / max(new - 1, 1))
    else:
        centers = (np.arange(new) + 0.5) * old / new - 0.5
    beyond = 0 if resize.antialias else 2  # the reach of the widest kernel
    pixels = np.arange(-beyond, old + beyond)
    scale = max(old / new, 1) if resize.antialias else 1
    weights = resize.kernel(np.abs(centers[:, None] - pixels) / scale)
    matrix: Array = weights[:, beyond : old + beyond].copy()
    matrix[:, 0] += weights[:, :beyond].sum(1)
    matrix[:, -1] += weights[:, old + beyond :].sum(1)
    matrix /= matrix.sum(1, keepdims=True)
    return matrix


def resample_positions(
    embedding: Array,
    old_grid: tuple[int, int],
    new_grid: tuple[int, int],
    prefix_tokens: int = 0,
    method: str = "google",
) -> Array:
    """Resample position embeddings to another grid of patches.

    Args:
        embedding: [1, prefix + N, D], rows of patches after the prefix tokens.
        old_grid: (rows, columns) of its patches, with the product N.
        new_grid: (rows, columns) wanted.
        prefix_tokens: Number of tokens before the patches, which stay as they are:
            class token, registers.
        method: `"google"`, linear between the corners, what the papers' fine-tuning
            does by `scipy.ndimage.zoom` of order 1 (which at a few sizes, such as
            28 -> 48, leaves zeros in the last row and column by a rounding error;
            this does not); `"timm"`, bicubic and antialiased; `"bicubic"`, what
            Hugging Face, DeiT and MAE do; `"bilinear"`, what timm does when it reads
            .npz files; `"antialiased"`, bilinear and antialiased, what SigLIP 2 does
            for images of any resolution.

    Returns:
        [1, prefix + N', D] of the same type; for the same grid the array itself.

    Raises:
        ValueError: Sizes that do not fit each other, or an unknown method.
    """
    check_choice("method", method, tuple(RESIZES))
    if min(*old_grid, *new_grid) < 1:
        raise ValueError(
            "`old_grid` and `new_grid` must be of at least (1, 1). "
            f"Received: old_grid={old_grid}, new_grid={new_grid}"
        )
    batch, length, width = embedding.shape
    if length != prefix_tokens + old_grid[0] * old_grid[1]:
        raise ValueError(
            "`embedding` must have one row for each prefix token and each patch. "
            f"Received: embedding.shape={embedding.shape}, old_grid={old_grid}, "
            f"prefix_tokens={prefix_tokens}"
        )
    if tuple(old_grid) == tuple(new_grid):
        return embedding
    prefix, patches = np.split(embedding, [prefix_tokens], axis=1)
    rows, columns = (
        resize_matrix(old, new, RESIZES[method])
        for old, new in zip(old_grid, new_grid, strict=True)
    )
    image = patches.reshape(batch, *old_grid, width)
    resized = _resize(rows, columns, image).reshape(batch, -1, width)
    return np.concatenate([prefix, resized.astype(embedding.dtype)], axis=1)


def resample_patches(
    kernel: Array, new_size: tuple[int, int], method: str = "bilinear"
) -> Array:
    """Resample a patch embedding by the pseudo-inverse of a resize (FlexiViT).

    The new kernel gives on resized patches the tokens that the old one gave on the
    patches; exactly so where patches grow (FlexiViT, arXiv:2212.08013, section 3.4).

    Args:
        kernel: [P, Q, C, D].
        new_size: (P', Q').
        method: The resize: `"bilinear"`, antialiased, of FlexiViT; `"timm"`, bicubic
            and antialiased.

    Returns:
        [P', Q', C, D] of the same type; for the same size the array itself.

    Raises:
        ValueError: A size below 1, or an unknown method.
    """
    check_choice("method", method, tuple(PATCH_RESIZES))
    if min(new_size) < 1:
        raise ValueError(
            f"`new_size` must be at least (1, 1). Received: new_size={new_size}"
        )
    if kernel.shape[:2] == tuple(new_size):
        return kernel
    # B of the whole patch is the Kronecker product of those of rows and columns, and
    # so is its pseudo-inverse.
    rows, columns = (
        np.linalg.pinv(resize_matrix(old, new, PATCH_RESIZES[method]).T)
        for old, new in zip(kernel.shape, new_size, strict=False)
    )
    resized: Array = _resize(rows, columns, kernel[None])[0]
    return resized.astype(kernel.dtype)


def resample_relative_bias(
    table: Array,
    old_grid: tuple[int, int],
    new_grid: tuple[int, int],
    method: str = "google",
) -> Array:
    """Resample BEiT's table of relative positions to another grid of patches.

    Args:
        table: [(2 h - 1) (2 w - 1) + 3, A]: offsets of rows and columns, then those
            between class token and patches.
        old_grid: (h, w).
        new_grid: (h', w').
        method: See `resample_positions`; `"bilinear"` is what transformers does. timm
            spaces the offsets as a geometric progression, which none of them is.

    Returns:
        [(2 h' - 1) (2 w' - 1) + 3, A] of the same type; for the same grid the table.
    """
    check_choice("method", method, tuple(RESIZES))
    if tuple(old_grid) == tuple(new_grid):
        return table
    sides = [
        (2 * old - 1, 2 * new - 1) for old, new in zip(old_grid, new_grid, strict=True)
    ]
    rows, columns = (resize_matrix(old, new, RESIZES[method]) for old, new in sides)
    heads = table.shape[1]
    image = table[:-3].reshape(1, sides[0][0], sides[1][0], heads)
    resized = _resize(rows, columns, image).reshape(-1, heads).astype(table.dtype)
    return np.concatenate([resized, table[-3:]])


def patch_method(resample: str) -> str:
    """The method of `resample_patches` beside one of `resample_positions`."""
    return resample if resample in PATCH_RESIZES else "bilinear"


def adapt_channels(kernel: Array, channels: int) -> Array:
    """Adapt the kernel of a first convolution to another number of channels.

    One channel gets the sum over red, green and blue: a gray image gives what its
    three equal channels gave. More repeat them, scaled by 3 / `channels` so that the
    features keep their size. timm does the same.

    Args:
        kernel: [P, Q, 3, D].
        channels: Channels C wanted.

    Returns:
        [P, Q, C, D] of the same type; for the same channels the array itself.

    Raises:
        ValueError: Other than three channels are to become another number.
    """
    if kernel.shape[2] == channels:
        return kernel
    if kernel.shape[2] != 3 or channels < 1:
        raise ValueError(
            "`kernel` must have 3 channels to be adapted to one or more. "
            f"Received: kernel.shape={kernel.shape}, channels={channels}"
        )
    adapted: Array
    if channels == 1:
        adapted = kernel.sum(2, keepdims=True, dtype="float64")
    else:
        repeated = np.take(kernel, np.arange(channels) % 3, axis=2)
        adapted = repeated.astype("float64") * (3 / channels)
    return adapted.astype(kernel.dtype)


def _resize(rows: Array, columns: Array, image: Array) -> Array:
    """Resize [B, H, W, ...] -> [B, H', W', ...] in float64."""
    path = "ih,jw,bhw...->bij..."
    resized: Array = np.einsum(
        path, rows, columns, image.astype("float64"), optimize=True
    )
    return resized
