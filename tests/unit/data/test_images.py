import hashlib
import pickle
import tarfile
from dataclasses import replace

import numpy as np
import pytest
import torch

from calibrant.data import DataSet, sets
from calibrant.data import image_set as module
from calibrant.data.image_set import (
    ImageSet,
    crop_batch,
    difference,
    draw_epoch,
    fingerprint,
    normalize,
    pad_images,
    split_indices,
)
from calibrant.data.synthetic import load_mixture


def small_set(n=6, **options):
    images = torch.arange(n * 4 * 4, dtype=torch.uint8).view(n, 4, 4, 1)
    return ImageSet(images, torch.arange(n) % 3, 3, (0.5,), (0.25,), **options)


def test_image_set_pick_keeps_order_and_facts():
    picked = small_set(class_names=("a", "b", "c")).pick([4, 1])
    assert picked.labels.tolist() == [1, 1]
    assert picked.images[0, 0, 0, 0] == 64
    assert picked.class_names == ("a", "b", "c")


def test_image_set_wrong_content_is_named():
    good = small_set()
    with pytest.raises(ValueError, match=r"`images` must be uint8 \[N, H, W, channels\], got torch.float32"):
        ImageSet(good.images.float(), good.labels, 3, (0.5,), (0.25,))
    with pytest.raises(ValueError, match=r"`labels` must lie in \[0, 1\], got 2"):
        ImageSet(good.images, good.labels, 2, (0.5,), (0.25,))
    with pytest.raises(ValueError, match="`mean` and `std` must have 1 entries"):
        ImageSet(good.images, good.labels, 3, (0.5, 0.5), (0.25, 0.25))


def test_split_indices_are_disjoint_complete_and_share_validation():
    train, val, meta = split_indices(100, val=10, meta=20, seed=3)
    plain, same, none = split_indices(100, val=10, meta=0, seed=3)
    assert sorted(torch.cat([train, val, meta]).tolist()) == list(range(100))
    assert val.equal(same)
    assert not len(none)
    assert sorted(plain.tolist()) == sorted(torch.cat([train, meta]).tolist())
    assert not val.equal(split_indices(100, val=10, meta=20, seed=4)[1])


def test_crop_batch_moves_and_mirrors_by_hand():
    image = torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8).view(1, 2, 2, 1)
    padded = pad_images(image, 1)
    index = torch.zeros(3, dtype=torch.int64)
    crops = crop_batch(
        padded, index, torch.tensor([1, 0, 1]), torch.tensor([1, 1, 1]), torch.tensor([False, False, True]), size=(2, 2)
    )
    assert crops[..., 0].tolist() == [[[1, 2], [3, 4]], [[0, 0], [1, 2]], [[2, 1], [4, 3]]]


def test_draw_epoch_depends_on_seed_and_epoch_alone():
    first, again, other = (draw_epoch(50, pad=4, flip=True, seed=1, epoch=e) for e in (5, 5, 6))
    assert first.equal(again)
    assert not first[0].equal(other[0])
    assert sorted(first[0].tolist()) == list(range(50))
    assert int(first[1:3].min()) >= 0
    assert int(first[1:3].max()) <= 8
    assert not draw_epoch(50, pad=4, flip=False, seed=1, epoch=5)[3].any()


def test_normalize_gives_channels_first_standard_scores():
    out = normalize(torch.tensor([[[[255, 0]]]], dtype=torch.uint8), torch.tensor([0.5, 0.5]), torch.tensor([0.25, 0.5]))
    assert out.shape == (1, 2, 1, 1)
    assert out.flatten().tolist() == [2.0, -1.0]


def test_load_mixture_posterior_is_calibrated_and_beats_chance():
    data = load_mixture(n_train=10, n_test=20_000)
    posterior = data.test.posterior
    assert torch.allclose(posterior.sum(1), torch.ones(20_000, dtype=torch.float64))
    confidence, predicted = posterior.max(1)
    # 20,000 draws: the standard error of the accuracy is 0.003.
    assert abs(float((predicted == data.test.labels).double().mean() - confidence.mean())) < 0.01
    assert 0.6 < float(confidence.mean()) < 0.9


