"""`--independent`: no result depends on who else is in the batch."""

import json

import pytest
import torch
from PIL import Image
from torch import nn

from bfno.lab.cli import main
from bfno.lab.errors import ConfigError
from bfno.lab.experiments.resolve import resolve

TINY = ["--scale", "smoke", "--epochs", "1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    small = ("threads=1", "model.width=2", "model.depth=1", "solver.rtol=0.01", "solver.atol=0.01")
    words = [word for setting in small for word in ("--set", setting)]
    assert main(["train", "digits/bfno-node", "--out", str(folder), *TINY, *words]) == 0
    return folder


def test_eval_says_why_batches_make_no_difference(run, capsys):
    found = []
    for batch in ("1", "30"):
        words = ["eval", str(run), "--limit", "30", "--batch", batch, "--independent"]
        assert main([*words, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    alone, together = found
    assert alone["independent"] == "every sample was solved with its own steps"
    # Single precision, and tolerances of 1e-2 that a kink of the field may call upon.
    assert alone["loss"] == pytest.approx(together["loss"], rel=1e-4)
    assert alone["confusion"] == together["confusion"]
    assert main(words) == 0
    assert "independent: every sample was solved with its own steps\n" in capsys.readouterr().out


def test_predict_says_that_files_are_solved_alone(run, tmp_path, capsys):
    file = tmp_path / "one.png"
    Image.new("L", (8, 8), 90).save(file)
    answers = []
    for words in ([], ["--independent"]):
        assert main(["predict", str(run), str(file), "--format", "json", *words]) == 0
        answers.append(capsys.readouterr())
    assert answers[0].out == answers[1].out
    assert answers[1].err == "independent: each file is solved by itself\n"


def built(experiment):
    config = resolve(experiment, scale="smoke")
    return config, config.build(config.known_facts()).eval()


def test_series_of_a_latent_model_keep_apart():
    config, model = built("activity/latent-ode")
    assert config.make_independent(model) == "every sample was solved with its own steps"
    times = torch.rand(4, 6).sort(dim=1).values * torch.tensor([[1.0], [1.0], [3.0], [0.1]])
    values = torch.randn(4, 6, len(model.feature_names))
    mask = torch.ones_like(values, dtype=torch.bool)
    with torch.inference_mode():
        together = model(times, values, mask).scores
        for one in range(4):
            alone = model(*(part[one : one + 1] for part in (times, values, mask))).scores
            # Single precision, whose rounding depends on the size of a batch.
            torch.testing.assert_close(alone[:, 0], together[:, one], rtol=1e-3, atol=1e-4)


def test_models_without_shared_steps_need_nothing():
    config, model = built("digits/cnn")
    assert "no solver whose steps" in config.make_independent(model)


def test_models_that_couple_samples_are_refused():
    class Coupled(nn.Module):
        couples_series = True

    with pytest.raises(ConfigError, match="couples all series of a batch"):
        resolve("activity/latent-ode", scale="smoke").make_independent(Coupled())


def test_densities_say_what_to_do_instead():
    with pytest.raises(ConfigError, match="Fix: pass --batch 1 instead"):
        resolve("checkerboard/ffjord", scale="smoke").make_independent(nn.Identity())
