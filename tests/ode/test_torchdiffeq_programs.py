"""Programs and habits of torchdiffeq's users, run with both libraries by changing the import.

The programs are small relatives of the well-known examples: the same calls, other sizes. Each takes
the library as its argument and returns its losses, so that a program stands for its import line.
"""

import contextlib
import itertools
from typing import Any

import pytest
import torch
from torch import nn

import bfno

torchdiffeq = pytest.importorskip("torchdiffeq", reason="the oracle of these tests is torchdiffeq")

ADAPTIVE = ["dopri5", "bosh3", "dopri8"]
# torchdiffeq starts their steps with the last stage of the step before, which is not the slope at
# its end; bfno evaluates the slope, and so chooses other steps after the first.
ADAPTIVE_WITH_OTHER_STEPS = ["adaptive_heun", "fehlberg2"]
FIXED = ["euler", "midpoint", "heun2", "heun3", "rk4", "explicit_adams", "implicit_adams"]


def perceptron(*widths):
    layers = [m for a, b in itertools.pairwise(widths) for m in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


def descend(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


class CubedField(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = perceptron(2, 12, 2)

    def forward(self, t, y):
        return self.network(y**3)


def fit_windows_of_a_spiral(library, *, adjoint=False):
    torch.manual_seed(1)
    rotation = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])
    t = torch.linspace(0.0, 1.5, 60)
    with torch.no_grad():
        truth = library.odeint(lambda t, y: y**3 @ rotation, torch.tensor([[2.0, 0.0]]), t)
    field = CubedField()
    optimizer = torch.optim.RMSprop(field.parameters(), lr=1e-2)
    solver = library.odeint_adjoint if adjoint else library.odeint
    losses = []
    for _ in range(3):
        starts = torch.randint(len(t) - 5, (6,))
        windows = torch.stack([truth[starts + i] for i in range(5)])
        found = solver(field, windows[0], t[:5])
        losses.append(descend(optimizer, (found - windows).abs().mean()))
    return losses


class LatentField(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(3, 10), nn.ELU(), nn.Linear(10, 10), nn.ELU(), nn.Linear(10, 3)
        )
        self.evaluations = 0

    def forward(self, t, y):
        self.evaluations += 1
        return self.network(y)


def train_a_latent_model(library):
    torch.manual_seed(2)
    t = torch.linspace(0.0, 3.0, 10)
    phase = torch.rand(5, 1) * 6
    curves = torch.stack((torch.cos(t + phase), torch.sin(t + phase)), 2) * (1 + 0.1 * t)[:, None]
    curves = curves + 0.05 * torch.randn_like(curves)
    encoder, head, field, decoder = (
        nn.RNN(2, 8, batch_first=True), nn.Linear(8, 6), LatentField(), perceptron(3, 8, 2)
    )  # fmt: skip
    parameters = [p for m in (encoder, head, field, decoder) for p in m.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    losses = []
    for _ in range(4):
        _, hidden = encoder(curves.flip(1))  # reads backward, to end at the latent's time
        mean, log_variance = head(hidden[0]).chunk(2, 1)
        latent = mean + torch.exp(log_variance / 2) * torch.randn_like(mean)
        path = library.odeint(field, latent, t).transpose(0, 1)
        misfit = torch.distributions.Normal(decoder(path), 0.3).log_prob(curves).sum((1, 2))
        divergence = (mean**2 + log_variance.exp() - 1 - log_variance).sum(1) / 2
        losses.append(descend(optimizer, (divergence - misfit).mean()))
    return losses


class Flow(nn.Module):
    """A field whose weights a network of time makes, and the change of log density along it."""

    def __init__(self, width=5):
        super().__init__()
        self.width = width
        self.maker = perceptron(1, 8, 5 * width + 2 * width)

    def forward(self, t, state):
        z = state[0]
        with torch.enable_grad():  # the trace needs a graph also where the solver keeps none
            z.requires_grad_(True)
            made = self.maker(t.reshape(1, 1)).flatten()
            inward, outward, shift, gate = made.split(
                [2 * self.width] * 2 + [self.width, 2 * self.width]
            )
            hidden = torch.tanh(z @ inward.view(2, -1) + shift)
            slope = (hidden * torch.sigmoid(gate[: self.width])) @ outward.view(-1, 2)
            rows = [torch.autograd.grad(s.sum(), z, create_graph=True)[0] for s in slope.unbind(1)]
            trace = rows[0][:, :1] + rows[1][:, 1:]
        return slope, -trace


def train_a_continuous_flow(library):
    torch.manual_seed(3)
    field = Flow()
    optimizer = torch.optim.Adam(field.parameters(), lr=2e-2)
    base = torch.distributions.MultivariateNormal(torch.zeros(2), 0.1 * torch.eye(2))
    losses = []
    for _ in range(3):
        angle = torch.rand(16) * 6.3
        points = torch.stack((angle.cos(), angle.sin()), 1) + 0.1 * torch.randn(16, 2)
        z, change = library.odeint_adjoint(
            field, (points, torch.zeros(16, 1)), torch.tensor([1.0, 0.0]),
            atol=1e-6, rtol=1e-6, method="dopri5",
        )  # fmt: skip
        log_density = base.log_prob(z[-1]) - change[-1].flatten()
        losses.append(descend(optimizer, -log_density.mean()))
    return losses


class Ball(nn.Module):
    def __init__(self):
        super().__init__()
        self.gravity = nn.Parameter(torch.tensor([9.8]))
        self.log_radius = nn.Parameter(torch.tensor([0.3]).log())
        self.start = nn.Parameter(torch.tensor([0.1]))
        self.height = nn.Parameter(torch.tensor([4.0]))
        self.speed = nn.Parameter(torch.tensor([0.5]))
        self.loss_of_speed = nn.Parameter(torch.tensor([0.2]))

    def forward(self, t, state):
        return state[1], -self.gravity, torch.zeros_like(state[2])

    def hit_times(self, library, bounces, interface):
        # The radius is part of the state because event functions get no gradients of their own.
        time, state, hits = self.start, (self.height, self.speed, self.log_radius), []
        for _ in range(bounces):
            time, path = library.odeint_event(
                self, state, time, event_fn=lambda t, y: y[0] - y[2].exp(),
                atol=1e-8, rtol=1e-8, odeint_interface=interface,
            )  # fmt: skip
            height, speed, log_radius = (part[-1] for part in path)
            # A little above the ground, or the next solve would end where it starts.
            state = (height + 1e-7, -speed * (1 - self.loss_of_speed), log_radius)
            hits.append(time)
        return hits


def tune_a_bouncing_ball(library, *, adjoint=False):
    ball = Ball()
    optimizer = torch.optim.SGD(ball.parameters(), lr=2e-2)
    interface = library.odeint_adjoint if adjoint else library.odeint
    losses = []
    for _ in range(3):
        hits = torch.cat([hit.reshape(1) for hit in ball.hit_times(library, 3, interface)])
        losses.append(descend(optimizer, (hits - torch.tensor([0.8, 2.0, 3.1])).square().sum()))
        losses.extend(p.grad.item() for p in ball.parameters() if p.grad is not None)
    return losses


class Ground(nn.Module):
    """An event function that is a module's output, and ends the solve when time is over."""

    def __init__(self, end):
        super().__init__()
        self.end = end
        self.network = nn.Linear(1, 1)
        nn.init.constant_(self.network.weight, 1.5)
        nn.init.constant_(self.network.bias, -0.4)

    def forward(self, t, state):
        if t > self.end:
            return torch.zeros_like(t)  # depends on nothing: an event without gradients
        return torch.tanh(self.network(state[0]))


class Fall(nn.Module):
    def __init__(self):
        super().__init__()
        self.pull = nn.Linear(1, 1)

    def forward(self, t, state):
        return state[1], 4 * torch.tanh(self.pull(torch.ones_like(state[1])) - 1)


def learn_physics(library):
    torch.manual_seed(5)
    times = torch.linspace(0.0, 2.0, 21)
    observed = (1.5 - 3 * times**2).abs() % 1.7
    field, ground = Fall(), Ground(times[-1] + 1e-7)
    height, bounce = nn.Parameter(torch.tensor([1.5])), nn.Linear(1, 1)
    parameters = [height, *field.parameters(), *bounce.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=2e-2)
    losses = []
    for _ in range(3):
        time, state, seen = torch.zeros(1), (height, torch.zeros(1)), [height * 1]
        while time < times[-1]:
            found, path = library.odeint_event(
                field, state, time, event_fn=ground, atol=1e-8, rtol=1e-8, method="dopri5"
            )
            inside = times[(times > time) & (times <= found)]
            if len(inside):
                between = torch.cat((time.reshape(1), inside))
                seen.append(library.odeint(field, state, between, atol=1e-8, rtol=1e-8)[0][1:, 0])
            place, speed = (part[-1] for part in path)
            speed = -torch.sigmoid(bounce(torch.ones(1)) + 1) * speed
            state, time = (place + 1e-7 * speed, speed), found
        losses.append(descend(optimizer, (torch.cat(seen) - observed).square().mean()))
    return losses


class TimedConvolution(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.layer = nn.Conv2d(channels + 1, channels, 3, padding=1)

    def forward(self, t, x):
        return self.layer(torch.cat((torch.ones_like(x[:, :1]) * t, x), 1))


class ImageField(nn.Module):
    def __init__(self, channels=4):
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(2, channels) for _ in range(3))
        self.convolutions = nn.ModuleList(TimedConvolution(channels) for _ in range(2))
        self.evaluations = 0

    def forward(self, t, x):
        self.evaluations += 1
        for norm, convolution in zip(self.norms, self.convolutions, strict=False):
            x = convolution(t, torch.relu(norm(x)))
        return self.norms[-1](x)


def classify_images(library):
    torch.manual_seed(6)
    field = ImageField()
    network = nn.ModuleList(
        (nn.Conv2d(1, 4, 3, 2), field, nn.GroupNorm(2, 4), nn.Linear(4, 3))
    ).float()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    images, labels = torch.randn(6, 1, 9, 9, dtype=torch.float32), torch.arange(6) % 3
    span = torch.tensor([0, 1]).float()
    losses = []
    for _ in range(3):
        x = network[0](images)
        x = library.odeint_adjoint(field, x, span.type_as(x), rtol=1e-3, atol=1e-3)[1]
        forward, field.evaluations = field.evaluations, 0
        scores = network[3](torch.relu(network[2](x)).mean((2, 3)))
        losses.append(descend(optimizer, nn.functional.cross_entropy(scores, labels)))
        # Users print these counts; the backward one tells whether the same error was controlled.
        # Three evaluations of ours check that the field still gives what it gave in the solve.
        backward = field.evaluations - 3 * (library is bfno)
        losses.extend((float(forward), float(backward)))
        field.evaluations = 0
    return losses


PROGRAMS = {
    "windows of a spiral": fit_windows_of_a_spiral,
    "windows of a spiral, adjoint": lambda lib: fit_windows_of_a_spiral(lib, adjoint=True),
    "latent model": train_a_latent_model,
    "continuous flow": train_a_continuous_flow,
    "bouncing ball": tune_a_bouncing_ball,
    "bouncing ball, adjoint": lambda lib: tune_a_bouncing_ball(lib, adjoint=True),
    "learned physics": learn_physics,
    "image classifier": classify_images,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_changes_its_import_keeps_its_losses(name):
    theirs = PROGRAMS[name](torchdiffeq)
    assert len({f"{loss:.4g}" for loss in theirs}) > 1, "without learning, equality means little"
    ours = PROGRAMS[name](bfno)
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("with_time", [False, True])
def test_an_event_function_without_gradients_ends_the_solve_all_the_same(with_time):
    results = []
    for library in (bfno, torchdiffeq):
        y0 = torch.tensor([1.0, 2.0], requires_grad=True)
        t0 = torch.tensor(0.0)
        end = lambda t, y: (t if with_time else t.detach()) * 0 + float(t < 0.7) - 0.5  # noqa: E731
        time, ys = library.odeint_event(lambda t, y: -y, y0, t0, event_fn=end, atol=1e-8, rtol=1e-8)
        results.append((time, ys, *torch.autograd.grad(ys[-1].sum(), y0)))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


NAMES = ["callback_step", "callback_accept_step", "callback_reject_step"]


class Watched(nn.Module):
    """A field that writes down every call of its callbacks."""

    def __init__(self, names=(), *, several=False):
        super().__init__()
        torch.manual_seed(7)
        self.network = perceptron(3, 6, 3)
        self.several = several
        self.calls = []
        for name in names:
            setattr(self, name, lambda t0, y0, dt, name=name: self.note(name, t0, y0, dt))

    def note(self, name, t0, y0, dt):
        parts = y0 if isinstance(y0, tuple) else (y0,)
        shapes = [tuple(part.shape) for part in parts]
        kinds = (isinstance(y0, tuple), t0.dtype, dt.dtype, t0.shape, dt.shape, parts[0].dtype)
        # Of the backward solve's tuple: time, state and adjoint; the parameters' share follows.
        total = sum(part.detach().abs().sum().item() for part in parts[:3])
        self.calls.append(((name, shapes, kinds), (t0.item(), dt.item(), total)))

    def forward(self, t, y):
        if self.several:
            return self.slope(t, y[0]), (y[0].sum(1) - y[1]) * torch.cos(t)
        return self.slope(t, y)

    def slope(self, t, y):
        return self.network(y) * (1 + 8 * torch.sin(3 * t))

    def start(self, dtype=torch.float64) -> Any:
        y = torch.linspace(-1.0, 1.0, 6, dtype=dtype).view(2, 3)
        return (y, y[:, 0] * 2) if self.several else y


def assert_same_calls(names, run, *, several=False, rtol=1e-7):
    """Same callbacks in the same order, with the same times, steps, states and kinds of tensors."""
    ours, theirs = (Watched(names, several=several) for _ in range(2))
    run(torchdiffeq, theirs)
    run(bfno, ours)
    assert theirs.calls, "without calls, equality means nothing"
    assert [call[0] for call in ours.calls] == [call[0] for call in theirs.calls]
    found, expected = (torch.tensor([call[1] for call in field.calls]) for field in (ours, theirs))
    torch.testing.assert_close(found, expected, rtol=rtol, atol=1e-9)


FORWARD, BACKWARD = [0.0, 0.4, 1.5], [1.5, 0.3, 0.0]


@pytest.mark.parametrize(("times", "several"), [(FORWARD, False), (BACKWARD, True)])
@pytest.mark.parametrize("method", ADAPTIVE)
def test_adaptive_methods_call_back_at_every_step_accepted_and_rejected(method, times, several):
    def run(library, field):
        settings = {"method": method, "rtol": 1e-3, "atol": 1e-3}
        library.odeint(field, field.start(), torch.tensor(times), **settings)

    assert_same_calls(NAMES, run, several=several)


@pytest.mark.parametrize("times", [FORWARD, BACKWARD])
@pytest.mark.parametrize("method", [*ADAPTIVE, *ADAPTIVE_WITH_OTHER_STEPS])
def test_callbacks_tell_a_path_of_accepted_steps(method, times):
    field, first = Watched(NAMES), Watched(NAMES)
    t, settings = torch.tensor(times), {"method": method, "rtol": 1e-3, "atol": 1e-3}
    bfno.odeint(field, field.start(), t, **settings)
    torchdiffeq.odeint(first, first.start(), t, **settings)
    assert field.calls[0][0] == first.calls[0][0]
    assert field.calls[0][1] == pytest.approx(first.calls[0][1], rel=1e-9)
    now, kinds = times[0], [call[0][0] for call in field.calls]
    for (kind, *_), (begin, size, _) in field.calls:
        assert begin == pytest.approx(now, abs=1e-12)
        assert size > 0  # also backward in time
        if kind == "callback_accept_step":
            now += size if times is FORWARD else -size
    assert now >= times[-1] if times is FORWARD else now <= times[-1]
    assert kinds[::2] == ["callback_step"] * (len(kinds) // 2)
    assert set(kinds[1::2]) <= set(NAMES[1:])


def test_the_steps_watched_include_rejected_ones():
    field = Watched(NAMES)
    bfno.odeint(field, field.start(), torch.tensor(FORWARD), rtol=1e-4, atol=1e-4)
    assert {call[0][0] for call in field.calls} == set(NAMES)


@pytest.mark.parametrize(
    ("times", "options"),
    [
        (FORWARD, {}),
        (FORWARD, {"step_size": 0.06}),
        (BACKWARD, {"step_size": 0.06, "perturb": True}),
    ],
)
@pytest.mark.parametrize("method", FIXED)
def test_fixed_methods_call_back_before_every_step(method, times, options):
    def run(library, field):
        t, loose = torch.tensor(times), {"rtol": 0.1, "atol": 0.1}  # so that implicit Adams ends
        library.odeint(field, field.start(), t, method=method, options=options, **loose)

    assert_same_calls(NAMES[:1], run)


@pytest.mark.parametrize(
    "options",
    [
        {"first_step": 1.5},
        {"max_step": 0.1},
        {"min_step": 0.3},
        {"jump_t": torch.tensor([0.7])},  # told before the step is shortened, and after
        {"step_t": torch.tensor([0.25, 1.1])},
        {"dtype": torch.float32},
    ],
    ids=lambda options: next(iter(options)),
)
def test_step_options_show_in_the_callbacks_as_in_torchdiffeq(options):
    def run(library, field):
        library.odeint(
            field, field.start(torch.float32), torch.tensor([0.0, 2.0]), method="dopri5",
            rtol=1e-3, atol=1e-3, options=options,
        )  # fmt: skip

    # In float32 the sums of a step round differently, which moves the next step a little.
    field_of_float32 = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        assert_same_calls(NAMES, run, rtol=2e-3)
    finally:
        torch.set_default_dtype(field_of_float32)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("times", [FORWARD, BACKWARD])
@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_the_backward_solve_calls_the_adjoint_callbacks(method, times, several):
    names = NAMES if method == "dopri5" else NAMES[:1]
    options = {"step_size": 0.13} if method == "rk4" else {}

    def run(library, field):
        y0 = field.start()
        ys = library.odeint_adjoint(
            field, y0, torch.tensor(times), method=method, rtol=1e-4, atol=1e-4, options=options
        )
        forward, field.calls = field.calls, []
        (ys[0] if several else ys).square().sum().backward()
        assert {call[0][0] for call in forward} == set(names)
        assert all(call[0][0].endswith("_adjoint") for call in field.calls)
        field.calls = forward + field.calls

    # Where time runs backward, torchdiffeq tells its adjoint callbacks negative times; so do we.
    both = [*names, *(f"{name}_adjoint" for name in names)]
    # A step of the backward solve may be shorter than rounding lets two orders of sums agree on.
    assert_same_calls(both, run, several=several, rtol=1e-5)


def test_callbacks_are_called_until_an_event_by_adaptive_methods():
    def run(library, field):
        span = torch.tensor([0.0, 1.0])
        library.odeint(
            field, field.start(), span, event_fn=lambda t, y: 1.3 - t, rtol=1e-4, atol=1e-4
        )

    assert_same_calls(NAMES, run)


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("rk4", "callback_accept_step"),
        ("euler", "callback_reject_step"),
        ("scipy_solver", NAMES[0]),
    ],
)
def test_a_callback_that_a_method_never_calls_warns(method, name):
    for library in (torchdiffeq, bfno):
        field = Watched([name])
        with pytest.warns(UserWarning, match=f"does not support callbacks.*{name}"):
            library.odeint(field, field.start().detach(), torch.tensor([0.0, 1.0]), method=method)
        assert not field.calls


def test_dense_solutions_are_those_of_torchdiffeq_at_any_time_with_gradients():
    results = []
    for library in (bfno, torchdiffeq):
        field = Watched()
        y0 = field.start().requires_grad_()
        solution = library.odeint_dense(
            field, y0, torch.tensor(0.2), torch.tensor(1.7), rtol=1e-6, atol=1e-6
        )
        states = [solution(torch.tensor(time)) for time in (0.2, 0.21, 0.9, 1.45, 1.7)]
        loss = torch.stack(states).square().sum()
        results.append((*states, *torch.autograd.grad(loss, (y0, *field.parameters()))))
    for one, other in zip(*results, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    for one, other in zip(results[0][:5], results[1][:5], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


def test_a_dense_solution_goes_through_the_states_of_odeint():
    field = Watched()
    t = torch.tensor([0.0, 0.3, 1.1, 2.0])
    solution = bfno.odeint_dense(field, field.start(), t[0], t[-1])
    ys = bfno.odeint(field, field.start(), t)
    torch.testing.assert_close(torch.stack([solution(time) for time in t]), ys, rtol=0, atol=1e-12)


def test_a_dense_solution_keeps_the_precision_of_the_state():
    results = []
    for library in (bfno, torchdiffeq):
        field = Watched().float()
        ends = torch.tensor([0.0, 1.0], dtype=torch.float32)
        solution = library.odeint_dense(
            field, field.start(torch.float32), *ends, rtol=1e-4, atol=1e-4
        )
        results.append(solution(torch.tensor(0.6, dtype=torch.float64)))
    assert results[0].dtype == results[1].dtype == torch.float32
    torch.testing.assert_close(*results, rtol=0, atol=1e-5)


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_the_precision_of_times_is_an_option(precision):
    t = torch.linspace(0.0, 1.0, 5, dtype=torch.float32)
    results = []
    for library in (bfno, torchdiffeq):
        seen = []

        def field(t, y, seen=seen):
            seen.append((t.dtype, y.dtype))
            return -y * torch.sin(t)

        y0 = torch.linspace(1.0, 2.0, 4, dtype=torch.float32)
        results.append(
            library.odeint(
                field, y0, t, method="dopri5", rtol=1e-4, atol=1e-4, options={"dtype": precision}
            )
        )
        assert set(seen) == {(torch.float32, torch.float32)}  # the field sees the state's precision
    assert results[0].dtype == results[1].dtype == torch.float32
    torch.testing.assert_close(*results, rtol=0, atol=2e-5)


class Rotation(nn.Module):
    """A complex field with a complex parameter, and a rate that may be a real one."""

    def __init__(self, dtype, rate: Any = 0.7):
        super().__init__()
        torch.manual_seed(8)
        self.matrix = nn.Parameter(0.4 * torch.randn(3, 3, dtype=dtype))
        self.rate = rate

    def forward(self, t, y):
        assert not t.is_complex()
        return y @ self.matrix * torch.exp(1j * self.rate * t).to(y.dtype) - 0.1 * y * y.conj()

    def start(self):
        start = torch.linspace(-1, 1, 6).view(2, 3)
        return torch.complex(start, 1 - start**2).to(self.matrix.dtype).requires_grad_()


def gradients_of_a_complex_solve(solver, field, *others, **settings):
    y0, t = field.start(), torch.tensor([0.0, 0.35, 1.0]).to(field.matrix.real.dtype)
    ys = solver(field, y0, t, **settings)
    loss = (ys.abs() ** 2).sum() + ys[-1].real.sum()
    return ys, *torch.autograd.grad(loss, (y0, field.matrix, *others))


@pytest.mark.parametrize("dtype", [torch.complex128, torch.complex64])
@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("method", ["dopri5", "bosh3", "rk4", "implicit_adams"])
def test_complex_states_and_their_gradients_are_those_of_torchdiffeq(method, adjoint, dtype):
    settings: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}
    if method in FIXED:
        settings = {"rtol": 0.1, "atol": 0.1, "options": {"step_size": 0.05}}
    settings["method"] = method
    name = "odeint_adjoint" if adjoint else "odeint"
    found, expected = (
        gradients_of_a_complex_solve(getattr(library, name), Rotation(dtype), **settings)
        for library in (bfno, torchdiffeq)
    )
    # torchdiffeq's dense output of bosh3 is off by more than its steps, and is not copied.
    # In single precision the error of the first, small step is rounding, and so is the size of the
    # next one, which moves the gradients by a part of their error of 4e-3 at this tolerance.
    coarse = method not in FIXED and dtype is torch.complex64
    atol = 0.05 if method == "bosh3" else 4e-3 if coarse else 2e-4
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=0, atol=atol)
    if method != "bosh3" and dtype is torch.complex128:
        torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-9)


def test_a_real_parameter_of_a_complex_field_has_a_real_gradient():
    # torchdiffeq's own adjoint fails here, but its steps have the gradient.
    results = []
    for solver in (torchdiffeq.odeint, bfno.odeint, bfno.odeint_adjoint):
        rate = nn.Parameter(torch.tensor(0.7))
        field = Rotation(torch.complex128, rate)
        found = gradients_of_a_complex_solve(solver, field, rate, rtol=1e-7, atol=1e-8)
        assert found[-1].dtype == torch.float64
        results.append(found)
    for found in results[1:]:
        for one, other in zip(found, results[0], strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_complex_states_may_stand_in_tuples_beside_each_other():
    results = []
    for library in (bfno, torchdiffeq):
        y0 = (torch.tensor([1.0 + 1j]), torch.tensor([[0.5 - 2j, 1j]]))
        field = lambda t, y: (1j * y[0] + y[1].sum(), -y[1] * t)  # noqa: E731
        results.append(library.odeint(field, y0, torch.tensor([0.0, 1.0])))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-8)


def test_complex_states_reach_a_real_event():
    results = []
    for library in (bfno, torchdiffeq):
        y0 = torch.tensor([1.0 + 0j], requires_grad=True)
        time, ys = library.odeint_event(
            lambda t, y: 1j * y, y0, torch.tensor(0.0), event_fn=lambda t, y: y.real.sum()
        )
        results.append((time, ys.detach()))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    "limits", [{"min_step": 0.2}, {"max_step": 0.05}, {"min_step": 0.1, "max_step": 0.3}]
)
@pytest.mark.parametrize("method", ADAPTIVE)
def test_limits_of_the_step_act_as_in_torchdiffeq(method, limits):
    results, counts = [], []
    for library in (bfno, torchdiffeq):
        field, seen = Watched(), []

        def counted(t, y, field=field, seen=seen):
            seen.append(t)
            return field(t, y)

        t = torch.tensor([0.0, 0.35, 1.5])
        options = {**limits, "max_num_steps": 300}  # for who rejects the smallest step forever
        ys = library.odeint(
            counted, field.start(), t, method=method, rtol=1e-3, atol=1e-3, options=options
        )
        results.append(ys)
        counts.append(len(seen))
    assert counts[0] == counts[1]
    # dopri5 has the dense output of torchdiffeq, the others a better one; these steps are large.
    atol = 1e-10 if method == "dopri5" else 0.05
    torch.testing.assert_close(*results, rtol=0, atol=atol)


