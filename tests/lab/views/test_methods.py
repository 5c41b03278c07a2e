"""Runs on series in tables and reports: protocols, transductive models, units, pictures."""

import base64
import dataclasses
import re

import pytest

from bfno.lab.errors import DataError
from bfno.lab.runs.folder import read_run
from bfno.lab.runs.record import Record, task_of
from bfno.lab.runs.variants import PROTOCOLS
from bfno.lab.views.layout import as_markdown, as_text
from bfno.lab.views.methods import is_transductive, replicates, sample_name
from bfno.lab.views.report.drawings import curve_drawings
from bfno.lab.views.report.page import write_report
from bfno.lab.views.tables import comparison, per_class
from tests.lab.views.runs import epoch_lines, record, write_files, write_run

MLP = {"kind": "latent_ode", "generator": "mlp", "grid": "batch"}
ACE = {"kind": "latent_ode", "generator": "ace", "grid": "latent"}
RESULT = {
    "train_loss": 51.0,
    "train_cross_entropy": 0.5,
    "validation_auroc": 0.7,
    "validation_loss": 0.45,
    "test_auroc": 0.8,
    "test_loss": 0.4,
    "test_accuracy": 0.9,
    "test_macro_f1": 0.6,
    "test_auprc": 0.5,
    "test_mse": 0.75,
}


def _record(method: str = "latent-ode", seed: int = 0, protocol: str = "sound", **changes) -> dict:
    data = {"name": "physionet", "protocol": protocol, "labels": "auto", **changes.pop("data", {})}
    config = {"data": data, "model": changes.pop("model", MLP), "seed": seed}
    content = {**record("physionet", method, seed), "config": config, "judged_by": "test_auroc"}
    return {**content, "result": RESULT, **changes}


def _write(folder, *args, **changes):
    content = _record(*args, **changes)
    name = f"{content['method']}-{content['seed']}-{content['config']['data']['protocol']}"
    return write_files(folder / name, content)


def _run(tmp_path, *args, **changes) -> Record:
    return read_run(_write(tmp_path, *args, **changes))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (MLP, False),
        (ACE, True),
        ({"generator": "bfno", "grid": "batch"}, True),
        ({"generator": "bfno", "grid": "latent"}, False),
        ({"generator": "bfno", "grid": "point"}, False),
        ({"kind": "recurrent_vae", "reverse_axis": "public_code"}, True),
        ({"kind": "recurrent_vae", "reverse_axis": "time"}, False),
        ({"kind": "recurrent", "impute": True}, False),
        ({"width": 32, "branches": 2}, False),
        ("spoilt", False),
    ],
)
def test_models_whose_series_depend_on_each_other_are_known_by_their_settings(
    tmp_path, model, expected
):
    assert is_transductive(_run(tmp_path, model=model)) is expected


def test_the_settings_agree_with_the_models_themselves():
    from bfno.lab.experiments.resolve import resolve
    from bfno.lab.experiments.series.experiment import SERIES_METHODS

    facts = {"features": ["x", "y"], "classes": ["a", "b"], "by_row": False}
    grids = [("latent-bfno-node", {"model": {"grid": grid}}) for grid in ("batch", "point")]
    reversed_ = ("rnn-vae", {"model": {"reverse_axis": "public_code"}})
    for method, changes in [*((name, {}) for name in SERIES_METHODS), *grids, reversed_]:
        config = resolve(f"series/{method}", scale="smoke", changes=changes)
        model = config.build(facts)
        run = Record("r", config.experiment, "series", method, "smoke", 0, config=config.as_dict())
        assert is_transductive(run) is model.couples_series, (method, changes)


def test_transductive_methods_have_a_dagger_and_a_footnote(tmp_path):
    runs = [_run(tmp_path, "ace-latent-ode", model=ACE), _run(tmp_path)]
    table = comparison(runs)
    assert [row[0] for row in table.rows] == ["ace-latent-ode †", "latent-ode"]
    for text in (as_text(table), as_markdown(table)):
        assert "\n† transductive: " in text
    assert "†" not in as_text(comparison(runs[1:]))


