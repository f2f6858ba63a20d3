import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from calibrant.data.image_set import held_out_rows
from calibrant.data.sets import common_form, decode, is_path, load_folder, load_path


def picture(path, level, size=(6, 4), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, (level, 10, 20) if mode == "RGB" else level).save(path)


def two_parts(root):
    for part, count in (("train", 3), ("test", 2)):
        for label, name in enumerate(("ant", "bee")):
            for i in range(count):
                picture(root / part / name / f"{i}.png", 100 * label + i)
    return root


def test_load_folder_with_test_part_keeps_classes_order_and_size(tmp_path):
    root = two_parts(tmp_path / "insects")
    picture(root / "val" / "wasp" / "0.png", 3)
    (root / "train" / "ant" / "notes.txt").write_text("no picture")
    (root / "train" / ".cache").mkdir()
    picture(root / "train" / "bee" / ".hidden" / "0.png", 3)
    picture(root / "train" / "bee" / "more" / "9.PNG", 109)
    data = load_folder(root)
    assert (data.name, data.train.class_names, data.train.num_classes) == ("insects", ("ant", "bee"), 2)
    assert data.train.images.shape == (7, 4, 6, 3)
    assert data.train.images[:, 0, 0, 0].tolist() == [0, 1, 2, 100, 101, 102, 109]
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert data.test.images[:, 2, 3].tolist() == [[0, 10, 20], [1, 10, 20], [100, 10, 20], [101, 10, 20]]
    assert data.test.labels.tolist() == [0, 0, 1, 1]
    assert data.train.mean == pytest.approx((415 / 7 / 255, 10 / 255, 20 / 255))
    assert data.train.std[1:] == (1.0, 1.0)
    assert data.test.mean == data.train.mean
    shutil.rmtree(root / "test")
    shutil.rmtree(root / "val" / "wasp")
    for name in ("ant", "bee"):
        picture(root / "val" / name / "0.png", 3)
    assert len(load_folder(root).test) == 2


def test_load_folder_without_test_part_holds_out_a_fifth_of_each_class_by_seed(tmp_path):
    for label, name in enumerate(("a", "b", "c")):
        for i in range(10):
            picture(tmp_path / name / f"{i}.png", 20 * label + i, mode="L")
    data, again, other = load_folder(tmp_path), load_path(tmp_path), load_folder(tmp_path, seed=1)
    assert data.train.images.shape == (24, 4, 6, 1)
    assert data.test.labels.bincount().tolist() == [2, 2, 2]
    levels = [set(part.images[:, 0, 0, 0].tolist()) for part in (data.train, data.test)]
    assert not levels[0] & levels[1]
    assert len(levels[0] | levels[1]) == 30
    assert again.test.images.equal(data.test.images)
    assert not other.test.images.equal(data.test.images)


def test_load_folder_other_sizes_are_scaled_to_cover_and_cut_to_the_middle(tmp_path):
    two_parts(tmp_path)
    wide = np.zeros((4, 12, 3), np.uint8)
    wide[:, 4:8] = 200
    Image.fromarray(wide).save(tmp_path / "train" / "ant" / "wide.png")
    data = load_folder(tmp_path)
    assert data.train.size == (4, 4)
    assert data.train.images[3].unique().tolist() == [200]
    large = load_folder(tmp_path, size=8)
    assert large.train.size == (8, 8)
    assert large.train.images[0, 4, 4].tolist() == [0, 10, 20]


def test_common_form_large_pictures_of_one_size_are_brought_to_224(tmp_path):
    picture(tmp_path / "a.png", 7, size=(300, 400))
    picture(tmp_path / "b.jpg", 7, size=(300, 400))
    pictures = [tmp_path / name for name in ("a.png", "b.jpg")]
    form = common_form(pictures)
    assert form == (224, 224, 3)
    images = decode(pictures, form)
    # The JPEG has lost a level or two.
    assert int((images[0].int() - images[1].int()).abs().max()) <= 3