def fake_cifar10(folder, monkeypatch):
    folder.mkdir()
    rng = np.random.default_rng(0)
    sums = {}
    for i, name in enumerate(["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]):
        content = {b"data": rng.integers(0, 256, (4, 3072), dtype=np.uint8), b"labels": [i, 1, 2, 3]}
        (folder / name).write_bytes(pickle.dumps(content, protocol=3))
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": [str(i).encode() for i in range(10)]}, protocol=3))
    for file in folder.iterdir():
        sums[file.name] = hashlib.md5(file.read_bytes()).hexdigest()
    monkeypatch.setattr(sets, "CIFAR10_FILES", sums)
    return sums


def test_load_cifar10_reads_folder_and_archive_alike(tmp_path, monkeypatch):
    folder = tmp_path / "cifar-10-batches-py"
    fake_cifar10(folder, monkeypatch)
    data = sets.load_cifar10(tmp_path)
    assert data.train.images.shape == (20, 32, 32, 3)
    assert data.train.labels[:8].tolist() == [0, 1, 2, 3, 1, 1, 2, 3]
    with (folder / "test_batch").open("rb") as file:
        raw = pickle.load(file)[b"data"]
    assert data.test.images[1, 5, 7].tolist() == raw[1].reshape(3, 32, 32)[:, 5, 7].tolist()
    packed = tmp_path / "packed"
    packed.mkdir()
    with tarfile.open(packed / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(folder, arcname="cifar-10-batches-py")
    assert sets.load_cifar10(packed).train.images.equal(data.train.images)


def archive_of(folder, path, *names):
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            tar.add(folder / name, arcname=f"cifar-10-batches-py/{name}")
    return path


def test_load_cifar10_missing_or_changed_files_say_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="calibrant data fetch cifar10"):
        sets.load_cifar10(tmp_path)
    folder = tmp_path / "cifar-10-batches-py"
    fake_cifar10(folder, monkeypatch)
    path = archive_of(folder, tmp_path / "packed" / "cifar-10-python.tar.gz", *(set(sets.CIFAR10_FILES) - {"batches.meta"}))
    with pytest.raises(ValueError, match="batches.meta: must be the published file"):
        sets.load_cifar10(path.parent)
    for content in (path.read_bytes()[:-3000], b"<html>not found</html>"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="must be the published file .* fetch it again"):
            sets.load_cifar10(path.parent)
    (folder / "test_batch").write_bytes(b"other")
    with pytest.raises(ValueError, match="test_batch: must be the published file"):
        sets.load_cifar10(tmp_path)
    (folder / "data_batch_3").unlink()
    for root in (tmp_path, folder):
        with pytest.raises(ValueError, match="must be the published file .* got another one or none"):
            sets.load_cifar10(root)


class Evil:
    def __reduce__(self):
        return (exec, ("raise SystemExit('the file ran code')",))


def test_load_cifar10_forged_pickle_runs_nothing(tmp_path, monkeypatch):
    folder = tmp_path / "cifar-10-batches-py"
    fake_cifar10(folder, monkeypatch)
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": Evil()}))
    with pytest.raises(ValueError, match="batches.meta: must be the published file"):
        sets.load_cifar10(tmp_path)


def images(n: int, *, first: int = 0, names: tuple[str, ...] | None = ("ant", "bee")) -> ImageSet:
    pixels = (first + torch.arange(n * 12)).remainder(251).to(torch.uint8).view(n, 2, 2, 3)
    return ImageSet(pixels, torch.arange(n) % 2, 2, (0.5,) * 3, (0.5,) * 3, class_names=names)


DATA = DataSet("insects", images(10), images(4, first=7))


def test_fingerprint_counts_and_hashes_are_those_of_the_bytes_on_any_machine():
    assert fingerprint(DATA) == {
        "num_classes": 2,
        "train_examples": 10,
        "test_examples": 4,
        "class_names": "cb375e27548ea219",
        "train": "9f862dd7f4258aaaf60f4e6010620674",
        "test": "19788f9dbcca22cb22df00dc53494841",
    }


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (replace(DATA, test=images(5, first=7)), "4 and 5 test images"),
        (replace(DATA, test=replace(DATA.test, num_classes=3)), "2 and 3 classes"),
        (replace(DATA, test=replace(DATA.test, class_names=("ant", "wasp"))), "other names of classes"),
        (replace(DATA, test=replace(DATA.test, labels=1 - DATA.test.labels)), "other test images or labels"),
        (replace(DATA, train=images(10, first=1)), "other images or labels to train on"),
        (replace(DATA, train=DATA.train.pick([1, 0, *range(2, 10)])), "other images or labels to train on"),
        (DataSet("elsewhere", DATA.train, replace(DATA.test, mean=(0.1,) * 3)), ""),
    ],
)
def test_difference_says_what_is_not_the_same(changed, words):
    assert difference(fingerprint(DATA), fingerprint(changed)) == words


def test_difference_passes_over_what_was_not_kept():
    assert difference({}, fingerprint(DATA)) == ""
    assert difference({"test_examples": 4}, fingerprint(DATA)) == ""
    assert difference(fingerprint(DATA), {"test_examples": 9}) == "4 and 9 test images"


def test_fingerprint_of_several_blocks_sees_a_change_at_either_end_of_one(monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 16)
    for place in (0, 15, 16, -1):
        changed = images(10)
        changed.images.view(-1)[place] += 1
        assert difference(fingerprint(DATA), fingerprint(replace(DATA, train=changed))) == "other images or labels to train on"