def test_protocols_are_never_ranked_against_each_other(tmp_path):
    better = {**RESULT, "test_auroc": 0.95}
    runs = [
        _run(tmp_path, "gru-d", protocol="published", result=better),
        _run(tmp_path, "latent-ode"),
        _run(tmp_path, "latent-ode", protocol="published"),
    ]
    table = comparison(runs)
    column = [one.key for one in table.columns].index("protocol")
    assert [row[column] for row in table.rows] == ["published", "published", "sound"]
    assert {row for row, _ in table.best} == {0}
    assert "compare within one only" in table.notes[0]
    assert len({group.task for group in replicates(runs)}) == 2
    # Only the method's name: the protocol has its own column.
    assert [row[0] for row in table.rows] == ["gru-d", "latent-ode", "latent-ode"]


def test_images_have_no_protocol(tmp_path):
    image = read_run(write_run(tmp_path))
    assert task_of(image) == ("digits", "cpu", "")
    assert "protocol" not in as_text(comparison([image]))
    assert comparison([image, _run(tmp_path)]).rows[0][2] is None


def test_series_of_different_files_are_different_tasks_that_name_no_folder(tmp_path):
    def own(name, file):
        data = {"path": f"/home/alice/{file}"}
        return _run(tmp_path / name, data=data)

    runs = [own("a", "mine.csv"), own("b", "yours.csv"), own("c", "deep/mine.csv")]
    text = as_text(comparison(runs))
    assert "physionet (mine.csv)" in text and "physionet (yours.csv)" in text
    assert "alice" not in text and "deep" not in text


def test_runs_on_different_folders_of_images_are_different_tasks_that_name_no_place(tmp_path):
    def own(name, folder):
        config = {"data": {"name": "folder", "folder": folder}}
        return read_run(write_run(tmp_path / name, "folder", config=config))

    tasks = [task_of(own("a", "/home/alice/birds")), task_of(own("b", "/mnt/cats/"))]
    assert tasks == [("folder (birds)", "cpu", ""), ("folder (cats)", "cpu", "")]
    assert task_of(own("c", "."))[0] == "folder (.)"


def test_series_that_are_tested_on_another_file_are_another_task(tmp_path):
    own = {"path": "/home/alice/mine.csv"}
    tested = _run(tmp_path / "a", data=own | {"test_path": "/home/alice/later.csv"})
    assert task_of(tested)[0] == "physionet (mine.csv, tested on later.csv)"
    assert task_of(_run(tmp_path / "b", data=own))[0] == "physionet (mine.csv)"


@pytest.mark.parametrize("data", [None, "digits", {"folder": 3}])
def test_spoilt_settings_of_data_are_no_hindrance(tmp_path, data):
    run = read_run(write_run(tmp_path, config={"data": data}))
    assert task_of(run)[0] in ("digits", "digits (3)")
    assert run.command.startswith("bfno train digits/bfno-node")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "series"),
        ({"protocol": "published"}, "series × latent samples"),
        ({"data": {"labels": "row"}}, "time points"),
        ({"judged_by": "test_accuracy", "data": {"labels": "series"}}, "series"),
        ({"judged_by": "test_accuracy"}, "labels"),
    ],
)
def test_what_was_counted_has_its_name(tmp_path, changes, expected):
    run = _run(tmp_path, **changes)
    assert sample_name(run) == expected
    assert per_class(run).columns[-1].title == f"test {expected}"


def test_the_loss_is_that_of_the_labels_in_training_too(tmp_path):
    svg = curve_drawings([_run(tmp_path)])[0]
    assert svg is not None and "cross-entropy of the labels" in svg
    ticks = re.findall(r">([\d.]+)</text>", svg)
    assert ticks and all(float(tick) <= 3 for tick in ticks)  # epochs and losses, not 51


def test_a_metric_without_training_values_is_drawn_for_both_other_splits(tmp_path):
    svg = curve_drawings([_run(tmp_path)])[1]
    assert svg is not None
    assert {"test", "validation", "AUROC"} <= set(re.findall(r">([^<]+)</text>", svg))
    assert ">training<" not in svg


