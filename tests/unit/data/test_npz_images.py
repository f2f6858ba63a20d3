import numpy as np
import pytest

from calibrant.data.sets import load_npz, load_path

RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (20, 6, 5, 3), dtype=np.uint8)
LABELS = np.arange(20) % 2


def save(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_load_npz_with_test_part_reads_both(tmp_path):
    labels = np.arange(20) % 3
    path = save(tmp_path / "my.set.npz", images=COLOUR, labels=labels, test_images=COLOUR[:4], test_labels=[0, 1, 2, 1])
    data = load_npz(path)
    assert (data.name, len(data.train), len(data.test), data.train.num_classes) == ("my.set", 20, 4, 3)
    assert data.train.images.numpy().tobytes() == COLOUR.tobytes()
    assert data.test.labels.tolist() == [0, 1, 2, 1]
    assert data.train.mean == pytest.approx((COLOUR / 255).mean((0, 1, 2)).tolist())
    assert data.test.std == pytest.approx((COLOUR / 255).std((0, 1, 2)).tolist())


@pytest.mark.parametrize(
    ("labels", "tested", "message"),
    [
        (LABELS, [0, 1, 2, 1], r"`labels` must lie in \[0, 1\], got 2"),
        (2 * LABELS, [0, 2, 2, 0], "must have images to train on, got none of class 1"),
    ],
)
def test_load_npz_classes_without_an_image_to_train_on_are_refused_unless_named(tmp_path, labels, tested, message):
    arrays = {"images": COLOUR, "labels": labels, "test_images": COLOUR[:4], "test_labels": tested}
    with pytest.raises(ValueError, match=message):
        load_npz(save(tmp_path / "a.npz", **arrays))
    arrays |= {"test_labels": [0, 0, 0, 0], "class_names": ["a", "b", "c"]}
    assert load_npz(save(tmp_path / "b.npz", **arrays)).train.num_classes == 3


@pytest.mark.parametrize(
    "keys", [("x", "y"), ("train_images", "train_labels"), ("x_train", "y_train")], ids=["short", "medmnist", "keras"]
)
def test_load_npz_other_keys_and_channels_first_are_understood(tmp_path, keys):
    arrays = {keys[0]: COLOUR.transpose(0, 3, 1, 2), keys[1]: LABELS[:, None], "x_test": COLOUR[:2], "y_test": [1, 0]}
    data = load_path(save(tmp_path / "a.npz", **arrays))
    assert data.train.images.numpy().tobytes() == COLOUR.tobytes()
    assert data.train.labels.tolist() == LABELS.tolist()
    floats = load_npz(save(tmp_path / "b.npz", **arrays | {keys[0]: COLOUR / np.float32(255)}))
    assert floats.train.images.equal(data.train.images)


def test_load_npz_grey_images_without_test_part_are_split_by_seed(tmp_path):
    grey = np.arange(20, dtype=np.int64)[:, None, None] * np.ones((1, 16, 16), np.int64)
    path = save(tmp_path / "a.npz", images=grey, labels=LABELS.astype(np.uint8), class_names=["even", "odd", "neither"])
    data = load_npz(path)
    assert data.train.images.shape == (16, 16, 16, 1)
    assert data.test.labels.bincount().tolist() == [2, 2]
    parts = [set(part.images[:, 0, 0, 0].tolist()) for part in (data.train, data.test)]
    assert parts[0] | parts[1] == set(range(20))
    assert not parts[0] & parts[1]
    assert (data.train.num_classes, data.train.class_names[2], data.train.pad) == (3, "neither", 2)
    assert load_npz(path).test.images.equal(data.test.images)
    assert not load_npz(path, seed=1).test.images.equal(data.test.images)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"labels": LABELS}, r"must hold `images` \(or x, train_images, x_train\), found labels"),
        ({"images": COLOUR}, r"must hold `labels` \(or y, train_labels, y_train\), found images"),
        ({"images": COLOUR / 254, "labels": LABELS}, r"or others from 0 to 1, got float64 from 0 to 1.004"),
        (
            {"images": COLOUR.astype(int) * 2, "labels": LABELS},
            "must be whole numbers from 0 to 255 or others from 0 to 1, got int64 from 0 to 510",
        ),
        ({"images": COLOUR.reshape(20, -1), "labels": LABELS}, r"must be \[N, H, W\], .* got \[20, 90\]"),
        ({"images": COLOUR, "labels": LABELS[:3]}, r"`labels` must be class indices \[N\] = \[20\], got \[3\]"),
        ({"images": COLOUR, "labels": LABELS - 1}, r"`labels` must lie in \[0, 1\], got -1"),
        ({"images": COLOUR, "labels": LABELS, "class_names": ["a"]}, r"must lie in \[0, 0\], got 1"),
        ({"images": COLOUR, "labels": LABELS, "test_images": COLOUR}, r"must hold `test_labels` \(or y_test\)"),
        (
            {"images": COLOUR, "labels": LABELS, "test_images": COLOUR[:, :3], "test_labels": LABELS},
            r"of one size, got \[20, 6, 5, 3\] and \[20, 3, 5, 3\]",
        ),
    ],
)
def test_load_npz_wrong_content_is_one_sentence_with_the_file(tmp_path, arrays, sentence):
    path = save(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=sentence) as caught:
        load_npz(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_load_npz_objects_are_never_unpickled(tmp_path):
    class Evil:
        def __reduce__(self):
            return (exec, ("raise SystemExit('the file ran code')",))

    path = tmp_path / "a.npz"
    objects = np.empty(1, dtype=object)
    objects[0] = Evil()
    np.savez(path, images=objects, labels=LABELS)
    with pytest.raises(ValueError, match="`images` must be a plain array, got an array of Python objects"):
        load_npz(path)
