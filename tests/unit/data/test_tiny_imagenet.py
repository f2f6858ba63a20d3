import hashlib
import io
import zipfile

import pytest
from PIL import Image

from calibrant.data import load_path, load_tiny_imagenet, sets

WNIDS = ["n03", "n01", "n02"]


def jpeg(level, mode="RGB"):
    buffer = io.BytesIO()
    Image.new(mode, (64, 64), level if mode == "L" else (level, 0, 255 - level)).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def write_set(root, monkeypatch):
    """Three classes of four training and two validation images; class k has red level 20 + 60 k, the last image is grey."""
    files = {
        "wnids.txt": "\n".join(WNIDS).encode() + b"\n",
        "words.txt": b"n01\tgoldfish, Carassius auratus\nn02\tcrane, wading bird\nn03\tcrane, machine\nn99\tother\n",
    }
    for label, wnid in enumerate(sorted(WNIDS)):
        for i in range(4):
            files[f"train/{wnid}/images/{wnid}_{i}.JPEG"] = jpeg(20 + 60 * label, "L" if (label, i) == (2, 3) else "RGB")
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b"unused"
    lines = []
    for i in range(6):
        label = (5 - i) % 3
        files[f"val/images/val_{i}.JPEG"] = jpeg(20 + 60 * label)
        lines.append(f"val_{i}.JPEG\t{sorted(WNIDS)[label]}\t0\t0\t62\t62")
    files["val/val_annotations.txt"] = "\n".join(lines).encode()
    files["test/images/test_0.JPEG"] = jpeg(0)
    for name, content in files.items():
        path = root / "tiny-imagenet-200" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    monkeypatch.setattr(sets, "TINY_COUNTS", (3, 4, 2))
    return root / "tiny-imagenet-200"


def pack(folder, path, monkeypatch, **further):
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, f"tiny-imagenet-200/{file.relative_to(folder)}")
        for name, content in further.items():
            archive.writestr(name.replace("_up_", "../"), content)
    monkeypatch.setattr(sets, "TINY_MD5", hashlib.md5(path.read_bytes()).hexdigest())


def test_load_tiny_imagenet_reads_folder_and_archive_alike(tmp_path, monkeypatch):
    folder = write_set(tmp_path, monkeypatch)
    data = load_tiny_imagenet(tmp_path)
    assert (len(data.train), len(data.test), data.train.num_classes) == (12, 6, 3)
    assert data.train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert data.test.labels.tolist() == [2, 1, 0, 2, 1, 0]
    assert data.train.images.shape == (12, 64, 64, 3)
    # JPEG at quality 95 keeps a flat colour to a few levels.
    red = data.test.images[:, 30, 30, 0].int() - 20 - 60 * data.test.labels
    assert int(red.abs().max()) <= 5
    grey = data.train.images[11, 30, 30].int()
    assert int(grey.max() - grey.min()) == 0
    assert (data.train.pad, data.train.flip, data.train.mean) == (4, True, (0.485, 0.456, 0.406))
    assert data.train.class_names == ("goldfish", "crane, wading bird", "crane, machine")
    packed = tmp_path / "packed"
    packed.mkdir()
    pack(folder, packed / "tiny-imagenet-200.zip", monkeypatch)
    again = load_tiny_imagenet(packed)
    assert again.train.images.equal(data.train.images)
    assert again.test.labels.equal(data.test.labels)
    assert load_tiny_imagenet(folder).test.images.equal(data.test.images)
    assert load_path(folder).name == "tiny-imagenet"


def test_load_tiny_imagenet_missing_or_other_archive_says_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"calibrant data fetch tiny-imagenet`, or .* `--data-root`"):
        load_tiny_imagenet(tmp_path)
    (tmp_path / "tiny-imagenet-200.zip").write_bytes(b"other")
    with pytest.raises(ValueError, match=r"must be the published file \(MD5 90528d7ca1a48142e341f4ef8d21d0de\)"):
        load_tiny_imagenet(tmp_path)


def test_load_tiny_imagenet_incomplete_copies_are_refused(tmp_path, monkeypatch):
    folder = write_set(tmp_path, monkeypatch)
    notes = folder / "val" / "val_annotations.txt"
    whole = notes.read_text()
    for content, said in ((whole.rpartition("\n")[0], "val_5.JPEG"), (whole.replace("n02", "n77"), "n77"), ("x", "ValueError")):
        notes.write_text(content)
        with pytest.raises(ValueError, match=f"must hold wnids.txt, words.txt and all of val/, got .*{said}"):
            load_tiny_imagenet(tmp_path)
    notes.write_text(whole)
    (folder / "val/images/val_3.JPEG").unlink()
    with pytest.raises(ValueError, match=r"val_3.JPEG: must be a picture"):
        load_tiny_imagenet(tmp_path)
    (folder / "wnids.txt").write_text("n01\nn02\nn03\nn04\n")
    with pytest.raises(ValueError, match="wnids.txt must name 3 classes, got 4"):
        load_tiny_imagenet(tmp_path)
