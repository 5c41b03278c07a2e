"""How much memory the graphs of a solve keep, and what the backward pass repeats."""

import gc
import math
import weakref

import pytest
import torch

import bfno
from bfno.ode import problem, replay
from bfno.ode.inputs import read_memory
from bfno.ode.replay import Recording

TS = torch.tensor([0.0, 1.0])


class Network(torch.nn.Module):
    """A field whose call keeps 2.4 kB of single precision."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(3, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3)
        ).float()

    def forward(self, t, y):
        return 3 * self.net(y * (1 + t))


@pytest.fixture(params=["steps", "evaluations"])
def repeated(request, monkeypatch):
    """What a backward pass repeats at a time."""
    monkeypatch.setattr(problem, "SMALL_STATE", 0 if request.param == "evaluations" else 1 << 14)
    return request.param


def train(memory, field=None, **settings):
    """The end of a solve, its gradients and its statistics."""
    field = Network() if field is None else field
    torch.manual_seed(1)
    y0 = torch.randn(16, 3, dtype=torch.float32, requires_grad=True)
    settings = {"rtol": 1e-5, "atol": 1e-5, **settings}
    solution = bfno.solve(field, y0, TS, memory=memory, **settings)
    solution.ys[-1].square().sum().backward()
    return solution, [leaf.grad for leaf in (y0, *field.parameters()) if leaf.grad is not None]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("256 MB", 256_000_000),
        ("2 GiB", 2 << 30),
        ("1.5kib", 1536),
        ("64M", 64_000_000),
        ("12", 12),
        (" 7 B ", 7),
        (0, 0),
        (1e6, 1_000_000),
        ("unlimited", math.inf),
        (math.inf, math.inf),
    ],
)
def test_memory_is_bytes_or_text(text, size):
    assert read_memory("memory", text) == size


@pytest.mark.parametrize("wrong", ["much", "", "-1", -1, "1 XB", True, math.nan, [1]])
def test_other_memory_is_refused_by_name(wrong):
    with pytest.raises(ValueError, match=r"memory must be a number of bytes or text .*256 MB"):
        bfno.solve(lambda t, y: -y, torch.ones(1), TS, memory=wrong)


@pytest.mark.parametrize("gradient", ["direct", "adjoint"])
def test_memory_belongs_to_checkpoint(gradient):
    with pytest.raises(ValueError, match="memory needs gradient='checkpoint'"):
        bfno.NeuralODE(bfno.FirstOrder(Network()), gradient=gradient, memory=0)


@pytest.mark.parametrize("method", ["dopri5", "adaptive_heun", "rk4"])
def test_gradients_are_the_same_to_the_last_bit_whatever_the_memory(method, repeated):
    settings = {
        "dopri5": {},
        "adaptive_heun": {"rtol": 1e-3, "atol": 1e-3},
        "rk4": {"step": 0.1},
    }[method]
    direct, exact = train(None, gradient="direct", method=method, **settings)
    counts = []
    for memory in (0, "20 kB", "40 kB", None, "unlimited"):
        solution, gradients = train(memory, method=method, **settings)
        assert torch.equal(solution.ys, direct.ys)
        assert all(map(torch.equal, gradients, exact))
        counts.append(solution.stats.backward_evaluations)
    assert counts[0] > counts[1] > counts[2] > 0
    assert counts[3:] == [0, 0]


def test_second_derivatives_and_repeated_passes_are_the_same_whatever_the_memory(repeated):
    found = []
    for memory in (0, "20 kB", "unlimited"):
        field, y0 = Network(), torch.linspace(-1, 1, 48, dtype=torch.float32).view(16, 3)
        y0.requires_grad_()
        end = bfno.solve(field, y0, TS, memory=memory, rtol=1e-3, atol=1e-3).ys[-1]
        (first,) = torch.autograd.grad(end.sum(), y0, create_graph=True)
        again = torch.autograd.grad(end.sum(), y0, retain_graph=True)[0]
        second = torch.autograd.grad(first.square().sum(), (y0, *field.parameters()))
        assert torch.equal(first, again)
        found.append((first, *second))
    for other in found[1:]:
        for one, its in zip(found[0], other, strict=True):
            torch.testing.assert_close(one, its, rtol=1e-6, atol=1e-6)


def kept_bytes(memory, field, **settings):
    """Bytes that the graph of a solve holds, without the field's weights."""
    weights = {one.untyped_storage().data_ptr() for one in field.parameters()}
    y0, kept = torch.randn(16, 3, dtype=torch.float32, requires_grad=True), {}

    def note(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    gc.collect()
    before = {id(one) for one in gc.get_objects() if isinstance(one, Recording)}
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        solution = bfno.solve(field, y0, TS, memory=memory, **settings)
    for one in gc.get_objects():
        if isinstance(one, Recording) and id(one) not in before and one.saved is not None:
            for tensor, _ in one.saved:
                note(tensor)
    del solution
    return sum(size for where, size in kept.items() if where not in weights)


@pytest.mark.filterwarnings("ignore")  # of modules whose attributes looking at all objects wakes
def test_graphs_fill_the_memory_and_do_not_exceed_it(monkeypatch):
    monkeypatch.setattr(problem, "SMALL_STATE", 0)
    field = Network()
    assert kept_bytes(0, field, method="rk4", step=0.05) < 500
    for memory in (20_000, 60_000):
        kept = kept_bytes(memory, field, method="rk4", step=0.05)
        assert memory - 2500 < kept <= memory


def test_rejected_steps_give_their_memory_back(repeated):
    whole = train(0, first_step=1.0)[0].stats
    assert whole.rejected >= 1
    some = train("50 kB", first_step=1.0)[0].stats  # two steps of them
    assert whole.backward_evaluations - some.backward_evaluations >= 12


@pytest.mark.parametrize("settings", [{"gradient": "direct"}, {"memory": "1 GB"}, {"memory": 0}])
def test_the_graph_of_a_rejected_step_is_gone_when_the_next_one_is_tried(settings, repeated):
    alive, most = weakref.WeakSet(), []

    class Steep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y):
            most.append(len(alive))
            alive.add(ctx)
            return -(y**3)

        @staticmethod
        def backward(ctx, *gradients):
            return gradients[0]

    y0 = torch.full((2,), 3.0, requires_grad=True)
    solution = bfno.solve(
        lambda t, y: Steep.apply(y), y0, TS, first_step=1.0, rtol=1e-4, atol=1e-4, **settings
    )
    stats = solution.stats
    assert stats.rejected >= 2
    # The slope at the start, and those of the steps until then.
    assert max(most) <= 1 + 6 * stats.accepted
    assert most[1 + 6 * stats.rejected] == 1


