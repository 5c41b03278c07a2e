"""Evaluation and prediction of series through tables that a user could have written."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from bfno.lab.errors import ConfigError, DataError
from bfno.lab.experiments.experiment import TestRequest
from bfno.lab.runs.load import open_run
from bfno.lab.runs.session import start
from tests.lab.experiments.series.runs import tiny


def write_table(file: Path, seed: int = 0, *, by_row: bool = False, count: int = 30) -> Path:
    """Series of two features whose label is the sign of the first, a few cells empty."""
    generator = np.random.default_rng(seed)
    with open(file, "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["id", "time", "pulse", "temp", "label"])
        for number in range(count):
            sign = number % 2 * 2 - 1
            for time in np.sort(generator.choice(100, 8, replace=False)) / 10:
                value = sign * (1 + generator.random())
                label = "high" if (value > 0) ^ (by_row and time > 5) else "low"
                temp = "" if generator.random() < 0.3 else f"{generator.random():.3f}"
                writer.writerow([f"p{number:02}", time, f"{value:.4f}", temp, label])
    return file


def _trained(tmp_path: Path, method: str, **table) -> Path:
    table_file = write_table(tmp_path / "mine.csv", **table)
    changes = {
        "data": {"path": str(table_file), "train_limit": None, "test_limit": None},
        "train": {"epochs": 3},
    }
    start(tiny(method, changes), tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("method", ["rnn-delta-t", "latent-bfno-node"])
def test_predictions_of_a_table_are_those_of_its_evaluation(tmp_path, method, by_row):
    run = open_run(_trained(tmp_path, method, by_row=by_row))
    other = write_table(tmp_path / "other.csv", seed=5, by_row=by_row, count=9)
    found = run.config.evaluate(run, TestRequest(data=str(other)))
    predictions = list(run.config.predict(run, [other]))
    with open(other) as stream:
        rows = list(csv.DictReader(stream))
    if not by_row:
        rows = list({row["id"]: row for row in rows}.values())
    assert [one.place["id"] for one in predictions] == [row["id"] for row in rows]
    if by_row:
        times = [float(row["time"]) for row in rows]
        assert [one.place["time"] for one in predictions] == pytest.approx(times)
    right = [one.label == row["label"] for one, row in zip(predictions, rows, strict=True)]
    assert found["accuracy"] == pytest.approx(np.mean(right))
    assert found["samples"] == len(rows) and found["series"] == 9
    assert found["unit"] == ("time points" if by_row else "series")
    assert sum(map(sum, found["confusion"])) == len(rows)
    for name, (low, high) in found["intervals"].items():
        assert low <= found[name] <= high
    for one in predictions:
        assert sum(one.probabilities.values()) == pytest.approx(1)
        assert one.label == max(one.probabilities, key=one.probabilities.__getitem__)
    json.dumps(found)


def test_labels_are_not_needed_to_predict_but_to_evaluate(tmp_path):
    run = open_run(_trained(tmp_path, "gru-d"))
    bare = tmp_path / "bare.csv"
    with open(write_table(tmp_path / "full.csv", seed=2, count=4)) as stream:
        rows = [row[:-1] for row in csv.reader(stream)]
    bare.write_text("\n".join(",".join(row) for row in rows))
    predictions = list(run.config.predict(run, [bare]))
    assert [one.place["id"] for one in predictions] == ["p00", "p01", "p02", "p03"]
    with pytest.raises(ConfigError, match=r"bare\.csv: has no labels"):
        run.config.evaluate(run, TestRequest(data=str(bare)))


def test_a_table_that_cannot_be_read_spoils_no_other(tmp_path):
    run = open_run(_trained(tmp_path, "rnn-d"))
    bad, good = tmp_path / "bad.csv", write_table(tmp_path / "good.csv", count=2)
    bad.write_text("id,time,pulse,temp\np,0,abc,1\n")
    found = list(run.config.predict(run, [bad, good]))
    assert isinstance(found[0].error, DataError) and "row 2" in str(found[0].error)
    assert [one.error for one in found[1:]] == [None, None]


@pytest.mark.parametrize("grid", ["latent", "batch"])
def test_only_a_model_that_couples_series_needs_the_neighbours_and_says_so(tmp_path, caplog, grid):
    # Labels of rows: that of a series is read from its initial state, which couples nothing.
    table = write_table(tmp_path / "mine.csv", by_row=True)
    # Fixed steps: adaptive ones would suit all series of a batch, within the tolerance.
    changes = {"model": {"grid": grid}, "solver": {"method": "rk4"}}
    start(tiny("latent-bfno-node", {**changes, "data": {"path": str(table)}}), tmp_path / "run")
    run = open_run(tmp_path / "run")
    both = write_table(tmp_path / "both.csv", seed=3, by_row=True, count=2)
    lines = both.read_text().splitlines()
    alone = tmp_path / "alone.csv"
    alone.write_text("\n".join([lines[0], *(line for line in lines if line.startswith("p01"))]))
    together = [one.probabilities["high"] for one in run.config.predict(run, [both])][8:]
    apart = [one.probabilities["high"] for one in run.config.predict(run, [alone])]
    coupled = grid == "batch"
    assert (apart != pytest.approx(together, abs=1e-6)) == coupled
    assert ("depends on the other series of the file" in caplog.text) == coupled
    assert run.config.evaluate(run, TestRequest())["transductive"] is coupled


def test_the_test_split_of_a_run_is_judged_as_in_its_training(tmp_path):
    folder = _trained(tmp_path, "latent-ode")
    record = json.loads((folder / "record.json").read_text())
    run = open_run(folder)
    found = run.config.evaluate(run, TestRequest())
    for name in ("accuracy", "macro_f1", "auroc", "auprc", "loss", "mse"):
        assert found[name] == pytest.approx(record["result"][f"test_{name}"], rel=1e-5), name
    assert record["judged_by"] == "test_auroc"


def test_a_loaded_model_is_ready_to_call(tmp_path):
    import bfno

    model = bfno.load(_trained(tmp_path, "ode-rnn"))
    assert model.class_names == ("high", "low") and model.feature_names == ("pulse", "temp")
    values = torch.zeros(1, 3, 2)
    output = model(torch.tensor([[0.0, 0.5, 1.0]]), values, values == 0)
    assert output.scores.shape == (1, 1, 2)
