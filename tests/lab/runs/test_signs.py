"""Signs of a training that goes wrong are reported once, at the epoch that first shows them."""

import pytest

from bfno.lab.experiments.images.task import ImageTask
from bfno.lab.runs import signs
from bfno.lab.runs.session import resume, start
from bfno.lab.runs.signs import sign_of_a_hard_step, signs_of_trouble
from tests.lab.runs.runs import tiny


class _Lower(ImageTask):
    selection, lower_is_better = "nll", True


def _task(kind=ImageTask):
    return object.__new__(kind)


def _epochs(name="accuracy", **curves):
    count = len(next(iter(curves.values())))
    names = {"valid": f"validation_{name}", "train": f"train_{name}", "nfe": "forward_nfe"}
    return [
        {"epoch": k + 1, **{names[key]: values[k] for key, values in curves.items()}}
        for k in range(count)
    ]


def _told(epochs, task=None):
    """Number of the epoch and the text of every sign."""
    task = task or _task()
    return [
        (count, sign)
        for count in range(1, len(epochs) + 1)
        for sign in signs_of_trouble(epochs[:count], task)
    ]


def test_growing_evaluations_are_told_at_twice_and_four_times_as_many():
    told = _told(_epochs(nfe=[20.8, 26, 44, 45, 60, 84, 101.7]))
    assert [epoch for epoch, _ in told] == [3, 6]
    assert "44 evaluations per batch, 21 in the first epoch" in told[0][1]
    assert "solver.rtol" in told[0][1]


@pytest.mark.parametrize(
    ("taken", "before", "hard"),
    [(3000, [7, 8], True), (3000, [], False), (400, [7, 8], False), (3000, [200, 300], False)],
)
def test_a_step_far_harder_than_others_is_reported_before_the_epoch_ends(taken, before, hard):
    step = {"solves": 1, "forward_nfe": taken}
    epoch = {"solves": 1 + len(before), "forward_nfe": taken + sum(before)}
    sign = sign_of_a_hard_step(step, epoch, _task())
    assert bool(sign) == hard
    assert not hard or "took 3,000 evaluations, but those before it in this epoch 8" in sign


