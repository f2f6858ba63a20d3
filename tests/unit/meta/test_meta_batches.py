import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from calibrant.meta import LoaderBatches, MetaBatches


def take(batches, count):
    return [next(batches)[1].tolist() for _ in range(count)]


def test_meta_batches_pass_has_no_repeats_and_every_pass_a_new_order():
    x = torch.arange(10)
    batches = MetaBatches(x, x, batch_size=5, generator=torch.Generator().manual_seed(0))
    passes = [sum(take(batches, 2), []) for _ in range(4)]
    assert all(sorted(order) == list(range(10)) for order in passes)
    assert len({tuple(order) for order in passes}) == 4


@pytest.mark.parametrize(("size", "length"), [(4, 4), (100, 10)])
def test_meta_batches_hand_out_no_remainder_and_all_there_is_where_that_is_less(size, length):
    x = torch.arange(10)
    assert {len(set(labels)) for labels in take(MetaBatches(x, x, batch_size=size), 25)} == {length}


def test_meta_batches_resume_draws_the_same():
    x = torch.arange(50)
    first = MetaBatches(x, x, batch_size=7, generator=torch.Generator().manual_seed(3))
    take(first, 5)
    second = MetaBatches(x, x, batch_size=7, generator=torch.Generator().manual_seed(9))
    second.load_state_dict(first.state_dict())
    assert take(second, 20) == take(first, 20)


def test_meta_batches_wrong_arguments_raise():
    with pytest.raises(ValueError, match=r"MetaBatches: `labels` must be \[N\] = \[3\] with N >= 1, got \[2\]"):
        MetaBatches(torch.zeros(3), torch.zeros(2))
    with pytest.raises(ValueError, match="`batch_size` must be a whole number >= 1, got 0"):
        MetaBatches(torch.zeros(3), torch.zeros(3), batch_size=0)


def test_loader_batches_skip_the_remainder_and_reshuffle():
    x = torch.arange(10)
    loader = DataLoader(TensorDataset(x, x), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(0))
    batches = LoaderBatches(loader)
    seen = take(batches, 8)
    assert {len(labels) for labels in seen} == {4}
    assert len({tuple(labels) for labels in seen}) == 8
    assert batches.passes == 4


@pytest.mark.parametrize("taken", [2, 3, 4])
def test_loader_batches_go_on_within_a_pass_whose_order_can_be_repeated(taken):
    x = TensorDataset(torch.arange(12), torch.arange(12))

    def batches():
        sampler = DistributedSampler(x, num_replicas=1, rank=0, shuffle=True)
        return LoaderBatches(DataLoader(x, batch_size=4, sampler=sampler))

    first, second = batches(), batches()
    take(first, taken)
    random = torch.get_rng_state()
    second.load_state_dict(first.state_dict())
    assert torch.equal(random, torch.get_rng_state())
    assert take(second, 6) == take(first, 6)


def test_loader_batches_wrong_loaders_raise():
    data = TensorDataset(torch.arange(3), torch.arange(3))
    with pytest.raises(ValueError, match="`loader` must shuffle, got a sequential one"):
        LoaderBatches(DataLoader(data, batch_size=2))
    with pytest.raises(ValueError, match="at least one full batch of 4, got none in a whole pass. Lower its `batch_size`."):
        next(LoaderBatches(DataLoader(data, batch_size=4, shuffle=True)))
