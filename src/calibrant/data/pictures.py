"""Picture files into bytes: decoding many of them, in threads, to one size. Which files belong to a set is not known here."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".gif", ".tif", ".tiff")
# Only these decoders are let loose on a file, whatever its name; some of the others call programs.
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "PPM", "GIF", "TIFF")
_GREY, _COLOUR = ("1", "L", "LA"), ("RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr", "HSV", "LAB")
# Pictures of one size are kept as they are up to the first; what has to be scaled gets at most the second.
_KEPT, _SCALED = 256, 224
# Threads, and pictures that each takes at a time: handing them out one by one costs a third of the time.
_WORKERS, _RUN = 8, 256


class Picture(NamedTuple):
    """A file that holds a picture: its name for messages, and how to open it."""

    name: str
    open: Callable[[], BinaryIO]

    @classmethod
    def from_path(cls, path: Path) -> Picture:
        """A picture in a file of its own."""
        return cls(str(path), lambda: path.open("rb"))


class Form(NamedTuple):
    """The one form that all pictures of a set are brought to."""

    height: int
    width: int
    channels: int


def common_form(pictures: Sequence[Picture], *, size: int | None = None) -> Form:
    """Choose the form of a set from the headers of its files.

    Pictures of one size, at most 256 pixels a side, are kept as they are. Others become squares: the shorter side is scaled
    to S and the middle is cut out, where S is the median of the shorter sides, at most 224. One channel if all are grey.

    Args:
        pictures: The files.
        size: S, if it is to be another one.

    Returns:
        Height, width and channels. Raises ``ValueError`` on a file that is no picture.
    """
    with warnings.catch_warnings():
        # A header that promises more pixels than memory holds is refused before anything is decoded.
        warnings.simplefilter("error")
        headers = [_with(picture, lambda image: (*image.size, _is_grey(image))) for picture in pictures]
    channels = 1 if all(grey for *_, grey in headers) else 3
    sizes = {(height, width) for width, height, _ in headers}
    if size is None and len(sizes) == 1 and max(height_width := next(iter(sizes))) <= _KEPT:
        return Form(*height_width, channels)
    side = size or min(_SCALED, median_low([min(width, height) for width, height, _ in headers]))
    return Form(side, side, channels)


def decode(pictures: Sequence[Picture], form: Form) -> Tensor:
    """Read pictures, each brought to ``form``.

    Args:
        pictures: The files.
        form: Height, width and channels; another size is scaled to cover it (antialiased) and cut to its middle.

    Returns:
        ``[N, height, width, channels]``, uint8. Raises ``ValueError`` that names the first file that is no picture.
    """
    images = np.empty((len(pictures), *form), dtype=np.uint8)

    def fill(start: int) -> None:
        for place in range(start, min(start + _RUN, len(pictures))):
            images[place] = _with(pictures[place], lambda image: _bring(image, form))

    # Decoding leaves Python's lock. A JPEG of 64x64 pixels takes 0.11 ms of one core.
    with ThreadPoolExecutor(min(_WORKERS, os.cpu_count() or 1)) as pool:
        for _ in pool.map(fill, range(0, len(pictures), _RUN)):
            pass
    return torch.from_numpy(images)


def _with(picture: Picture, use: Callable[[Image], T]) -> T:
    from PIL import Image

    try:
        with picture.open() as handle, Image.open(handle, formats=_FORMATS) as image:
            if image.mode not in _GREY + _COLOUR:
                raise _WrongModeError(image.mode)
            return use(image)
    except _WrongModeError as error:
        raise ValueError(f"{picture.name}: must have 8 bits a channel, got mode {error}. Convert it first.") from None
    except Exception as error:
        kinds = ", ".join(_FORMATS)
        raise ValueError(
            f"{picture.name}: must be a picture ({kinds}), got a file that is damaged, too large or of another kind. "
            "Repair or remove it."
        ) from error


class _WrongModeError(Exception):
    pass


def _is_grey(image: Image) -> bool:
    return image.mode in _GREY


def _bring(image: Image, form: Form) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    from PIL import ImageOps

    mode = "L" if form.channels == 1 else "RGB"
    wanted = (form.width, form.height)
    if image.size != wanted:
        # JPEG can be decoded at a fraction of its size, which spares most of the work on photographs.
        image.draft(mode, wanted)
        image = ImageOps.fit(image.convert(mode), wanted)
    return np.asarray(image.convert(mode), dtype=np.uint8).reshape(form)
