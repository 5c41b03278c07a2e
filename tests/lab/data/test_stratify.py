import pytest
import torch

from bfno.lab.data.stratify import drawn_order


@pytest.mark.parametrize("counts", [(150, 150, 150, 150), (400, 90, 10), (1000, 1, 1, 1), (7,)])
def test_every_beginning_and_end_has_the_classes_in_proportion(counts):
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    drawn = labels[drawn_order(labels, seed=3)]
    total = len(labels)
    assert drawn.sort().values.equal(labels)
    for length in range(1, total + 1):
        for part in (drawn[:length], drawn[total - length :]):
            share = torch.tensor(counts) * length / total
            found = part.bincount(minlength=len(counts))
            # Rare classes come early, at the cost of the others.
            assert (found - share).abs().max() <= len(counts)
    first = drawn[: 2 * len(counts)].bincount(minlength=len(counts))
    assert (first > 0).all()


def test_balanced_classes_differ_by_one_at_most():
    labels = torch.arange(4).repeat_interleave(150)
    drawn = labels[drawn_order(labels, seed=0)]
    for length in range(1, 600):
        found = drawn[:length].bincount(minlength=4)
        assert found.max() - found.min() <= 1


def test_the_seed_decides_which_things_and_in_which_order():
    labels = torch.arange(3).repeat_interleave(20)
    one, other = drawn_order(labels, seed=1), drawn_order(labels, seed=2)
    assert one.equal(drawn_order(labels, seed=1)) and not one.equal(other)
    assert set(one[:9].tolist()) != set(other[:9].tolist())
    without_classes = drawn_order(torch.zeros(60), seed=1)
    assert without_classes.sort().values.equal(torch.arange(60))
    assert not without_classes.equal(torch.arange(60))


def test_no_things_are_no_order():
    assert len(drawn_order(torch.zeros(0, dtype=torch.long), seed=0)) == 0