def test_limits_of_the_step_reach_scipy():
    for library in (torchdiffeq, bfno):
        seen = []

        def field(t, y, seen=seen):
            seen.append(t)
            return -y

        options = {"solver": "LSODA", "max_step": 0.01}
        t = torch.tensor([0.0, 1.0])
        library.odeint(field, torch.ones(2), t, method="scipy_solver", options=options)
        assert len(seen) > 100


@pytest.mark.parametrize("method", ["dopri5", "bosh3", "rk4", "explicit_adams", "implicit_adams"])
def test_autocast_does_not_touch_the_arithmetic_of_a_solve(method):
    # Nothing in this field is for autocast, so that what changes would be the engine's own doing.
    options = {"step_size": 0.05} if method in FIXED else {}
    settings = {"method": method, "rtol": 1e-5, "atol": 1e-6, "options": options}
    y0, t = torch.linspace(-1, 1, 12).view(3, 4).float(), torch.tensor([0.0, 0.5, 1.0])
    for solver in (bfno.odeint, lambda *a, **k: bfno.odeint_adjoint(*a, adjoint_params=(), **k)):
        plain = solver(lambda t, y: torch.sin(y) * 2, y0, t, **settings)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = solver(lambda t, y: torch.sin(y) * 2, y0, t, **settings)
        assert cast.dtype == torch.float32
        torch.testing.assert_close(cast, plain, rtol=0, atol=0)


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_a_network_under_autocast_is_solved_as_by_torchdiffeq(method, adjoint):
    options = {"step_size": 0.25} if method == "rk4" else {}
    settings = {"method": method, "rtol": 1e-2, "atol": 1e-2, "options": options}
    results = []
    for library in (bfno, torchdiffeq):
        field = Watched().float()
        y0 = field.start(torch.float32).requires_grad_()
        t = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float32)
        solver = library.odeint_adjoint if adjoint else library.odeint
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert field(t[0], y0).dtype == torch.bfloat16  # the field itself does less than y0
            ys = solver(field, y0, t, **settings)
        gradients = torch.autograd.grad(ys.square().sum(), (y0, *field.parameters()))
        results.append((ys, *gradients))
    for one, other in zip(*results, strict=True):
        assert one.dtype == other.dtype == torch.float32
        # bfloat16 has three digits, of which the sums of a step may take one.
        scale = other.abs().max().item()
        torch.testing.assert_close(one, other, rtol=0, atol=0.03 * scale)


