"""A training that is not to see its test samples does not: nothing of them reaches its files."""

import dataclasses
import json

import pytest
import torch

from bfno.lab.cli import main
from bfno.lab.errors import ConfigError
from bfno.lab.runs.session import start
from tests.lab.experiments.density.runs import tiny as tiny_density
from tests.lab.experiments.series.runs import tiny as tiny_series
from tests.lab.runs.runs import metrics, result, tiny, weights

UNSEEN = {"train": {"test": False, "epochs": 1}}
KINDS = {
    "images": lambda: tiny(UNSEEN),
    "series": lambda: tiny_series("latent-ode", UNSEEN),
    "points": lambda: tiny_density("moons/ffjord", UNSEEN),
    "density": lambda: tiny_density("digits-density/realnvp", UNSEEN),
}

SLOW = ("series", "density")


def _spoiled(part):
    """The same number of samples, and nothing else of what they were."""
    if isinstance(part, torch.Tensor):
        return torch.zeros_like(part)
    tensors = {name: value for name, value in vars(part).items() if isinstance(value, torch.Tensor)}
    kept = {"starts", "times"}  # the shape of series
    zeros = {name: torch.zeros_like(one) for name, one in tensors.items() if name not in kept}
    return dataclasses.replace(part, **zeros)


@pytest.mark.parametrize(
    "kind", ["images", "points", *(pytest.param(k, marks=pytest.mark.slow) for k in SLOW)]
)
def test_other_test_samples_change_nothing(tmp_path, monkeypatch, kind):
    config = KINDS[kind]()
    start(config, tmp_path / "a" / "run")
    load = type(config).load

    def spoiled(self):
        data = load(self)
        assert len(data.test) > 0
        return dataclasses.replace(data, test=_spoiled(data.test))

    monkeypatch.setattr(type(config), "load", spoiled)
    start(config, tmp_path / "b" / "run")
    first, second = tmp_path / "a" / "run", tmp_path / "b" / "run"
    assert metrics(first) == metrics(second) and weights(first) == weights(second)
    assert result(first) == result(second)
    names = {*json.loads(metrics(first)[0]), *result(first)["result"], *result(first)["samples"]}
    assert not any(name.startswith("test") for name in names)
    assert result(first)["judged_by"].startswith("validation_") and not result(first)["confusion"]


def test_the_spoiled_samples_would_have_been_noticed(tmp_path, monkeypatch):
    config = tiny({"train": {"epochs": 1}})
    start(config, tmp_path / "a")
    load = type(config).load
    spoil = lambda self: dataclasses.replace(d := load(self), test=_spoiled(d.test))  # noqa: E731
    monkeypatch.setattr(type(config), "load", spoil)
    start(config, tmp_path / "b")
    assert metrics(tmp_path / "a") != metrics(tmp_path / "b")


def test_a_run_without_any_samples_to_judge_it_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"train\.test: .*Fix: keep some"):
        start(tiny({**UNSEEN, "data": {"validation": 0.0}}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_commands_show_an_untested_run_by_its_validation_score(tmp_path, capsys):
    start(tiny(UNSEEN), tmp_path / "runs" / "one")
    run = str(tmp_path / "runs" / "one")
    for words in (["runs", str(tmp_path / "runs")], ["compare", run]):
        assert main(words) == 0
        assert "validation accuracy" in capsys.readouterr().out
    page = tmp_path / "page.html"
    assert main(["report", run, "-o", str(page)]) == 0
    assert "a validation accuracy of" in page.read_text() and "untested" in page.read_text()
    capsys.readouterr()
    assert main(["eval", run, "--json"]) == 0  # the one that was chosen is tested once
    assert "accuracy" in json.loads(capsys.readouterr().out)
