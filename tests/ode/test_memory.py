"""How much memory the graphs of a solve keep, and what the backward pass repeats."""

import gc
import math
import weakref
from typing import Any

import pytest
import torch

import bfno
from bfno.ode import problem, replay, snapshots
from bfno.ode.inputs import read_memory
from bfno.ode.replay import Recording
from tests.cotangents import AT_ONCE, one_by_one

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
        return 3 * self.net(y * (1 + t.reshape(-1, 1)))


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
        ("stages", 0),
        ("Steps", "steps"),
        ("steps 50 MB", "steps 50000000"),
        ("steps 50000000", "steps 50000000"),
        ("log", "log"),
    ],
)
def test_memory_is_bytes_or_text(text, size):
    assert read_memory("memory", text) == size


@pytest.mark.parametrize(
    "wrong", ["much", "", "-1", -1, "1 XB", True, math.nan, [1], "steps much", "log 1 MB", "steps5"]
)
def test_other_memory_is_refused_by_name(wrong):
    with pytest.raises(ValueError, match=r"memory must be a number of bytes or text .*256 MB"):
        bfno.solve(lambda t, y: -y, torch.ones(1), TS, memory=wrong)


@pytest.mark.parametrize("gradient", ["direct", "adjoint"])
def test_memory_belongs_to_checkpoint(gradient):
    with pytest.raises(ValueError, match="memory needs gradient='checkpoint'"):
        bfno.NeuralODE(bfno.FirstOrder(Network()), gradient=gradient, memory=0)


@pytest.mark.parametrize("method", ["dopri5", "adaptive_heun", "rk4"])
def test_gradients_are_the_same_to_the_last_bit_for_any_memory(method, repeated):
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


def test_second_derivatives_and_repeated_passes_are_the_same_for_any_memory(repeated):
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


def test_odeint_keeps_states_instead_of_graphs_on_request():
    rate = torch.tensor(0.7, requires_grad=True)
    found = []
    for memory in (None, "steps", "log"):
        end = bfno.odeint(lambda t, y: torch.tanh(-rate * y), torch.ones(9), TS, memory=memory)[-1]
        found.append(torch.autograd.grad(end.sum(), rate)[0])
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])

    class Told(Network):
        def callback_step(self, t, y, dt):
            pass

    with pytest.raises(ValueError, match=r"callbacks states without history.*memory=0"):
        bfno.odeint(Told(), torch.ones(1, 3), TS, memory="log")


@pytest.mark.filterwarnings("ignore")
def test_solves_share_what_none_of_them_was_told(monkeypatch):
    monkeypatch.setattr(problem, "SMALL_STATE", 0)
    gc.collect()  # what other tests left behind; some may be held by what they keep
    kept = 60_000 + replay.Room._shared  # about two dozen calls
    monkeypatch.setattr(replay, "KEPT_BYTES", kept)
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


# States instead of graphs


def keep(states, monkeypatch):
    """Keep this number of states, regardless of the requested memory."""
    monkeypatch.setattr(snapshots.Shelf, "capacity", lambda self, steps, size: states)


@pytest.fixture
def few(monkeypatch):
    """Keep two states only, however few steps there are."""
    keep(2, monkeypatch)


def solved(memory, dtype, ts, **settings):
    """The states of a solve, and gradients of a function of all of them."""
    torch.manual_seed(2)
    field = Network().to(dtype)
    y0 = torch.randn(4, 3, dtype=dtype, requires_grad=True)
    ts = ts.to(dtype, copy=True).requires_grad_()
    solution = bfno.solve(field, y0, ts, memory=memory, **settings)
    weights = torch.cos(torch.arange(solution.ys.numel(), dtype=dtype)).view_as(solution.ys)
    leaves = (y0, ts, *field.parameters())
    return solution, torch.autograd.grad((solution.ys * weights).square().sum(), leaves)


@pytest.mark.parametrize(
    ("memory", "dtype"),
    [("steps", torch.float64), ("log", torch.float64), ("log", torch.float32)],
)
@pytest.mark.parametrize(
    "settings",
    [
        {"rtol": 1e-5, "atol": 1e-5},
        {"rtol": 1e-6, "atol": 1e-6, "land": False, "first_step": 1.0},
        {"rtol": 1e-4, "atol": 1e-4, "jumps": (0.0, 0.4), "stops": (0.7,)},
        {"method": "adaptive_heun", "rtol": 1e-2, "atol": 1e-2},
        {"method": "dopri8", "rtol": 1e-5, "atol": 1e-5},
        {"method": "rk4", "step": 0.1},
        {"method": "euler", "step": 0.03},
    ],
    ids=str,
)
def test_kept_states_give_the_same_gradient_to_the_last_bit(
    settings, memory, dtype, monkeypatch, repeated
):
    if memory == "log":
        keep(2, monkeypatch)
    ts = torch.tensor([1.0, 0.62, 0.6, 0.15, 0.0])  # inside steps and at their ends
    direct, exact = solved("unlimited", dtype, ts, **settings)
    found, gradients = solved(memory, dtype, ts, **settings)
    assert torch.equal(found.ys, direct.ys)
    assert all(map(torch.equal, gradients, exact))
    assert found.stats.accepted > 3 and found.stats.step_ends == direct.stats.step_ends
    assert found.stats.forward_evaluations == direct.stats.forward_evaluations