def test_a_training_tells_of_hard_steps_once_an_epoch(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(signs, "_MANY", 1.0)
    monkeypatch.setattr(signs, "_TIMES_THE_USUAL", 0.0)
    start(tiny({"train": {"epochs": 2}}), tmp_path / "run")
    told = [record for record in caplog.messages if record.startswith("a step took")]
    assert len(told) == 2


def test_validation_samples_that_cannot_choose_an_epoch_are_told_once():
    """An AUROC takes two classes; without it the last epoch would be chosen in silence."""
    epochs = _epochs("loss", valid=[0.5, 0.4], train=[0.5, 0.4])
    ((epoch, sign),) = _told(epochs)
    assert epoch == 1 and "have no accuracy" in sign and "data.validation" in sign
    assert list(signs_of_trouble(epochs[:1], _task(), select="last")) == []
    assert _told([{"epoch": 1, "train_loss": 0.5}]) == []


@pytest.mark.parametrize("nfe", [[2.0, 4.0, 8.0], [0.0, 0.0, 0.0], [40.0, 50.0, 60.0]])
def test_few_evaluations_or_steady_ones_are_not_told(nfe):
    assert _told(_epochs(nfe=nfe)) == []


def test_a_model_that_learns_by_heart_is_reported_once_with_its_best_epoch():
    valid = [0.5, 0.6, 0.7, 0.64, 0.63, 0.66, 0.65, 0.62, 0.61, 0.6]
    told = _told(_epochs(valid=valid, train=[0.5 + k / 20 for k in range(10)]))
    assert [epoch for epoch, _ in told] == [8]
    assert "fallen from 0.7 in epoch 3 to 0.62" in told[0][1]
    assert "weights of epoch 3 are kept" in told[0][1] and "augment.shift" in told[0][1]


def test_a_fall_that_few_samples_may_show_by_chance_is_not_told():
    epochs = _epochs(
        valid=[0.5, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6], train=[k / 8 for k in range(8)]
    )
    assert list(signs_of_trouble(epochs[:7], _task(), validation=50)) == []
    assert len(list(signs_of_trouble(epochs[:7], _task(), validation=1000))) == 1
    assert list(signs_of_trouble(epochs, _task(), validation=1000)) == []  # told before


def test_a_score_that_should_be_small_is_reported_when_it_rises():
    nll = [2.0, 1.0, 1.2, 1.2, 1.2, 1.3, 1.4]
    told = _told(_epochs("nll", valid=nll, train=[2 - k / 5 for k in range(7)]), _task(_Lower))
    assert [epoch for epoch, _ in told] == [7]
    assert "risen from 1 in epoch 2 to 1.4" in told[0][1]


def test_a_score_that_training_does_not_know_is_replaced_by_the_loss():
    epochs = [
        {"epoch": k + 1, "validation_accuracy": 0.5, "validation_loss": v, "train_loss": 2 - k / 5}
        for k, v in enumerate([2.0, 1.0, 1.2, 1.2, 1.2, 1.3, 1.4])
    ]
    told = _told(epochs)
    assert [epoch for epoch, _ in told] == [7]
    assert "validation loss has risen" in told[0][1] and "best accuracy are kept" in told[0][1]


def _coarse(valid, errors):
    epochs = _epochs("nll", valid=valid, train=[2 - k / 5 for k in range(len(valid))])
    return [{**one, "validation_solver_error": e} for one, e in zip(epochs, errors, strict=True)]


def test_a_solver_that_is_too_coarse_is_reported_once_and_not_taken_for_learning_by_heart():
    nll = [2.0, 1.0, 1.2, 1.2, 1.2, 1.3, 1.4]
    told = _told(_coarse(nll, [0.0, 0.01, 0.04, 0.2, 0.3, 0.3, 0.4]), _task(_Lower))
    assert [epoch for epoch, _ in told] == [4]
    assert "nll is off by 0.2 on validation samples" in told[0][1]
    assert "solver.step" in told[0][1] and "by heart" not in told[0][1]
    told = _told(_coarse(nll, [0.04] * 7), _task(_Lower))
    assert len(told) == 1 and "by heart" in told[0][1]


def test_a_regulariser_below_zero_is_reported_once():
    epochs = _epochs("nll", valid=[2.0, 1.8, 1.6, 1.5], train=[2.0, 1.8, 1.6, 1.5])
    for epoch, share in zip(epochs, [0.0, 0.005, 0.2, 0.4], strict=True):
        epoch["train_penalty_below_zero"] = share
    told = _told(epochs, _task(_Lower))
    assert [epoch for epoch, _ in told] == [3]
    assert told[0][1].startswith("20% of the samples had a negative regulariser")


def test_a_solver_that_was_too_coarse_once_does_not_hide_learning_by_heart():
    nll = [2.0, 1.0, 1.2, 1.2, 1.2, 1.3, 1.4]
    told = _told(_coarse(nll, [0.2, *[0.0] * 6]), _task(_Lower))
    assert [epoch for epoch, _ in told] == [1, 7] and "by heart" in told[1][1]


def test_an_error_that_is_not_a_number_is_too_large():
    told = _told(_coarse([2.0, 1.0], [0.0, float("nan")]), _task(_Lower))
    assert [epoch for epoch, _ in told] == [2]


def test_without_validation_samples_others_tell_of_a_coarse_solver():
    (told,) = _told([{"epoch": 1, "test_nll": 4.0, "test_solver_error": 0.5}], _task(_Lower))
    assert "off by 0.5 on test samples" in told[1]


def test_a_solver_that_is_too_coarse_from_the_start_is_reported_after_the_first_epoch():
    told = _told(_coarse([2.0, 1.0], [0.5, 0.5]), _task(_Lower))
    assert [epoch for epoch, _ in told] == [1]


def test_a_training_that_only_wavers_is_not_told():
    valid = [0.5, 0.6, 0.7, 0.69, 0.68, 0.69, 0.7, 0.68, 0.69, 0.68]
    assert _told(_epochs(valid=valid, train=[0.5 + k / 20 for k in range(10)])) == []
    # Nor one whose training score falls as well: that is another trouble.
    falling = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]
    assert _told(_epochs(valid=falling, train=falling)) == []


def test_patience_ends_a_training_and_a_resumed_one_keeps_still(tmp_path, monkeypatch, caplog):
    scores = iter([0.5, 0.6, 0.55, 0.6, 0.5, 0.4])
    original = ImageTask.evaluate

    def evaluate(self, model, split, batch, share):
        found = original(self, model, split, batch, share)
        if split == "validation":
            found.metrics["accuracy"], found.metrics["loss"] = next(scores), 1.0
        return found

    monkeypatch.setattr(ImageTask, "evaluate", evaluate)
    record = start(tiny({"train": {"epochs": 9, "patience": 3}}), tmp_path / "run")
    assert record.chosen_step == 2 * 6  # six steps per epoch
    assert "stopped after epoch 5 of 9: no epoch since 2 was better" in caplog.text
    caplog.clear()
    resume(tmp_path / "run")
    assert caplog.text == ""
    with pytest.raises(Exception, match=r"train\.patience=null"):
        resume(tmp_path / "run", {"train": {"epochs": 12}})


def test_patience_without_validation_is_refused(tmp_path):
    with pytest.raises(Exception, match=r"train\.patience: needs validation"):
        start(tiny({"train": {"patience": 3}, "data": {"validation": 0.0}}), tmp_path / "run")
    with pytest.raises(Exception, match=r"train\.select=best"):
        start(tiny({"train": {"patience": 3, "select": "last"}}), tmp_path / "run")


def test_the_last_epoch_is_kept_where_that_was_asked_for(tmp_path):
    changes = {"train": {"epochs": 3, "select": "last", "lr": 1e-9}}  # no epoch is better
    record = start(tiny(changes), tmp_path / "run")
    assert record.chosen_step == 3 * 6
    assert record.chosen_by == "last epoch"
