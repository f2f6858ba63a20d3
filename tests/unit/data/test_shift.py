import numpy as np
import pytest
import torch

from calibrant.data.synthetic import CORRUPTIONS, SEVERITIES, corrupt, load_mixture, shifted_sets


def images(n=3, height=12, width=9, channels=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, height, width, channels), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_corrupt_noise_has_the_published_spread(severity):
    grey = torch.full((2500, 5, 5, 2), 128, dtype=torch.uint8)
    noise = corrupt(grey, kind="gaussian_noise", severity=severity).double() / 255 - 128 / 255
    # 125,000 draws: the standard error of a standard deviation of 0.1 is 0.0002; rounding adds less.
    assert float(noise.std()) == pytest.approx((0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1], abs=0.001)
    assert abs(float(noise.mean())) < 0.002
    # Each block of a long set has noise of its own.
    assert not noise[:1000].equal(noise[1000:2000])


@pytest.mark.parametrize("severity", SEVERITIES)
def test_corrupt_blur_weighs_neighbours_by_a_gaussian_and_continues_the_border(severity):
    clean = images()
    sigma = (0.4, 0.6, 0.7, 0.8, 1.0)[severity - 1]
    radius = int(4 * sigma + 0.5)
    weights = np.exp(-(np.arange(-radius, radius + 1) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    around = np.pad(clean.numpy(), ((0, 0), (radius, radius), (radius, radius), (0, 0)), mode="edge")
    wanted = np.zeros(clean.shape)
    for down, first in enumerate(weights):
        for across, second in enumerate(weights):
            wanted += first * second * around[:, down : down + 12, across : across + 9]
    found = corrupt(clean, kind="gaussian_blur", severity=severity).numpy()
    # Rounded to bytes, and float32 against float64 where a value lies half-way.
    assert np.abs(found - wanted).max() < 0.5001


def test_corrupt_contrast_by_hand_and_per_channel():
    clean = torch.tensor([[0, 100], [200, 100]], dtype=torch.uint8).view(1, 1, 2, 2)
    assert corrupt(clean, kind="contrast", severity=1).flatten().tolist() == [25, 100, 175, 100]
    assert corrupt(clean, kind="contrast", severity=5).flatten().tolist() == [85, 100, 115, 100]


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_corrupt_is_the_same_by_seed_leaves_its_argument_and_grows_with_severity(kind):
    clean = images(n=50, height=16, width=16)
    kept = clean.clone()
    worse = [corrupt(clean, kind=kind, severity=severity, seed=4) for severity in SEVERITIES]
    assert clean.equal(kept)
    assert worse[2].equal(corrupt(clean, kind=kind, severity=3, seed=4))
    assert all(image.shape == clean.shape and image.dtype == torch.uint8 for image in worse)
    change = [float((image.double() - clean).square().mean()) for image in worse]
    assert change == sorted(change)
    assert len(set(change)) == 5
    assert worse[0].equal(corrupt(clean, kind=kind, severity=1, seed=5)) == (kind != "gaussian_noise")


def test_corrupt_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"`images` must be uint8 \[N, H, W, channels\], got torch.float32"):
        corrupt(images().float(), kind="contrast", severity=1)
    with pytest.raises(ValueError, match="`severity` must be one of 1, 2, 3, 4, 5, got 6"):
        corrupt(images(), kind="contrast", severity=6)
    with pytest.raises(ValueError, match="unknown corruption 'gaussian_nose'. Did you mean 'gaussian_noise'"):
        corrupt(images(), kind="gaussian_nose", severity=1)


def test_shifted_sets_keep_labels_and_facts_and_drop_the_posterior():
    test = load_mixture(n_train=4, n_test=20).test
    found = shifted_sets(test, seed=1)
    assert list(found) == [f"{kind}-{severity}" for kind in CORRUPTIONS for severity in SEVERITIES]
    shifted = found["gaussian_noise-5"]
    assert shifted.labels.equal(test.labels)
    assert (shifted.mean, shifted.posterior) == (test.mean, None)
    assert shifted.images.equal(corrupt(test.images, kind="gaussian_noise", severity=5, seed=1))
    assert not shifted.images.equal(test.images)