def halves(field, y0, t):
    """A grid with the middle of every interval, in the precision of the times."""
    return torch.cat((torch.stack((t[:-1], (t[:-1] + t[1:]) / 2), 1).flatten(), t[-1:]))


@pytest.mark.parametrize("times", [[0.1, 0.35, 0.7], [0.7, 0.35, 0.1]])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_a_grid_constructor_gets_the_times_as_they_were_given(precision, kind, times):
    results, t = [], torch.tensor(times, dtype=precision)
    for library in (bfno, torchdiffeq):
        seen = []

        def grid(field, y0, t, seen=seen):
            seen.append((t.dtype, t.tolist(), y0.shape))
            return halves(field, y0, t)

        options = {"grid_constructor": grid}
        y0 = (torch.ones(2, dtype=kind), torch.ones(3, 1, dtype=kind))
        field = lambda t, y: (-y[0], y[1] * t)  # noqa: E731
        ys = library.odeint(field, y0, t, method="rk4", options=options)
        results.append((seen, ys))
    assert results[0][0] == results[1][0]
    # torchdiffeq subtracts times in their own precision.
    atol = 1e-14 if precision == kind == torch.float64 else 1e-6
    for one, other in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=atol)


def test_a_grid_constructor_serves_the_backward_solve_as_well():
    results = []
    for library in (bfno, torchdiffeq):
        y0 = torch.linspace(-1, 1, 3, dtype=torch.float32).requires_grad_()
        ys = library.odeint_adjoint(
            lambda t, y: -y * t, y0, torch.tensor([0.1, 0.35, 0.7]), method="rk4",
            options={"grid_constructor": halves}, adjoint_params=(),
        )  # fmt: skip
        results.append(torch.autograd.grad(ys.square().sum(), y0)[0])
    torch.testing.assert_close(*results, rtol=0, atol=1e-6)


