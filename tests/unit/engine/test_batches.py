import pytest
import torch

from calibrant.data.image_set import ImageSet
from calibrant.engine.batches import HeldOutBatches, TrainBatches
from calibrant.engine.setup import Group, choose_hardware

CPU = choose_hardware(device="cpu")
RANKS = [CPU._replace(group=Group(rank=rank, world_size=2)) for rank in (0, 1)]


def numbered(n):
    images = torch.arange(n, dtype=torch.uint8).view(n, 1, 1, 1).expand(n, 2, 2, 1).contiguous()
    return ImageSet(images, torch.arange(n) % 5, 5, (0.0,), (1 / 255,))


def test_train_batches_epoch_visits_every_example_once():
    batches = TrainBatches(numbered(23), CPU, batch_size=5, seed=0)
    assert batches.steps_per_epoch == 4
    batches.begin_epoch(3)
    seen = [batches.next() for _ in range(4)]
    examples = torch.cat([b.examples for b in seen])
    assert len(set(examples.tolist())) == 20
    assert torch.cat([b.labels for b in seen]).equal(examples % 5)
    assert torch.cat([b.images for b in seen])[:, 0, 0, 0].round().long().equal(examples)
    assert [int(b.step) for b in seen] == [0, 1, 2, 3]


def test_train_batches_two_processes_share_one_global_batch():
    whole = TrainBatches(numbered(24), CPU, batch_size=6, seed=1)
    halves = [TrainBatches(numbered(24), own, batch_size=6, seed=1) for own in RANKS]
    for batches in (whole, *halves):
        batches.begin_epoch(2)
    for _ in range(4):
        joined = torch.cat([half.next().examples for half in halves])
        assert joined.equal(whole.next().examples)


def test_train_batches_of_kept_examples_hold_no_other_and_keep_their_drawn_order():
    whole, pruned = (TrainBatches(numbered(24), CPU, batch_size=4, seed=1) for _ in range(2))
    kept = torch.tensor([0, 3, 4, 7, 8, 11, 15, 16, 21])
    steps = [whole.begin_epoch(2), pruned.begin_epoch(2, kept=kept)]
    assert steps == [6, 2]
    drawn, seen = (torch.cat([b.next().examples for _ in range(n)]) for b, n in zip((whole, pruned), steps, strict=True))
    assert seen.equal(drawn[torch.isin(drawn, kept)][:8])


def test_train_batches_impossible_size_is_refused():
    with pytest.raises(ValueError, match="must be at most the 4 training examples, got 5"):
        TrainBatches(numbered(4), CPU, batch_size=5, seed=0)
    with pytest.raises(ValueError, match="must be a multiple of 2 processes, got 3"):
        TrainBatches(numbered(4), RANKS[0], batch_size=3, seed=0)


def test_meta_batches_are_full_and_redrawn_without_replacement():
    batches = HeldOutBatches(numbered(20), CPU, batch_size=8, steps_per_epoch=5, seed=0)
    seen = [batches.next().examples for _ in range(5)]
    assert all(len(set(s.tolist())) == 8 for s in seen)
    # Two batches fill one permutation of twenty; the remainder of four is never handed out as a batch.
    assert len(set(torch.cat(seen[:2]).tolist())) == 16
    assert not torch.cat(seen[:2]).equal(torch.cat(seen[2:4]))
    first = torch.cat(seen)
    batches.begin_epoch(1)
    assert not torch.cat([batches.next().examples for _ in range(5)]).equal(first)


def test_meta_batches_of_two_processes_share_one_global_batch_of_equal_parts():
    halves = [HeldOutBatches(numbered(7), own, batch_size=1024, steps_per_epoch=2, seed=0) for own in RANKS]
    assert [half.batch_size for half in halves] == [6, 6]
    for _ in range(2):
        parts = [half.next().examples.tolist() for half in halves]
        assert [len(part) for part in parts] == [3, 3]
        assert len({*parts[0], *parts[1]}) == 6


@pytest.mark.parametrize("rank", [0, 1])
def test_train_batches_fed_from_the_host_are_the_resident_ones(rank):
    images = torch.randint(0, 256, (24, 6, 6, 1), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    data = ImageSet(images, torch.arange(24) % 5, 5, (0.5,), (0.25,), pad=2, flip=True)
    resident, fed = (TrainBatches(data, RANKS[rank], batch_size=8, seed=1, resident=resident) for resident in (True, False))
    for epoch, kept in ((0, None), (3, None), (4, torch.arange(3, 20))):
        steps = [batches.begin_epoch(epoch, kept=kept) for batches in (resident, fed)]
        assert steps[0] == steps[1]
        for _ in range(steps[0]):
            resident.feed()
            fed.feed()
            first, second = resident.next(), fed.next()
            assert all(a.equal(b) for a, b in zip(first, second, strict=True))
