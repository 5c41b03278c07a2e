"""Every model on a GPU that is not there, and in half precision: devices, waits and accuracy."""

import contextlib
import types
from typing import Any

import pytest
import torch

import bfno
from bfno.lab.data import Series, Split, Splits
from bfno.lab.experiments.density.data import DensityData
from bfno.lab.experiments.processes import Processes
from bfno.lab.experiments.resolve import resolve
from bfno.lab.experiments.tasks import Place
from bfno.lab.runs import loop
from bfno.lab.runs.folder import RunFolder
from bfno.layers import AFNO, BFNO, FNO
from bfno.ode import problem, replay
from tests.devices import GPU, fake_gpu, moved

CPU = torch.device("cpu")
# As few evaluations as an adaptive method can do with.
QUICK = {"solver": {"method": "adaptive_heun", "step": None}}
CONV = ("node", "anode", "sonode", "hbnode", "ghbnode", "nesterovnode", "gnesterovnode", "adamnode")
OPERATORS = ("bfno-node", "fno-node", "afno-node")
ROWS = ("rnn-delta-t", "rnn-impute", "rnn-d", "gru-d")
STEPS = ("ode-rnn", "ghbnode-rnn", "gnesterovnode-rnn")
LATENT = ("latent-ode", "augmented-ode", "ace-latent-ode", "latent-bfno-node")
LAYERED = ("realnvp", "glow", "i-resnet")

# Besides the error test of every attempted step. A solve waits for the norms of the start, for that
# of the first step's bend and for whether the result is finite; its backward pass once for whether
# all evaluations were repeated faithfully.
SOLVE = 4
# How many rows are observed at most, or how many steps each series takes, decides shapes.
SHAPES = 1
# Each series' own times, which have to be looked at, and where they lie between the steps.
OWN_TIMES = 2
# An end that is trained has to be read: to be checked, planned with, compared and differentiated.
TRAINED_END = 4
WAITS = {
    **{f"digits/{name}": SOLVE for name in (*CONV, *OPERATORS)},
    "digits/bfno-net": SOLVE - 1,  # whose evaluations are kept and not repeated
    "digits/cnn": 0,
    **{f"physionet/{name}": SHAPES for name in (*ROWS, *STEPS)},
    "physionet/rnn-vae": 2 * SHAPES,
    **{f"physionet/{name}": SHAPES + OWN_TIMES + SOLVE for name in LATENT},
    "physionet/latent-ode-rnn": SHAPES + OWN_TIMES + SOLVE,
    **{f"digits-density/{name}": 0 for name in LAYERED},
    "moons/ffjord": SOLVE + TRAINED_END,
    "moons/ffjord-bfno-rnode": SOLVE,
}