@pytest.mark.parametrize("settings", [{"rtol": 1e-5, "atol": 1e-5}, {"method": "rk4", "step": 0.1}])
@pytest.mark.parametrize("memory", ["steps", "log"])
def test_kept_states_serve_rows_of_times(memory, settings, few):
    ts = torch.tensor([[0.0, 0.3, 1.0], [0.2, 0.2, 0.9], [0.5, 0.5, 0.5], [1.0, 0.1, 0.0]])
    direct, exact = solved("unlimited", torch.float64, ts, **settings)
    found, gradients = solved(memory, torch.float64, ts, **settings)
    assert torch.equal(found.ys, direct.ys)
    for one, right in zip(gradients, exact, strict=True):
        # Parts of a sum are added in another order: of a few dozen, each off by 1e-16 of it.
        torch.testing.assert_close(one, right, rtol=1e-13, atol=1e-13 * float(right.abs().max()))


def held_states(memory, steps, size=48):
    """How many states the graph of a solve holds, and how many nodes it has."""
    alive = weakref.WeakSet()

    class Held:
        def __init__(self, tensor):
            self.tensor = tensor
            alive.add(self)

    y0 = torch.randn(size, dtype=torch.float32, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(Held, lambda held: held.tensor):
        settings: dict[str, Any] = {"method": "euler", "step": 1 / steps, "memory": memory}
        ys = bfno.solve(lambda t, y: torch.sin(y), y0, TS, **settings).ys
    nodes, waiting = set(), [ys.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            waiting += [edge[0] for edge in node.next_functions]
    storages = {held.tensor.untyped_storage().data_ptr() for held in alive}
    return len(storages), len(nodes)


def test_what_is_kept_grows_with_the_steps_or_with_their_logarithm():
    for steps in (16, 64, 256):
        assert held_states("steps", steps) == (steps, 2)  # this solve, and the accumulation into y0
    counts = [held_states("log", steps) for steps in (16, 64, 256, 1024)]
    assert [nodes for _, nodes in counts] == [2] * 4
    # The first state, two more, and two for each binary digit of the number of the last step.
    assert [states for states, _ in counts] == [11, 15, 19, 23]


def test_kept_states_stay_within_their_bytes():
    for states in (40, 100):
        kept, _ = held_states(f"steps {states * 48 * 4}", 300)
        assert kept == states + 1  # and the first one


@pytest.mark.parametrize(("steps", "kept"), [(60, 1), (60, 2), (60, 5), (60, 60), (35, 3)])
def test_no_step_is_repeated_more_often_than_need_be(steps, kept, monkeypatch):
    counts, most, passes = {}, [0], snapshots._Rewind._state_before
    repeat = snapshots._Repeater.repeat

    def counted(self, link, *state):
        counts[link.start] = counts.get(link.start, 0) + 1
        return repeat(self, link, *state)

    def watched(self, place):
        found = passes(self, place)
        most[0] = max(most[0], len(self._kept) - 1)
        return found

    keep(kept, monkeypatch)
    monkeypatch.setattr(snapshots._Repeater, "repeat", counted)
    monkeypatch.setattr(snapshots._Rewind, "_state_before", watched)
    y0 = torch.ones(2, requires_grad=True)
    settings: dict[str, Any] = {"method": "euler", "step": 1 / steps, "memory": "log"}
    bfno.solve(lambda t, y: -y, y0, TS, **settings).ys.sum().backward()
    times = next(n for n in range(1, steps + 1) if math.comb(kept + n, n) >= steps)
    assert len(counts) == steps and most[0] <= kept
    assert max(counts.values()) <= times  # one of these differentiates it


def test_a_graph_that_keeps_states_serves_several_backward_passes(few):
    field, y0 = Network(), torch.randn(4, 3, dtype=torch.float32, requires_grad=True)
    ys = bfno.solve(field, y0, TS, memory="log", rtol=1e-5, atol=1e-5).ys
    first = torch.autograd.grad(ys.sum(), y0, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(ys.sum(), y0)[0])
    with pytest.raises(bfno.GradientError, match="graph was used up"):
        torch.autograd.grad(ys.sum(), y0)


def test_kept_states_go_with_the_graph():
    gone, init = [], snapshots.Chain.__init__

    def noted(self, *args, **settings):
        init(self, *args, **settings)
        gone.append(weakref.ref(self))

    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(snapshots.Chain, "__init__", noted)
            solution, _ = train("log")
            del solution
        assert gone[0]() is None
    finally:
        gc.enable()


def test_random_numbers_are_those_of_the_solve(few):
    def noisy(t, y):
        return torch.tanh(y) * torch.rand_like(y)

    found = []
    for memory in ("unlimited", "steps", "log"):
        torch.manual_seed(5)
        y0 = torch.linspace(-1, 1, 6).requires_grad_()
        settings: Any = {"rtol": 10.0, "atol": 10.0, "first_step": 0.1, "max_step": 0.1}
        ys = bfno.solve(noisy, y0, TS, memory=memory, **settings).ys
        drawn = torch.rand(1)
        found.append((ys, drawn, *torch.autograd.grad(ys[-1].sum(), y0)))
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_what_cannot_be_exact_with_kept_states_is_refused():
    y0 = torch.ones(2, 3, dtype=torch.float32, requires_grad=True)
    memory = {}

    def remembers(t, y):
        return -y * memory.setdefault("first", torch.sigmoid(y))

    with pytest.raises(bfno.GradientError, match=r"keeps something from one call.*memory=0"):
        bfno.solve(remembers, y0, TS, memory="log")
    start = y0.detach().clone()
    with pytest.raises(bfno.GradientError, match=r"changed in place.*clone"):
        bfno.solve(Network(), start, TS, memory="log", on_step=lambda *_: start.mul_(2))
    stops = {"gradient": False}

    def stopped(t, y):
        return torch.sin(y.detach() if stops["gradient"] else y)

    ys = bfno.solve(stopped, y0, TS, memory="log").ys
    stops["gradient"] = True  # with which values stay, and derivatives do not
    with pytest.raises(bfno.GradientError, match="another result"):
        ys.sum().backward()
    layers = [Network()]
    ys = bfno.solve(lambda t, y: layers[0](t, y), y0, TS, memory="log").ys
    layers.clear()
    with pytest.raises(bfno.GradientError, match="the field failed when"):
        ys.sum().backward()


@pytest.mark.parametrize("way", AT_ONCE)
@pytest.mark.parametrize("kind", ["network", "operator"])
@pytest.mark.parametrize("memory", [0, "log"])
def test_several_gradients_are_found_at_once_or_refused_with_a_remedy(memory, kind, way, repeated):
    if kind == "network":
        field, shape = Network().double(), (4, 3)
    else:  # its layers take another route under transforms
        field, shape = bfno.OperatorField("bfno", 1, 4, 2, branches=2), (3, 1, 4, 4)
    y0 = torch.randn(shape, requires_grad=True)
    coarse: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-3}
    ys = bfno.solve(field, y0, TS, memory=memory, **coarse).ys
    pair = torch.randn(2, *ys.shape)
    expected = one_by_one(ys, y0, pair)
    if memory == 0 and way == "is_grads_batched":
        torch.testing.assert_close(AT_ONCE[way](ys, y0, pair), expected, rtol=1e-11, atol=1e-11)
    else:
        with pytest.raises(bfno.GradientError, match=r"torch\.func.*use gradient='direct'"):
            AT_ONCE[way](ys, y0, pair)
    assert torch.equal(one_by_one(ys, y0, pair), expected)
    ys = bfno.solve(field, y0, TS, gradient="direct", **coarse).ys
    torch.testing.assert_close(AT_ONCE[way](ys, y0, pair), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("other", ["event", "dense", "compile"])
def test_what_needs_the_graphs_of_steps_is_refused_by_name(other):
    options: dict[str, Any] = {other: (lambda t, y: y.sum()) if other == "event" else True}
    with pytest.raises(ValueError, match=f"memory='log' .* which {other} needs.* memory=0"):
        bfno.solve(lambda t, y: -y, torch.ones(1), TS, memory="log", **options)


def test_a_module_keeps_its_memory_as_it_was_read():
    block = bfno.NeuralODE(bfno.FirstOrder(Network()), memory="Steps 2 kB")
    assert block.settings["memory"] == "steps 2000"
    x = torch.randn(2, 3, dtype=torch.float32)
    block(x).sum().backward()
    assert block.stats.backward_evaluations > 0