def test_odeint_keeps_all_unless_it_is_limited():
    calls, rate = [0], torch.tensor(0.7, requires_grad=True)

    def field(t, y):
        calls[0] += 1
        return torch.tanh(-rate * y)

    found = []
    for memory in (None, 0, "1 GB"):
        calls[0] = 0
        end = bfno.odeint(field, torch.ones(200), TS, rtol=1e-5, atol=1e-5, memory=memory)[-1]
        forward, calls[0] = calls[0], 0
        found.append((torch.autograd.grad(end.sum(), rate)[0], calls[0]))
        assert calls[0] >= forward - 8 if memory == 0 else calls[0] == 0
    assert torch.equal(found[0][0], found[1][0])
    with pytest.raises(ValueError, match="memory needs a Runge–Kutta method"):
        bfno.odeint(field, torch.ones(1), TS, method="implicit_adams", memory=0)
    with pytest.raises(ValueError, match="memory must be a number of bytes"):
        bfno.odeint(field, torch.ones(1), TS, memory="much")


@pytest.mark.filterwarnings("ignore")
def test_solves_share_what_none_of_them_was_told(monkeypatch):
    monkeypatch.setattr(problem, "SMALL_STATE", 0)
    monkeypatch.setattr(replay, "KEPT_BYTES", 60_000)  # about two dozen calls
    field, y0 = Network(), torch.randn(16, 3, dtype=torch.float32, requires_grad=True)

    def solved(count):
        settings = {"method": "rk4", "step": 0.2}
        return [bfno.solve(field, y0, TS, **settings) for _ in range(count)]

    def repeated(solutions):
        torch.stack([solution.ys.sum() for solution in solutions]).sum().backward()
        return [solution.stats.backward_evaluations for solution in solutions]

    assert repeated(solved(1)) == [0]
    first, second, third = repeated(solved(3))
    assert first == 0 and 10 < second < 20 and third == 20
    # A backward pass, or the end of a graph, gives the memory back.
    assert repeated(solved(1)) == [0]
    solved(1)
    assert repeated(solved(1)) == [0]