@pytest.fixture(autouse=True)
def _single_precision():
    """As users have it, not as in the other tests."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(before)


def _data(config, facts):
    """A few samples of the right shape."""
    shape = getattr(config.data, "shape", ())
    if "event_shape" in facts:
        samples = torch.rand(4, *shape)
        samples = (255 * samples).byte() if len(shape) == 3 else samples
        return DensityData(samples, None, samples)
    if "features" not in facts:
        images = (255 * torch.rand(4, *shape)).byte()
        part = Split(images, torch.arange(4) % len(facts["classes"]))
        return Splits(part, None, part, tuple(facts["classes"]))
    count, rows, features = 3, 4, len(facts["features"])
    mask = torch.rand(count * rows, features) < 0.7
    series = Series(
        torch.rand(count, rows, dtype=torch.float64).sort(1).values.flatten(),
        torch.rand(count * rows, features) * mask,
        mask,
        torch.tensor([0, 1, -1]),
        rows * torch.arange(count + 1),
        ("a", "b", "c"),
        by_row=False,
    )
    return types.SimpleNamespace(train=series, test=series, validation=None, classes=("0", "1"))


def _built(name, device: Any = "meta", changes=QUICK):
    # A network without an equation refuses settings of its solver.
    config = resolve(name, scale="smoke", changes={} if name.endswith("/cnn") else changes)
    facts = config.known_facts()
    with torch.device(device):
        model = config.build(facts).train()
    return config.task(_data(config, facts)), model


def _attempts(model):
    """Steps that the adaptive solves of the last call have tried."""
    solved = [getattr(one, "solved", None) for one in model.modules()]
    solved += [one.stats for one in model.modules() if isinstance(one, bfno.NeuralODE)]
    solved += [one.stats for one in model.modules() if isinstance(one, bfno.LatentGenerator)]
    return sum(one.accepted + one.rejected for one in solved if one is not None)


def _unkept(waits):
    """Waits but for those for a constant, which is sent once and kept."""
    kept = ("ode/state.py: return torch.tensor(", "layers/spectral.py: return ")
    return [one for one in waits if not one.startswith(kept)]


@pytest.mark.parametrize("name", WAITS)
def test_a_training_step_stays_on_the_device_and_waits_for_little(name):
    task, model = _built(name)
    with fake_gpu() as host:
        moved(model)
        task.prepare(model, GPU)
        host.waits.clear()
        loss, found = task.loss(model, torch.arange(3), Place(GPU))
        loss.backward()
    assert loss.device == GPU
    assert all(value.device == GPU for value in found.values())
    assert {parameter.grad.device for parameter in model.parameters()} == {GPU}
    waits = _unkept(host.waits)
    assert len(waits) == WAITS[name] + _attempts(model), waits


def test_what_a_step_sends_to_the_device_stays_there():
    task, model = _built("digits/bfno-node")
    with fake_gpu() as host:
        moved(model)
        for _ in range(2):
            host.waits.clear()
            task.loss(model, torch.arange(3), Place(GPU))
    assert host.waits == _unkept(host.waits)


class _OneProcess:
    """What the loop asks of Accelerate, in the only process of a run."""

    def prepare(self, model, optimizer):
        return moved(model), _Optimizer(model)

    def unwrap_model(self, model):
        return model

    def backward(self, loss):
        loss.backward()

    def unscale_gradients(self):
        pass


class _Optimizer(torch.optim.Adam):
    def __init__(self, model):
        super().__init__(model.parameters())
        self.optimizer = self


def test_the_loop_waits_once_for_all_that_a_step_has_found(monkeypatch, tmp_path):
    config = resolve("digits/cnn", scale="smoke", changes={"train": {"clip": 1.0}})
    facts = config.known_facts()
    task = config.task(_data(config, facts))
    alone = Processes(device=GPU, accelerator=_OneProcess())
    monkeypatch.setattr(loop.Processes, "join", classmethod(lambda _: alone))
    with torch.device("meta"):
        model = config.build(facts)
    with fake_gpu() as host:
        trainer = loop.Trainer(config, task, model, RunFolder(tmp_path), {}, [])
        for _ in range(2):
            host.waits.clear()
            trainer._step(torch.arange(4))
    assert len(host.waits) == 1, host.waits


@pytest.mark.parametrize("name", [*(f"digits-density/{one}" for one in LAYERED), "moons/ffjord"])
def test_samples_are_drawn_on_the_device(name):
    _, model = _built(name)
    with fake_gpu(), torch.no_grad():
        samples = moved(model).eval().sample(2)
    assert samples.device == GPU
    assert samples.shape[1:] == model.event_shape


@pytest.mark.parametrize("method", ["gru-d", "ode-rnn", "latent-ode"])
def test_values_of_series_are_expected_on_the_device(method):
    _, model = _built(f"physionet/{method}")
    with fake_gpu(), torch.no_grad():
        times = torch.rand(3, 4, device=GPU)
        values = torch.rand(3, 4, model.features, device=GPU)
        found = moved(model).eval().reconstruct(times, values, values > 0.5, times[:, :2])
    assert found.device == GPU


@pytest.mark.parametrize("gradient", ["direct", "adjoint"])
@pytest.mark.parametrize("step", [None, 0.5])
def test_every_gradient_is_found_on_the_device(gradient, step):
    with torch.device("meta"):
        field = bfno.MLPField(3, 4)
    with fake_gpu():
        y0 = torch.rand(2, 3, device=GPU, requires_grad=True)
        ts = torch.tensor([0.0, 1.0], device=GPU)
        settings = {"method": "adaptive_heun", "gradient": gradient, "step": step}
        bfno.solve(moved(field), y0, ts, **settings).ys[-1].sum().backward()
    assert y0.grad is not None
    assert y0.grad.device == GPU


class _Inexact(replay.Replayer):
    """Takes the processor for a device that may sum in another order each time."""

    def __init__(self, *settings):
        super().__init__(*settings)
        self._is_exact = False


def test_a_field_that_changed_is_found_at_the_end_of_the_backward_pass(monkeypatch):
    monkeypatch.setattr(problem, "Replayer", _Inexact)
    monkeypatch.setattr(replay, "KEPT_BYTES", -1)
    weight, factor = torch.ones(3, requires_grad=True), [1.0]

    def solved():
        field = lambda t, y: -factor[0] * weight * y  # noqa: E731
        return bfno.solve(field, torch.ones(2, 3), torch.tensor([0.0, 1.0])).ys[-1].sum()

    (expected,) = torch.autograd.grad(solved(), weight)
    total = solved()
    factor[0] = 1.5
    with pytest.raises(bfno.GradientError, match="gave another result"):
        total.backward()
    factor[0] = 1.0
    torch.testing.assert_close(torch.autograd.grad(solved(), weight)[0], expected)


LAYERS = {
    "bfno of any kernel": lambda: BFNO(4, 2, kernel="gate", skip="conv"),
    "bfno with a filter": lambda: BFNO(4, 2, kernel="filter", grid=(6, 70), skip="linear"),
    "bfno on a long grid": lambda: BFNO(4, 2),
    "fno": lambda: FNO(4, modes=2),
    "afno": lambda: AFNO(4, blocks=2),
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_layers_stay_on_the_device(make):
    with torch.device("meta"):
        layer = make()
    with fake_gpu():
        moved(layer)
        # Longer than what is transformed by matrices.
        layer(torch.rand(2, 4, 6, 70, device=GPU)).sum().backward()
    assert {parameter.grad.device for parameter in layer.parameters()} == {GPU}


# bfloat16 has eight binary digits: what one operation rounds is 0.004 of its result.
SHARE_OF_LOSS, SHARE_OF_GRADIENT = 4e-3, 0.2


@pytest.mark.parametrize("name", WAITS)
def test_autocast_leaves_the_loss_what_it_is(name):
    task, model = _built(name, CPU, {"solver": {"rtol": 1e-2, "atol": 1e-2}})
    task.prepare(model, CPU)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    losses, gradients = [], []
    for autocast in (contextlib.nullcontext(), torch.autocast("cpu", dtype=torch.bfloat16)):
        model.load_state_dict(state)
        model.zero_grad()
        torch.manual_seed(1)
        with autocast:
            loss, _ = task.loss(model, torch.arange(3), Place(CPU))
        loss.backward()
        losses.append(loss.item())
        gradients.append(torch.cat([one.grad.flatten() for one in model.parameters()]))
    assert loss.dtype is torch.float32
    assert losses[1] == pytest.approx(losses[0], rel=SHARE_OF_LOSS)
    error = (gradients[1] - gradients[0]).norm() / gradients[0].norm()
    assert error < SHARE_OF_GRADIENT