def coupled(t, state):
    return -state[0], torch.cos(9 * t) * state[1]


# A tuple has one tolerance for each of its components, a tensor one for each of its elements.
TOLERANCES = {
    "tuple": ((1e-3, 1e-6), (1e-3, 1e-6)),
    "one row": (torch.tensor([1e-3, 1e-6]), 1e-6),
    "rows": ((1e-3, torch.tensor([1e-6, 1e-5, 1e-4])), torch.tensor(1e-6)),
}


@pytest.mark.parametrize("name", TOLERANCES)
@pytest.mark.parametrize("method", ["explicit_adams", "implicit_adams", "fixed_adams", "dopri5"])
def test_tolerances_of_components_act_as_in_torchdiffeq(method, name):
    options = {} if method == "dopri5" else {"step_size": 0.05}
    rtol, atol = TOLERANCES[name]
    settings = {"method": method, "options": options, "rtol": rtol, "atol": atol}
    y0, t = (torch.ones(2), torch.ones(3)), torch.tensor([0.0, 0.4, 1.0])
    found, expected = (lib.odeint(coupled, y0, t, **settings) for lib in (bfno, torchdiffeq))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rtol", [torch.tensor([1e-3, 1e-6, 1e-5]), [1e-3, 1e-6, 1e-5]])
