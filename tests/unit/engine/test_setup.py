"""Dividing small and awkward sets: what a method does not need is not asked for."""

import pytest
import torch

from calibrant.data.image_set import DataSet, ImageSet
from calibrant.engine.recipe import DataPart
from calibrant.engine.setup import divide, load_data


def images(n: int) -> DataSet:
    part = ImageSet(torch.zeros(n, 4, 4, 1, dtype=torch.uint8), torch.arange(n) % 2, 2, (0.5,), (0.25,))
    return DataSet("small", part, part)


@pytest.mark.parametrize(("with_meta", "settings"), [(False, ""), (True, " and `--set data.meta=1`")])
def test_divide_too_few_images_are_counted(with_meta: bool, settings: str) -> None:
    with pytest.raises(ValueError, match="at least 10 images") as raised:
        divide(images(6), DataPart(), seed=0, with_meta=with_meta)
    assert str(raised.value) == (
        "train: `data` must hold at least 10 images to train on, for a tenth of them is held out, got 6. Add images, or say "
        f"how many to hold out with `--set data.val=1`{settings}."
    )


def test_divide_few_images_with_a_part_said_are_divided() -> None:
    found = divide(images(6), DataPart(val=1), seed=0, with_meta=False)
    assert (len(found.train), len(found.val), found.meta) == (5, 1, None)
    found = divide(images(6), DataPart(val=1, meta=2), seed=0, with_meta=True)
    assert found.meta is not None
    assert (len(found.train), len(found.val), len(found.meta)) == (3, 1, 2)
    assert len(divide(images(10), DataPart(), seed=0, with_meta=True).train) == 8


def test_divide_counts_the_meta_part_where_it_is_used_or_kept_out_only() -> None:
    part = DataPart(val=95)
    assert len(divide(images(100), part, seed=0, with_meta=False).train) == 5
    for options in ({"with_meta": True}, {"with_meta": False}):
        kept = DataPart(val=95, same_data=not options["with_meta"])
        with pytest.raises(ValueError, match=r"`val` \+ `meta` must leave examples to train on, got 95 \+ 10 of 100\."):
            divide(images(100), kept, seed=0, **options)
    with pytest.raises(ValueError, match=r"`val` must leave examples to train on, got 100 of 100\. Hold out fewer\."):
        divide(images(100), DataPart(val=100), seed=0, with_meta=False)


def test_load_data_of_a_path_where_nothing_lies_says_that_it_may_be_one() -> None:
    with pytest.raises(ValueError, match="unknown data set 'photos'.*nothing lies at 'photos' here"):
        load_data(DataPart(name="photos"))
