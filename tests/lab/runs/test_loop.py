"""What the training loop computes, and what it does when the numbers leave it."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from bfno.lab.cli import main
from bfno.lab.data import Splits
from bfno.lab.errors import ConfigError, NumericalError
from bfno.lab.experiments.images.experiment import ImageExperiment
from bfno.lab.experiments.images.task import ImageTask, evaluate_images
from bfno.lab.experiments.seeds import derive_seed
from bfno.lab.experiments.tasks import Evaluation
from bfno.lab.runs import session
from bfno.lab.runs.load import open_run
from bfno.lab.runs.loop import Trainer, Watcher
from bfno.lab.runs.session import resume, start
from bfno.lab.runs.signals import Stopped
from bfno.lab.views.listing import look_at
from bfno.ode import SolverError, Stats, Status
from tests.lab.runs.runs import StopAfter, metrics, tiny, weights


def _plain_training(config) -> nn.Module:
    """The paper's recipe written with torch's own parts."""
    data = config.load()
    torch.manual_seed(derive_seed(config.seed, "weights"))
    model = config.build(config.facts(data))
    settings = config.train
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, settings.decay_every, settings.decay)
    for epoch in range(settings.epochs):
        order = torch.Generator().manual_seed(derive_seed(config.seed, "order", epoch))
        for chosen in torch.randperm(len(data.train), generator=order).split(settings.batch):
            images = data.train.images[chosen].float() / 255
            loss = nn.functional.cross_entropy(model(images), data.train.labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
            optimizer.step()
            schedule.step()
    return model


@pytest.mark.parametrize("method", ["bfno-node", "node", "hbnode"])
def test_the_loop_is_the_recipe_of_the_paper(tmp_path, method):
    # Clipping and decay take part: the bound is below every norm, and 14 steps decay twice.
    changes = {"train": {"clip": 0.05, "decay": 0.5, "decay_every": 5}, "data": {"validation": 0.1}}
    config = tiny(changes, experiment=f"digits/{method}")
    start(config, tmp_path / "run")
    plain = _plain_training(config).state_dict()
    # Without model selection on the way the newest weights are those after the last step.
    ours = session.RunFolder(tmp_path / "run").checkpoints.newest()[0]
    assert ours is not None
    for name, tensor in plain.items():
        # StepLR multiplies where the loop takes a power; that and nothing else may differ.
        torch.testing.assert_close(ours.model[name], tensor, rtol=1e-5, atol=1e-7)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(tmp_path):
    for name, seed in (("one", 3), ("same", 3), ("other", 4)):
        start(tiny({"seed": seed}), tmp_path / name)
    assert weights(tmp_path / "one") == weights(tmp_path / "same")
    assert metrics(tmp_path / "one") == metrics(tmp_path / "same")
    assert weights(tmp_path / "one") != weights(tmp_path / "other")


def test_metrics_are_those_of_the_weights(tmp_path):
    record = start(tiny({"train": {"epochs": 3}}), tmp_path / "run")
    run = open_run(tmp_path / "run")
    data = run.config.load()
    assert data.validation is not None
    with torch.no_grad():
        for split, part in (("validation", data.validation), ("test", data.test)):
            scores = run.model(part.images.float() / 255)
            accuracy = (scores.argmax(1) == part.labels).double().mean().item()
            loss = nn.functional.cross_entropy(scores, part.labels).item()
            assert record.result[f"{split}_accuracy"] == pytest.approx(accuracy, abs=1e-12)
            assert record.result[f"{split}_loss"] == pytest.approx(loss, rel=1e-5)
    confusion = torch.tensor(record.confusion)
    assert confusion.sum(1).tolist() == torch.bincount(data.test.labels, minlength=10).tolist()
    # Midpoint in one step over the interval: two evaluations.
    assert record.result["forward_nfe"] == record.result["test_nfe"] == 2


def test_among_equals_the_epoch_of_the_smallest_loss_is_chosen(tmp_path, monkeypatch):
    losses = iter((0.5, 0.3, 0.4, 0.3))

    def evaluate(self, model, split, batch, share):
        return Evaluation({"accuracy": 0.75, "loss": next(losses), "nfe": 1.0}, [[1]])

    monkeypatch.setattr(ImageTask, "evaluate", evaluate)
    monkeypatch.setattr(ImageTask, "splits", ("validation",))
    record = start(tiny({"train": {"epochs": 4}}), tmp_path / "run")
    assert record.chosen_epoch == 2


def test_training_does_not_look_at_the_test_images(tmp_path, monkeypatch):
    start(tiny({"train": {"epochs": 4}}), tmp_path / "run")

    load = ImageExperiment.load

    def with_other_test(config):
        data = load(config)
        test = type(data.test)(255 - data.test.images, 9 - data.test.labels)
        return Splits(data.train, data.validation, test, data.classes)

    monkeypatch.setattr(ImageExperiment, "load", with_other_test)
    start(tiny({"train": {"epochs": 4}}), tmp_path / "other")
    assert weights(tmp_path / "run") == weights(tmp_path / "other")
    records = [json.loads((tmp_path / run / "record.json").read_text()) for run in ("run", "other")]
    assert records[0]["chosen_epoch"] == records[1]["chosen_epoch"]
    assert records[0]["result"]["test_loss"] != records[1]["result"]["test_loss"]


def test_the_best_epoch_on_validation_is_kept_and_loaded(tmp_path, monkeypatch):
    # The values are given: which epoch of a real training is the best, and whether two are equal,
    # is decided by the rounding of the processor. The test images prefer another epoch.
    validation = iter(((0.5, 1.0), (0.75, 0.8), (0.75, 0.6), (0.5, 0.2), (0.7, 0.3), (0.25, 0.1)))
    test = iter(((0.1, 3.0), (0.2, 2.0), (0.3, 2.0), (0.4, 2.0), (0.9, 0.1), (0.2, 2.0)))

    def evaluate(self, model, split, batch, share):
        accuracy, loss = next(validation if split == "validation" else test)
        return Evaluation({"accuracy": accuracy, "loss": loss, "nfe": 1.0}, [[1]])

    monkeypatch.setattr(ImageTask, "evaluate", evaluate)
    record = start(tiny({"train": {"epochs": 6}}), tmp_path / "run")
    # The highest accuracy; of the two epochs that have it, the one of the smaller loss.
    assert record.chosen_epoch == 3 and record.chosen_by == "validation_accuracy"
    assert record.result["test_accuracy"] == 0.3
    # Kept are the two newest and the best, six steps an epoch.
    kept = {folder.name for folder in (tmp_path / "run" / "checkpoints").iterdir()}
    assert kept == {f"step-{step:08d}" for step in (18, 30, 36)}
    run = open_run(tmp_path / "run")
    assert run.step == 18
    # What is loaded is what a run of three epochs ends with.
    monkeypatch.undo()
    start(tiny({"train": {"epochs": 3}}), tmp_path / "three")
    third = session.RunFolder(tmp_path / "three").checkpoints.newest()[0]
    assert third is not None and third.step == 18
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(tensor, third.model[name])


def test_without_validation_images_the_last_epoch_counts(tmp_path):
    record = start(tiny({"data": {"validation": 0.0}}), tmp_path / "run")
    assert (record.chosen_epoch, record.chosen_by) == (2, "last epoch")
    assert "validation_accuracy" not in record.result


def test_a_model_learns(tmp_path):
    changes = {
        "data": {"size": 8, "train_limit": 400, "test_limit": 100},
        "model": {"width": 8},
        "train": {"epochs": 12, "batch": 32, "lr": 0.02},
    }
    record = start(tiny(changes), tmp_path / "run")
    # Ten classes: chance is 10 %. This reached 83 % where it was written.
    assert record.result["test_accuracy"] > 0.6


def _spoil(monkeypatch, step: int, spoil) -> None:
    original = ImageTask.loss
    count = iter(range(1, 1000))

    def loss(self, model, samples, device):
        value, sums = original(self, model, samples, device)
        return (spoil(value) if next(count) == step else value), sums

    monkeypatch.setattr(ImageTask, "loss", loss)


def _zero_to_the_half(value):
    """A finite loss whose gradient is infinite."""
    return value + (value - value.detach()).abs().sqrt()


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda loss: loss * math.nan, "loss"),
        (lambda loss: loss * math.inf, "loss"),
        (_zero_to_the_half, "gradient"),
    ],
)
@pytest.mark.parametrize("step", [1, 4, 9])
def test_a_loss_out_of_bounds_stops_before_the_step_and_keeps_the_state(
    tmp_path, monkeypatch, spoil, what, step
):
    start(tiny(), tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(NumericalError) as error:
        _spoil(patch, step, spoil)
        start(tiny(), tmp_path / "run")
    message = str(error.value)
    assert f"step {step} " in message and f"the {what} is not a finite number" in message
    assert f"bfno resume {tmp_path / 'run'} --set train.lr=" in message and "\n" not in message
    saved = session.RunFolder(tmp_path / "run").checkpoints.newest()[0]
    # The step before may be to blame: the state before that one, whose loss was sane, is saved.
    assert saved is not None and saved.step == max(step - 2, 0)
    assert all(tensor.isfinite().all() for tensor in saved.model.values())
    record = session.RunFolder(tmp_path / "run").record()
    assert record.has_failed and record.failure == f"step {step}: the {what} is not a finite number"
    assert not record.result and record.parameters
    assert record.steps == step - 1 and record.seconds is not None
    # The spoilt step left no trace.
    assert resume(tmp_path / "run").is_finished
    assert session.RunFolder(tmp_path / "run").finished().failure == ""
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


def test_weights_of_a_failed_run_are_taken_with_a_word(tmp_path, monkeypatch, caplog):
    with monkeypatch.context() as patch, pytest.raises(NumericalError):
        _spoil(patch, 3, lambda loss: loss * math.nan)
        start(tiny(), tmp_path / "run")
    caplog.clear()
    open_run(tmp_path / "run")
    told = "has failed: step 3: the loss is not a finite number; these are its weights of step 1"
    assert told in caplog.text


def test_a_gradient_too_long_to_be_squared_is_shortened(tmp_path, monkeypatch):
    """In float32 the square of 1e20 is infinite, but its direction is as good as any other."""
    ends = []
    for factor in (1e6, 1e30, 2.5e38):  # at the last, the norm itself is too large for float32
        run = tmp_path / str(factor)
        with monkeypatch.context() as patch:
            _spoil(patch, 1, lambda loss, by=factor: (loss - loss.detach()) * by)
            start(tiny({"train": {"clip": 0.5}}), run)
        ends.append(session.RunFolder(run).checkpoints.newest()[0])
    for name, tensor in ends[0].model.items():
        for longer in ends[1:]:
            torch.testing.assert_close(longer.model[name], tensor, rtol=1e-4, atol=1e-6)


def test_a_gradient_too_long_to_be_squared_is_an_error_where_nothing_shortens_it(
    tmp_path, monkeypatch
):
    """Adam would divide by the infinite square, in this step and in all that follow."""
    _spoil(monkeypatch, 3, lambda loss: loss * 2.0**100)
    expected = r"step 3 .*the gradient is too long to be squared.*or --set train\.clip=1, or"
    with pytest.raises(NumericalError, match=expected):
        start(tiny({"train": {"clip": None}}), tmp_path / "run")


def test_a_failed_run_whose_resuming_is_cut_short_is_not_damaged(tmp_path, monkeypatch):
    """Its metrics may be ahead of the sound state, and are cut before a step is taken."""
    run = session.RunFolder(tmp_path / "run")
    with monkeypatch.context() as patch, pytest.raises(NumericalError):
        _spoil(patch, 12, lambda loss: loss * math.nan)
        start(tiny(), run.path)
    assert run.ended().has_failed

    def power_loss(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "fit", power_loss)
    with pytest.raises(KeyboardInterrupt):
        resume(run.path)
    assert look_at(run.path).state == "stopped"


def test_a_solver_that_gives_up_stops_with_its_remedy(tmp_path, monkeypatch):
    def give_up(self, model, samples, device):
        raise SolverError(Status.STEP_LIMIT, "t = 0.5", Stats())

    monkeypatch.setattr(ImageTask, "loss", give_up)
    with pytest.raises(NumericalError, match=r"step 1 .*solver gave up") as error:
        start(tiny(), tmp_path / "run")
    assert "\n" not in str(error.value)


def test_too_few_steps_are_answered_by_more_of_them(tmp_path):
    changes = {"solver": {"method": "dopri5", "rtol": 1e-6, "max_steps": 1}}
    with pytest.raises(NumericalError, match=r"step limit.*Fix: bfno resume") as error:
        start(tiny(changes, experiment="digits/node"), tmp_path / "run")
    fix = str(error.value).partition("Fix: ")[2]
    assert fix.endswith("--set solver.max_steps=10000, for 1 may be too few")
    resume(tmp_path / "run", {"solver": {"max_steps": 10_000}, "train": {"epochs": 1}})


@pytest.mark.parametrize("status", [Status.STEP_LIMIT, Status.STEP_UNDERFLOW, Status.STIFF])
def test_no_smaller_tolerance_is_suggested_where_a_larger_one_helps(tmp_path, monkeypatch, status):
    def give_up(self, model, samples, device):
        raise SolverError(status, "t = 0.5", Stats())

    monkeypatch.setattr(ImageTask, "loss", give_up)
    with pytest.raises(NumericalError, match=r"or larger solver\.rtol and solver\.atol$"):
        start(tiny(), tmp_path / "run")


def test_a_solver_that_gives_up_in_an_evaluation_loses_no_training(tmp_path, monkeypatch):
    start(tiny(), tmp_path / "whole")

    def give_up(*_):
        raise SolverError(Status.STEP_LIMIT, "t = 0.5", Stats())

    with monkeypatch.context() as patch, pytest.raises(NumericalError, match="solver gave up"):
        patch.setattr(ImageTask, "evaluate", give_up)
        start(tiny(), tmp_path / "run")
    resume(tmp_path / "run")
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")


def test_a_diverging_run_is_stopped_by_the_real_solver(tmp_path):
    changes = {"solver": {"method": "dopri5", "max_steps": 20}, "train": {"lr": 1e6, "epochs": 9}}
    with pytest.raises(NumericalError, match="Fix: bfno resume"):
        start(tiny(changes, experiment="digits/node"), tmp_path / "run")


class _Told(Watcher):
    """Keeps everything that it receives."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def on_start(self, epochs: int) -> None:
        self.found.append("start")

    def on_finish(self, result: Mapping[str, Any]) -> None:
        self.found.append("finish")

    def on_end(self) -> None:
        self.found.append("end")