@pytest.mark.parametrize("method", ["explicit_adams", "implicit_adams", "fixed_adams", "dopri5"])
def test_tolerances_of_elements_act_as_in_torchdiffeq(method, rtol):
    options = {} if method == "dopri5" else {"step_size": 0.05}
    settings = {"method": method, "options": options, "rtol": rtol, "atol": torch.tensor(1e-6)}
    y0, t = torch.linspace(0.5, 2, 6).view(2, 3), torch.tensor([0.0, 0.4, 1.0])
    found, expected = (
        lib.odeint(lambda t, y: -(y**2), y0, t, **settings) for lib in (bfno, torchdiffeq)
    )
    # The weights of explicit Adams steps of order 11 are up to 40, and amplify rounding.
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


def test_tolerances_of_components_reach_scipy():
    # torchdiffeq itself fails here: SciPy cannot read its tensors.
    y0, t = (torch.ones(2), torch.ones(3)), torch.tensor([0.0, 1.0])
    tolerances: dict[str, Any] = {"rtol": (1e-3, 1e-7), "atol": (1e-3, 1e-9)}
    found = bfno.odeint(coupled, y0, t, method="scipy_solver", **tolerances)
    expected = torchdiffeq.odeint(coupled, y0, t)
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Functional iteration", "ignore:the corrections of an implicit")
@pytest.mark.parametrize("max_order", [5, 8, 12])
@pytest.mark.parametrize(("step", "tolerance"), [(0.1, 1e-3), (0.05, 1e-5)])
def test_corrections_that_do_not_settle_lower_the_order_as_in_torchdiffeq(
    step, tolerance, max_order
):
    results = []
    for library in (bfno, torchdiffeq):
        field = lambda t, y: 8j * y * (1 + 0.5 * torch.sin(5 * t))  # noqa: E731
        y0, t = torch.tensor([1.0 + 0j, 0.3 - 1j]), torch.tensor([0.0, 1.0])
        options = {"step_size": step, "max_order": max_order}
        # So that some steps settle and others do not.
        tolerances = {"rtol": tolerance, "atol": tolerance}
        results.append(
            library.odeint(field, y0, t, method="implicit_adams", options=options, **tolerances)
        )
    torch.testing.assert_close(*results, rtol=1e-11, atol=1e-11)