def test_a_report_of_series_tells_protocol_metrics_and_units(tmp_path):
    folders = [
        _write(tmp_path, "ace-latent-ode", model=ACE),
        _write(tmp_path, protocol="published"),
    ]
    page = write_report(folders, tmp_path / "report.html").read_text()
    for text in (
        "On physionet (scale cpu, protocol sound), ace-latent-ode † reaches a test AUROC of 0.8",
        "On physionet (scale cpu, protocol published), latent-ode reaches",
        "<h2>physionet, scale cpu, protocol published</h2>",
        "every latent sample is scored separately",
        "† transductive: ",
        "test macro-F1",
        "test AUPRC",
        "test MSE",
        "test series",
    ):
        assert text in page


def test_a_report_embeds_the_picture_of_a_run_as_an_image(tmp_path):
    folder = _write(tmp_path)
    picture = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
    (folder / "figures").mkdir()
    (folder / "figures" / "reconstruction.svg").write_bytes(picture)
    # Named twice, and beside a run without one.
    folders = [folder, _write(tmp_path, "gru-d"), folder]
    page = write_report(folders, tmp_path / "report.html").read_text()
    found = re.findall(r'<img alt="[^"]+" src="data:image/svg\+xml;base64,([^"]+)">', page)
    assert [base64.b64decode(text) for text in found] == [picture]
    assert "alert(1)" not in page  # only inside the image, as base64
    before = page[: page.index("<img")]
    assert before.rindex("latent-ode on physionet") > before.rfind("gru-d on physionet")


def test_a_picture_that_is_too_large_is_refused(tmp_path):
    folder = _write(tmp_path)
    (folder / "figures").mkdir()
    with open(folder / "figures" / "reconstruction.svg", "wb") as file:
        file.truncate(9 * 2**20)
    with pytest.raises(DataError, match="more than 8 MB"):
        write_report([folder], tmp_path / "report.html")


def test_a_method_that_solves_nothing_is_not_praised_for_it(tmp_path):
    still = {**RESULT, "forward_nfe": 0.0, "backward_nfe": 0.0}
    folder = write_files(tmp_path / "run", _record("gru-d", result=still), epoch_lines(still))
    page = write_report([folder], tmp_path / "report.html").read_text()
    assert "forward evaluations" not in page and "gru-d takes 61 s of training" in page


def test_folders_of_one_name_with_other_test_samples_or_classes_are_different_tasks(tmp_path):
    def own(name, tested, classes):
        data = {"data": {"name": "folder", "folder": "/home/alice/birds"}}
        samples, names = {"train": 9, "test": tested}, [str(k) for k in range(classes)]
        return read_run(
            write_run(tmp_path / name, "folder", config=data, samples=samples, classes=names)
        )

    tasks = [task_of(own(str(k), *sizes))[0] for k, sizes in enumerate([(18, 3), (22, 3), (18, 4)])]
    assert tasks[0] == "folder (birds, 18 test samples of 3 classes)" and len(set(tasks)) == 3


def test_runs_of_a_protocol_are_another_task_than_usual_ones(tmp_path):
    changes = sorted(PROTOCOLS["counted"].changes)
    folders = [
        write_files(tmp_path / place / "node", {**record("mnist", "node", 7), "changes": own})
        for place, own in (("a", []), ("b", changes))
    ]
    groups = replicates(map(read_run, folders))
    assert [group.task for group in groups] == [("mnist", "cpu", ""), ("mnist", "cpu", "counted")]
    assert {group.label for group in groups} == {"node"}


def test_a_run_that_was_resumed_with_other_settings_says_what_it_had_before(tmp_path):
    before = "train.lr=0.001 until step 8"
    plain = read_run(write_run(tmp_path, "digits", "node", 7))
    resumed = dataclasses.replace(plain, seed=8, name="resumed", history=[before])
    assert [one.label for one in replicates([plain])] == ["node"]
    assert [one.label for one in replicates([resumed])] == [f"node [{before}]"]
    labels = {one.label for one in replicates([plain, resumed])}
    assert len(labels) == 2 and sum(before in label for label in labels) == 1