def test_decode_modes_become_grey_or_colour(tmp_path):
    picture(tmp_path / "grey.png", 9, mode="L")
    picture(tmp_path / "bits.png", 1, mode="1")
    Image.new("RGBA", (6, 4), (1, 2, 3, 128)).save(tmp_path / "alpha.png")
    Image.new("RGB", (6, 4), (4, 5, 6)).convert("P").save(tmp_path / "palette.png")
    files = [tmp_path / f"{name}.png" for name in ("grey", "bits", "alpha", "palette")]
    assert common_form(files[:2]) == (4, 6, 1)
    assert decode(files[:2], common_form(files[:2]))[:, 0, 0, 0].tolist() == [9, 255]
    assert common_form(files)[2] == 3
    assert decode(files, common_form(files))[:3, 0, 0].tolist() == [[9, 9, 9], [255, 255, 255], [1, 2, 3]]


def test_load_folder_files_at_fault_are_named(tmp_path, monkeypatch):
    root = two_parts(tmp_path)
    path = root / "train" / "ant" / "z.png"
    whole = (root / "train" / "ant" / "0.png").read_bytes()
    for content in (b"GIF89a, or not", whole[:-30]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"z.png: must be a picture \(PNG, "):
            load_folder(root)
    Image.fromarray(np.full((4, 6), 40_000, np.uint16)).save(path)
    with pytest.raises(ValueError, match=r"z.png: must be a picture .* 8 bits a channel"):
        load_folder(root)
    path.unlink()
    # A header that claims too much is refused before anything is decoded.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    with pytest.raises(ValueError, match=r"0.png: must be a picture .* too large"):
        load_folder(root)


def test_load_folder_of_another_layout_says_what_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="must be a folder of class folders"):
        load_folder(tmp_path / "nothing")
    with pytest.raises(ValueError, match="two or more classes, got none"):
        load_folder(tmp_path)
    picture(tmp_path / "a" / "0.png", 1)
    with pytest.raises(ValueError, match="two or more classes, got a"):
        load_folder(tmp_path)
    (tmp_path / "b").mkdir()
    with pytest.raises(ValueError, match=r"b: must hold pictures"):
        load_folder(tmp_path)
    picture(tmp_path / "b" / "0.png", 1)
    with pytest.raises(ValueError, match="must be images to train and to test on"):
        load_folder(tmp_path)


def test_load_folder_test_part_absent_or_of_other_classes_is_named(tmp_path):
    root = two_parts(tmp_path)
    (root / "test" / "bee").rename(root / "test" / "bees")
    with pytest.raises(ValueError, match=r"class .*test 'bees'\. Did you mean 'bee'"):
        load_folder(root)
    shutil.rmtree(root / "test")
    assert len(load_folder(root).test) == len(load_folder(root / "train").test) == 2


def test_held_out_rows_leave_and_take_one_of_each_class():
    labels = torch.tensor([2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1])
    kept, held = held_out_rows(labels, seed=3)
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(13))
    assert labels[held].bincount(minlength=3).tolist() == [1, 2, 0]
    assert held_out_rows(labels, seed=3)[1].equal(held)


def test_is_path_and_load_path_tell_names_from_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not is_path("photos")
    (tmp_path / "photos").mkdir()
    assert is_path("photos")
    (tmp_path / "set.txt").write_text("x")
    with pytest.raises(FileNotFoundError, match="must be a folder of class folders or an .npz of images"):
        load_path("./set.txt")
    assert is_path("set.txt")


def test_load_path_size_is_for_pictures_of_class_folders_alone(tmp_path):
    for name in ("a", "b"):
        for number in range(2):
            picture(tmp_path / "set" / name / f"{number}.png", 10 * number)
    assert load_path(tmp_path / "set", size=3).train.size == (3, 3)
    with pytest.raises(ValueError, match="`size` must be a whole number >= 1, got 0"):
        load_path(tmp_path / "set", size=0)
    with pytest.raises(ValueError, match="x.npz: `size` must be left out, got 3"):
        load_path(tmp_path / "x.npz", size=3)