def test_tolerances_of_components_leave_the_backward_solve_their_smallest():
    # torchdiffeq's own backward solve has other components, and fails.
    y0, t = (torch.ones(2, requires_grad=True), torch.ones(3)), torch.tensor([0.0, 1.0])
    tolerances: dict[str, Any] = {"rtol": (1e-3, 1e-6), "atol": (1e-2, 1e-7)}
    backward: list[dict[str, Any]] = [
        {}, {"adjoint_rtol": 1e-6, "adjoint_atol": 1e-7}, {"adjoint_rtol": (1e-6, 1.0)}
    ]  # fmt: skip
    direct, gradients = torchdiffeq.odeint(coupled, y0, t, **tolerances), []
    for given in backward:
        ys = bfno.odeint_adjoint(coupled, y0, t, adjoint_params=(), **tolerances, **given)
        gradients.append(torch.autograd.grad(ys[0][-1].sum(), y0[0])[0])
        for one, other in zip(ys, direct, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradients[0], torch.exp(-torch.ones(2)), rtol=0, atol=1e-5)
    assert torch.equal(gradients[0], gradients[1])
    assert torch.equal(gradients[0], gradients[2])


# Options that torchdiffeq takes, with and without a warning, and what they do.
ACCEPTED = [
    ("scipy_solver", {"eps": 1e-3, "grid_points": torch.tensor([0.5])}, None),
    ("dopri5", {"eps": 1e-3}, "eps"),
    ("rk4", {"eps": 1e-3}, "eps"),
    ("implicit_adams", {"implicit": False}, None),
    ("implicit_adams", {"implicit": True, "max_order": 5.0}, None),
    ("explicit_adams", {"max_order": 3}, "max_order is below 4"),
    ("rk4", {"step_size": None, "grid_constructor": None}, None),
    ("rk4", {"step_size": torch.tensor([0.1])}, None),
    ("dopri5", {"first_step": None, "step_t": None, "jump_t": None}, None),
    ("dopri5", {"step_t": torch.tensor(0.4), "max_num_steps": torch.tensor(50)}, None),
    ("dopri5", {"safety": 0.8, "ifactor": 5, "dfactor": torch.tensor(0.3)}, None),
]


