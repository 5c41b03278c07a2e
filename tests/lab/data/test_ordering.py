import pytest
import torch

from bfno.lab.data import length_batches
from bfno.lab.errors import ConfigError


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("count", [0, 1, 7, 100, 1000])
@pytest.mark.parametrize("batch", [1, 3, 50])
def test_every_index_occurs_once_in_batches_that_are_full_but_for_one(count, batch):
    lengths = torch.randint(1, 90, (count,))
    batches = length_batches(lengths, batch, generator())
    assert sorted(torch.cat([torch.empty(0).long(), *batches]).tolist()) == list(range(count))
    assert sum(len(part) != batch for part in batches) <= 1
    assert all(0 < len(part) <= batch for part in batches)


def test_the_order_is_that_of_the_generator():
    lengths = torch.randint(1, 90, (300,))
    one, same = (length_batches(lengths, 20, generator(4)) for _ in range(2))
    other = length_batches(lengths, 20, generator(5))
    assert torch.equal(torch.cat(one), torch.cat(same))
    assert not torch.equal(torch.cat(one), torch.cat(other))


def test_there_is_little_padding_and_the_order_tells_nothing_of_the_length():
    lengths = torch.randint(1, 200, (3200,))
    batches = length_batches(lengths, 50, generator())
    padded = sum(int(lengths[part].max()) * len(part) for part in batches)
    assert padded < 1.1 * int(lengths.sum())
    blind = sum(int(lengths[part].max()) * len(part) for part in torch.randperm(3200).split(50))
    assert blind > 1.8 * int(lengths.sum())
    means = torch.stack([lengths[part].double().mean() for part in batches])
    place = torch.arange(len(means)).double()
    assert torch.corrcoef(torch.stack((place, means)))[0, 1].abs() < 0.3


def test_epochs_mix_the_batches():
    lengths, source = torch.randint(1, 200, (800,)), generator()
    first, second = (length_batches(lengths, 50, source) for _ in range(2))
    partners = {frozenset(part.tolist()) for part in first}
    assert not partners & {frozenset(part.tolist()) for part in second}


def test_a_batch_without_room_is_refused():
    with pytest.raises(ConfigError, match="batch"):
        length_batches(torch.ones(3), 0, generator())
