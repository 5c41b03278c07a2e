"""The authors' weights, imported, against a plain re-statement of their program."""

import json
import pickle

import pytest
import torch
from torch import nn
from torchdiffeq import odeint

from bfno.lab.errors import ConfigError, DataError
from bfno.lab.runs.load import open_run
from bfno.lab.runs.released import import_released


class _TheirLayer:
    """One spectral layer as published: branch by branch, real and imaginary parts apart."""

    def __init__(self, weights: dict, name: str) -> None:
        self.blocks = [
            (
                weights[f"{name}.weight_block_{i}.weights1"],
                weights[f"{name}.weight_block_{i}.bias1"],
            )
            for i in (1, 2)
        ]
        self.merges = [
            (
                weights[f"{name}.concat_{p}_layer_1.weight"],
                weights[f"{name}.concat_{p}_layer_1.bias"],
            )
            for p in ("real", "imag")
        ]

    def __call__(self, x):
        spectrum = torch.fft.rfft2(x, norm="ortho").permute(0, 2, 3, 1)
        a, b = spectrum.real, spectrum.imag
        reals = [torch.relu(a @ w[0] - b @ w[1] + c[0]) for w, c in self.blocks]
        imags = [torch.relu(b @ w[0] + a @ w[1] + c[1]) for w, c in self.blocks]
        real, imag = (
            nn.functional.linear(torch.cat(parts, -1), *merge)
            for parts, merge in zip((reals, imags), self.merges, strict=True)
        )
        merged = torch.complex(real, imag).permute(0, 3, 1, 2)
        return torch.fft.irfft2(merged, s=x.shape[-2:], norm="ortho") + x


class _TheirModel:
    """The published classifier on torchdiffeq; counts the calls of its field."""

    def __init__(self, weights: dict) -> None:
        self.weights, self.calls = weights, 0
        self.layers = [_TheirLayer(weights, f"1.df.df.fc{k}") for k in (1, 2, 3)]

    def field(self, t, x):
        self.calls += 1
        time = torch.full_like(x[:, :1], float(t))
        hidden = self._linear("1.df.df.initial", torch.cat((x, time), 1))
        hidden = torch.relu(self.layers[0](hidden))
        hidden = self.layers[2](torch.relu(self.layers[1](hidden)))
        return self._linear("1.df.df.final", hidden)

    def _linear(self, name, x):
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return nn.functional.linear(x.permute(0, 2, 3, 1), weight, bias).permute(0, 3, 1, 2)

    def __call__(self, images):
        ts = torch.tensor([0.0, 1.0])
        states = odeint(self.field, images, ts, rtol=1e-3, atol=1e-3, method="dopri5")
        assert isinstance(states, torch.Tensor)
        dense = self.weights["2.dense.weight"], self.weights["2.dense.bias"]
        return nn.functional.linear(states[-1].flatten(1), *dense)


@pytest.fixture(scope="module")
def released(shared_folder):
    return shared_folder / "released" / "cifar10_epoch01.pt"


def _natural_images(count: int) -> torch.Tensor:
    """Smooth random images between 0 and 1; the weights were trained on photographs."""
    coarse = torch.rand(count, 3, 5, 5)
    return nn.functional.interpolate(coarse, (32, 32), mode="bicubic").clamp(0, 1)


def test_imported_weights_score_as_the_authors_program_does(released, tmp_path):
    import_released(released, tmp_path / "run")
    run = open_run(tmp_path / "run")
    images = _natural_images(12)
    theirs = _TheirModel(torch.load(released, weights_only=True, map_location="cpu"))
    with torch.no_grad():
        expected = theirs(images)
        found = run.model(images)
    assert run.model.block.stats.forward_evaluations == theirs.calls
    # Both compute in single precision along the same steps.
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    assert run.model.class_names[:2] == ("airplane", "automobile")
    assert json.loads(json.dumps(run.config.as_dict()))["solver"]["rtol"] == 1e-3


def test_a_run_is_not_overwritten(released, tmp_path):
    import_released(released, tmp_path / "run")
    with pytest.raises(ConfigError, match="this folder already holds a run"):
        import_released(released, tmp_path / "run")


class _Hostile:
    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return (open, (str(self.canary), "w"))


@pytest.mark.parametrize("kind", ["missing", "empty", "text", "pickle", "other model", "truncated"])
def test_other_files_are_refused_in_one_line_and_run_nothing(tmp_path, released, kind):
    file, canary = tmp_path / "weights.pt", tmp_path / "canary"
    if kind == "empty":
        file.touch()
    elif kind == "text":
        file.write_text("not weights")
    elif kind == "pickle":
        file.write_bytes(pickle.dumps(_Hostile(canary)))
    elif kind == "other model":
        torch.save({"weight": torch.zeros(3)}, file)
    elif kind == "truncated":
        file.write_bytes(released.read_bytes()[:5000])
    with pytest.raises(DataError, match=r"weights\.pt") as error:
        import_released(file, tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not canary.exists() and not (tmp_path / "run").exists()