@pytest.mark.parametrize(("method", "options", "warning"), ACCEPTED)
def test_every_option_of_torchdiffeq_is_taken(method, options, warning):
    results = []
    for library in (bfno, torchdiffeq):
        t, loose = torch.linspace(0.0, 1.0, 6), {"rtol": 1e-2, "atol": 1e-2}
        with contextlib.ExitStack() as stack:
            if warning is not None:
                stack.enter_context(pytest.warns(UserWarning, match=warning))
            results.append(
                library.odeint(
                    lambda t, y: -(y**2), torch.ones(2), t, method=method, options=options, **loose
                )
            )
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)


def test_an_event_may_start_at_a_number():
    for library, start in (
        (torchdiffeq, torch.tensor(0.5)),
        (bfno, 0.5),
        (bfno, torch.tensor([0.5])),
    ):
        time, ys = library.odeint_event(
            lambda t, y: -torch.ones_like(y), torch.ones(1), start, event_fn=lambda t, y: y[0]
        )
        assert time.item() == pytest.approx(1.5)
        assert ys.shape == (2, 1)
    assert bfno.odeint_dense(lambda t, y: -y, torch.ones(1), 0, 1.0)(0.5).item() == pytest.approx(
        0.60653, abs=1e-5
    )


@pytest.mark.parametrize("method", ["euler", "rk4", "explicit_adams"])
def test_times_get_gradients_through_a_grid_that_was_computed_from_them(method):
    def grid(field, y0, t):
        return t[0] + (t[-1] - t[0]) * torch.linspace(0, 1, 9) ** 2

    found = []
    for library in (bfno, torchdiffeq):
        t = torch.tensor([0.1, 0.5, 1.6], requires_grad=True)
        ys = library.odeint(
            lambda t, y: torch.sin(3 * t) * y + t * t, torch.ones(1), t, method=method,
            options={"grid_constructor": grid},
        )  # fmt: skip
        found.append(torch.autograd.grad(ys.square().sum(), t)[0])
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)
