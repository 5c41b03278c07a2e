"""Every model on a GPU that is not there, and in half precision: devices, waits and accuracy."""

import contextlib
import types

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
from tests.devices import GPU, fake_gpu, moved

CPU = torch.device("cpu")
# As few evaluations as an adaptive method can do with.
QUICK = {"solver": {"method": "adaptive_heun"}}
CONV = ("node", "anode", "sonode", "hbnode", "ghbnode", "nesterovnode", "gnesterovnode", "adamnode")
OPERATORS = ("bfno-node", "fno-node", "afno-node", "bfno-net")
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
    "digits/cnn": 0,
    **{f"physionet/{name}": SHAPES for name in (*ROWS, *STEPS)},
    "physionet/rnn-vae": 2 * SHAPES,
    **{f"physionet/{name}": SHAPES + OWN_TIMES + SOLVE for name in LATENT},
    "physionet/latent-ode-rnn": SHAPES + OWN_TIMES + SOLVE,
    **{f"digits-density/{name}": 0 for name in LAYERED},
    "moons/ffjord": SOLVE + TRAINED_END,
    "moons/ffjord-bfno-rnode": SOLVE,
}


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


def _built(name, device="meta", changes=QUICK):
    config = resolve(name, scale="smoke", changes=changes)
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