def test_watchers_hear_of_the_end_however_a_training_ends(tmp_path, monkeypatch):
    finished, stopped, failed = _Told(), _Told(), _Told()
    start(tiny(), tmp_path / "finished", [finished])
    assert finished.found == ["start", "finish", "end"]
    with pytest.raises(Stopped):
        start(tiny(), tmp_path / "stopped", [stopped, StopAfter(2)])
    assert stopped.found == ["start", "end"]
    _spoil(monkeypatch, 3, lambda loss: loss * math.nan)
    with pytest.raises(NumericalError):
        start(tiny(), tmp_path / "failed", [failed])
    assert failed.found == ["start", "end"]


def test_a_second_run_does_not_take_the_folder_of_the_first(tmp_path):
    start(tiny(), tmp_path / "run")
    before = weights(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"this folder already holds a run.*bfno resume"):
        start(tiny({"seed": 9}), tmp_path / "run")
    assert weights(tmp_path / "run") == before


def test_evaluations_in_batches_add_up(tmp_path):
    config = tiny()
    data = config.load()
    model = config.build(config.facts(data))
    whole = evaluate_images(model, data.test, 10, batch=30)
    for batch in (1, 7, 100):
        found = evaluate_images(model, data.test, 10, batch=batch)
        assert found.confusion == whole.confusion
        assert found.metrics["loss"] == pytest.approx(whole.metrics["loss"], rel=1e-6)
    assert model.training  # as it was before


