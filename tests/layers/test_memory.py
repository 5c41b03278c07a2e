"""Recycled memory: no block is used again while a tensor still refers to it."""

import gc
import queue
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from bfno.layers import BFNO, memory
from bfno.layers.memory import free_memory, recycled

LIKE = torch.zeros(1, dtype=torch.float64)
SHAPE = (64, 256)
BYTES = 64 * 256 * 8  # twice the size from which blocks are kept


@pytest.fixture(autouse=True)
def empty_stock():
    gc.collect()  # what other tests left behind would return to the stock during this one
    free_memory()
    yield
    free_memory()


@pytest.fixture
def hasty_threads():
    """Threads take turns as often as Python allows, so that a race has a chance to show."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def take(shape=SHAPE, like=LIKE):
    return recycled(shape, like)


def idle():
    """Bytes in stock, counted block by block."""
    found = sum(block.nbytes for blocks in memory._stock.values() for block in blocks)
    assert memory._idle_bytes == found
    return found


def test_a_tensor_is_what_was_asked_for():
    for like in (LIKE, LIKE.float(), torch.zeros(3, requires_grad=True)):
        for _ in range(2):  # fresh, then used again
            tensor = recycled([2, 64, 256], like)
            assert (tensor.shape, tensor.dtype) == ((2, 64, 256), like.dtype)
            assert tensor.device == like.device
            assert tensor.is_contiguous() and not tensor.requires_grad
            del tensor
            assert idle() > 0
        free_memory()


HOLDERS = {
    "tensor": lambda tensor: tensor,
    "slice": lambda tensor: tensor[3:, ::2],
    "transpose": lambda tensor: tensor.T,
    "detached": lambda tensor: tensor.detach(),
    "view of a view": lambda tensor: tensor.view(-1)[5:7].expand(3, 2),
    "one of several": lambda tensor: tensor.unbind()[1],
    "storage": lambda tensor: tensor.untyped_storage(),
    "array": lambda tensor: tensor.numpy()[1:],
    "buffer": lambda tensor: memoryview(tensor.numpy()),
}


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_a_block_is_used_again_only_after_the_last_view_of_it_is_gone(hold):
    tensor = take()
    address = tensor.data_ptr()
    holder = hold(tensor)
    del tensor
    assert idle() == 0
    other = take()
    assert other.data_ptr() != address
    del holder
    assert idle() == BYTES
    again = take((256, 64))  # the number of elements counts, not the shape
    assert again.data_ptr() == address
    assert idle() == 0


def test_a_block_in_a_reference_cycle_returns_when_the_cycle_is_collected():
    cycle: list[object] = [take()]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert idle() == BYTES


@pytest.mark.parametrize("retain", [False, True])
def test_a_block_that_a_graph_keeps_is_not_used_again(retain):
    x = torch.randn(SHAPE, requires_grad=True)
    factor = take().fill_(3.0)
    address = factor.data_ptr()
    product = x * factor
    del factor
    other = take().fill_(5.0)
    assert other.data_ptr() != address
    (gradient,) = torch.autograd.grad(product.sum(), x, retain_graph=retain)
    assert bool((gradient == 3.0).all())
    assert idle() == (0 if retain else BYTES)  # without the flag, the graph lets go of its tensors
    del product
    assert take().data_ptr() == address
    assert bool((other == 5.0).all())


def test_a_layers_graphs_do_not_depend_on_the_stock(monkeypatch):
    layer, inputs = BFNO(channels=4), torch.randn(3, 2, 4, 32, 32)

    def run():
        """Three graphs that live at once, pulled back in another order than they were built."""
        results = [layer(x) for x in inputs]
        parameters = tuple(layer.parameters())
        pulled = [torch.autograd.grad(results[i].square().sum(), parameters) for i in (1, 0, 2)]
        return [result.detach().clone() for result in results], pulled

    monkeypatch.setattr(memory, "IDLE_BYTES", 0)
    without = run()
    assert idle() == 0
    monkeypatch.undo()
    run()
    assert idle() > 0
    torch.testing.assert_close(run(), without, rtol=0, atol=0)


ORDINARY = {
    "small": ((memory.SMALLEST // 8 - 1,), LIKE),
    "scalar": ((), LIKE),
    "empty": ((0, 1 << 20), LIKE),
    "bfloat16": (SHAPE, LIKE.bfloat16()),
    "float16": (SHAPE, LIKE.half()),
    "complex": (SHAPE, LIKE.to(torch.complex128)),
    "whole numbers": (SHAPE, LIKE.long()),
    "another device": (SHAPE, LIKE.to("meta")),
}


@pytest.mark.parametrize(("shape", "like"), ORDINARY.values(), ids=ORDINARY)
def test_other_requests_are_ordinary_tensors(shape, like):
    tensor = recycled(shape, like)
    assert (tensor.shape, tensor.dtype, tensor.device) == (shape, like.dtype, like.device)
    assert tensor.untyped_storage().resizable()  # that of a block is not
    del tensor
    assert idle() == 0


def test_memory_for_fake_tensors_is_fake():
    fake = FakeTensorMode().from_tensor(LIKE)
    assert isinstance(take(like=fake), FakeTensor)  # outside of the mode, too
    assert idle() == 0


def test_blocks_are_recycled_from_the_stated_size_on():
    tensor = take((memory.SMALLEST // 8,))
    assert not tensor.untyped_storage().resizable()
    del tensor
    assert idle() == memory.SMALLEST


def test_a_block_serves_only_its_own_dtype_and_size():
    single = take(like=LIKE.float())
    address = single.data_ptr()
    del single
    others = [take(), take((64, 128)), take((64, 257), LIKE.float())]
    assert idle() == BYTES // 2
    assert address not in [tensor.data_ptr() for tensor in others]
    for tensor in others:
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    assert take(like=LIKE.float()).data_ptr() == address


def test_no_more_than_the_limit_stays_idle(monkeypatch):
    monkeypatch.setattr(memory, "IDLE_BYTES", 3 * BYTES)
    living = [take() for _ in range(5)]
    living.clear()
    assert idle() == 3 * BYTES
    double = take((2, *SHAPE))
    del double  # the stock is full
    assert idle() == 3 * BYTES
    living = [take(), take()]
    assert idle() == BYTES
    double = take((2, *SHAPE))
    del double  # exactly fits
    assert idle() == 3 * BYTES
    living.clear()
    assert idle() == 3 * BYTES
    huge = take((4, *SHAPE))
    free_memory()
    del huge
    assert idle() == 0


def test_freeing_leaves_living_tensors_alone():
    living, dead = take().fill_(2.0), take()
    address = living.data_ptr()
    del dead
    assert idle() == BYTES
    free_memory()
    assert idle() == 0
    assert bool((living == 2.0).all())
    del living
    assert idle() == BYTES
    assert take().data_ptr() == address


def test_no_living_tensor_changes_when_others_are_written(monkeypatch):
    monkeypatch.setattr(memory, "IDLE_BYTES", 4 * BYTES)
    choose = random.Random(0)
    shapes, likes = [SHAPE, (128, 128), (2, *SHAPE)], [LIKE, LIKE.float()]
    living = {}
    for number in range(300):
        tensor = take(choose.choice(shapes), choose.choice(likes)).fill_(number)
        living[number] = choose.choice([tensor, tensor[1:], tensor.mT, tensor.detach()])
        del tensor
        for gone in choose.sample(sorted(living), max(0, len(living) - choose.randrange(1, 8))):
            del living[gone]
        assert all(bool((tensor == owner).all()) for owner, tensor in living.items())
        assert idle() <= 4 * BYTES
    assert idle() > 0


def test_two_threads_may_take_and_drop_blocks_at_once(hasty_threads, monkeypatch):
    monkeypatch.setattr(memory, "IDLE_BYTES", 3 * BYTES)
    together = threading.Barrier(2, timeout=60)

    def work(sign):
        together.wait()
        for number in range(1, 2000):
            # Few elements, so that the time goes into taking and dropping.
            mine = [(sign * (4 * number + part), take()[0, :2]) for part in range(number % 4)]
            for value, tensor in mine:
                tensor.fill_(value)
            assert all(tensor.tolist() == [value, value] for value, tensor in mine)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, (1, -1)))
    assert 0 < idle() <= 3 * BYTES


def run_with_switch(main, other, at):
    """Run `main`, and all of `other` in a second thread at one call inside the memory's code.

    Python changes threads where a function starts and after a call, which is where a profiler is
    told. Returns whether `main` came as far as the call numbered `at`.
    """
    seen, errors = 0, []

    def guarded():
        try:
            other()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=guarded)

    def switch(frame, event, _):
        nonlocal seen
        if frame.f_code.co_filename == memory.__file__ and event in ("call", "c_return", "return"):
            if seen == at:
                thread.start()
                thread.join(timeout=0.1)  # where a lock is held, it can only go on later
            seen += 1

    before = sys.getprofile()
    sys.setprofile(switch)
    try:
        main()
    finally:
        sys.setprofile(before)
    if seen > at:
        thread.join(timeout=60)
    assert errors == []
    return seen > at


OTHERS = {
    "takes": lambda held: held.append(take().fill_(len(held))),
    "drops": lambda held: held.clear(),
    "takes and drops": lambda held: [take(), take()].clear(),
    "frees": lambda held: free_memory(),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_another_thread_may_come_in_between_at_any_call(other, monkeypatch):
    monkeypatch.setattr(memory, "IDLE_BYTES", 2 * BYTES)
    at, switched = -1, True
    while switched:
        at += 1
        free_memory()
        old, held, new = [take()], [take().fill_(0), take().fill_(1)], []
        spare = take()
        del spare  # one idle block, which both threads would like to have

        def main(old=old, new=new):
            new.append(take().fill_(7))
            old.clear()

        switched = run_with_switch(main, lambda held=held: other(held), at)
        assert bool((new[0] == 7).all())
        assert all(bool((tensor == value).all()) for value, tensor in enumerate(held))
        assert idle() <= 2 * BYTES
    assert at > 5


def test_a_block_may_die_in_another_thread_than_it_was_taken_in(hasty_threads):
    passed: queue.Queue[tuple[int, torch.Tensor] | None] = queue.Queue(maxsize=4)

    def give():
        for number in range(300):
            passed.put((number, take().fill_(number)), timeout=60)
        passed.put(None, timeout=60)

    def drop():
        while (item := passed.get(timeout=60)) is not None:
            assert bool((item[1] == item[0]).all())

    with ThreadPoolExecutor(2) as pool:
        for task in (pool.submit(give), pool.submit(drop)):
            task.result(timeout=60)
    assert 0 < idle() <= 8 * BYTES  # at most four wait, and each side holds one or two