def test_seeds_of_different_purposes_differ():
    seeds = {derive_seed(s, p, n) for s in range(3) for p in ("order", "noise") for n in range(50)}
    assert len(seeds) == 300 and all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("method", ["midpoint", "dopri5"])
def test_a_run_that_diverged_continues_with_the_rate_that_is_suggested(tmp_path, capsys, method):
    run, file = tmp_path / "run", tmp_path / "settings.yaml"
    changes = {"solver": {"method": method}, "train": {"lr": 1e6, "epochs": 4}}
    changes["train"]["checkpoint_seconds"] = 0
    file.write_text(tiny(changes, experiment="digits/node").as_yaml())
    code = main(["train", str(file), "--out", str(run)])
    err = capsys.readouterr().err
    assert code == 4 and err.count("\n") == 1 and "train.lr=0.01," in err
    saved = session.RunFolder(run).checkpoints.newest()[0]
    assert saved is not None and saved.step == 0
    assert max(float(tensor.abs().max()) for tensor in saved.model.values()) < 10
    (command,) = re.findall(r"Fix: bfno (resume .*?),", err)
    assert main(command.split()) == 0
    losses = [json.loads(line)["train_loss"] for line in metrics(run)]
    assert losses[-1] < losses[0] < 3


@pytest.mark.parametrize(
    ("rate", "suggested"),
    [(1e6, "0.01"), (1.0, "0.01"), (0.2, "0.01"), (0.1, "0.01"), (1e-3, "0.0001")],
)
def test_the_suggested_rate_is_a_tenth_and_a_sensible_one(tmp_path, monkeypatch, rate, suggested):
    with monkeypatch.context() as patch, pytest.raises(NumericalError) as error:
        _spoil(patch, 1, lambda loss: loss * math.nan)
        start(tiny({"train": {"lr": rate}}), tmp_path / "run")
    assert f"train.lr={suggested}," in str(error.value)


def test_a_slow_divergence_goes_back_to_the_last_sane_loss(tmp_path, monkeypatch):
    """Checkpoints of weights that were lost already do not stand in the way."""
    original, calls = ImageTask.loss, []

    def diverge(self, model, samples, place):
        loss, sums = original(self, model, samples, place)
        calls.append(None)
        factor = {6: 1e3, 7: 1e6, 8: math.nan}.get(len(calls), 1.0)
        return loss * factor, sums

    start(tiny(), tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(NumericalError, match="after step 4"):
        patch.setattr(ImageTask, "loss", diverge)
        start(tiny({"train": {"checkpoint_seconds": 0}}), tmp_path / "run")
    assert session.RunFolder(tmp_path / "run").checkpoints.steps()[0] == 4
    resume(tmp_path / "run")
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
