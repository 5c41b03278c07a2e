"""Commands that show finished runs, and what they ask of the runs first."""

import os
import shutil
from typing import get_args

import pytest

from bfno.lab.cli import main, sample, show
from bfno.lab.cli.show import prepare
from bfno.lab.experiments.experiment import Shown
from bfno.lab.experiments.resolve import resolve
from bfno.lab.runs.session import start
from tests.lab.cli.output import error_line
from tests.lab.experiments.density.runs import tiny as tiny_density
from tests.lab.runs.runs import tiny
from tests.lab.views.exhibits import write_exhibit
from tests.lab.views.runs import record, write_files, write_run


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "classifier"
    start(tiny(), folder)
    return folder


def test_a_classifier_gets_its_exhibit(classifier):
    prepare([classifier])
    assert (classifier / "exhibit.json").stat().st_size > 1000


def test_a_density_of_images_is_drawn_beside_real_ones_once(tmp_path, monkeypatch):
    start(tiny_density("digits-density/realnvp"), tmp_path / "run")
    prepare([tmp_path / "run"])
    assert (tmp_path / "run" / "figures" / "samples.png").stat().st_size > 1000
    monkeypatch.setattr(sample, "_draw", lambda _: pytest.fail("drawn again"))
    prepare([tmp_path / "run"])


def test_points_are_drawn_without_real_ones(tmp_path):
    start(tiny_density("moons/ffjord"), tmp_path / "run")
    prepare([tmp_path / "run"])
    assert (tmp_path / "run" / "figures" / "samples.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("method", "drawn"), [("latent-ode", True), ("gru-d", False), ("ode-rnn", False)]
)
def test_series_are_reconstructed_by_latent_models_alone(tmp_path, method, drawn):
    changes = {"seed": 3, "threads": 1, "train": {"epochs": 1}}
    start(resolve(f"series/{method}", scale="smoke", changes=changes), tmp_path / "run")
    prepare([tmp_path / "run"])
    assert (tmp_path / "run" / "figures" / "reconstruction.svg").exists() is drawn


def test_a_run_without_checkpoints_is_left_alone(classifier, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("record.json", "metrics.jsonl", "config.yaml"):
        shutil.copy(classifier / name, bare / name)
    prepare([bare])
    assert not (bare / "exhibit.json").exists()


def test_a_run_whose_data_are_gone_is_noted_and_the_others_are_prepared(
    classifier, tmp_path, caplog
):
    lost = tmp_path / "lost"
    shutil.copytree(classifier, lost)
    (lost / "exhibit.json").unlink(missing_ok=True)
    text = (lost / "config.yaml").read_text()
    (lost / "config.yaml").write_text(
        text.replace("name: digits", "name: mnist").replace(
            "dir: null", f"dir: {tmp_path / 'nowhere'}"
        )
    )
    other = tmp_path / "other"
    shutil.copytree(classifier, other)
    (other / "exhibit.json").unlink(missing_ok=True)
    prepare([lost, other])
    assert "shown without pictures of its model" in caplog.text
    assert not (lost / "exhibit.json").exists() and (other / "exhibit.json").exists()


def test_an_untrained_decoder_is_not_drawn():
    assert resolve("activity/latent-ode").shows is None
    assert resolve("physionet/latent-ode").shows == "reconstruction"


def test_everything_that_an_experiment_can_show_is_made():
    assert show._makers().keys() == {*get_args(Shown)}


def test_one_line_is_printed_for_each_file(tmp_path, capsys):
    run = write_run(tmp_path)
    write_exhibit(run)
    assert main(["figures", str(run), "-o", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == sorted(str(file) for file in (tmp_path / "out").iterdir())
    assert {str(tmp_path / "out" / f"tsne-digits.{kind}") for kind in ("png", "svg")} <= {*printed}


def test_figures_of_an_unfinished_run_are_left_out_and_the_others_are_drawn(tmp_path, capsys):
    done = write_run(tmp_path, method="node")
    begun = write_run(tmp_path, method="anode")
    (begun / "record.json").unlink()
    (begun / "config.yaml").write_text("experiment: digits/anode\ntrain: {epochs: 10}\n")
    words = ["figures", str(done), str(begun), "-o", str(tmp_path / "out")]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert f"note: {begun} is left out: unfinished, stopped after 3 of 10 epochs" in printed.err
    assert "bfno resume" in printed.err and printed.out.count("\n") > 1
    assert main(["figures", str(begun), "-o", str(tmp_path / "out")]) == 2


def test_existing_figures_are_replaced_only_when_forced(tmp_path, capsys):
    words = ["figures", str(write_run(tmp_path)), "-o", str(tmp_path / "out")]
    assert main(words) == 0
    capsys.readouterr()
    assert main(words) != 0
    assert "pass --force" in error_line(capsys)
    assert main([*words, "--force"]) == 0


@pytest.mark.parametrize(
    ("run", "out", "message"),
    [
        ("missing", "out", "is not a folder"),
        ("running", "out", "bfno resume"),
        ("done", "file", "is not a folder"),
    ],
)
def test_wrong_words_are_told_in_one_line(tmp_path, capsys, run, out, message):
    write_files(tmp_path / "running", {**record(), "status": "running"})
    (tmp_path / "running" / "config.yaml").touch()
    write_files(tmp_path / "done", record())
    (tmp_path / "file").write_text("no folder")
    assert main(["figures", str(tmp_path / run), "-o", str(tmp_path / out)]) != 0
    assert message in error_line(capsys)
    assert not (tmp_path / "out").exists()


def test_no_run_or_no_folder_is_reported_in_one_line(tmp_path, capsys):
    assert main(["figures", "-o", str(tmp_path / "out")]) == 2
    assert "RUN" in error_line(capsys)
    assert main(["figures", str(write_run(tmp_path))]) == 2
    assert "--out" in error_line(capsys)


def test_help_ends_in_an_example(capsys):
    assert main(["figures", "--help"]) == 0
    assert "bfno figures runs/mnist-* -o figures" in capsys.readouterr().out


def test_records_are_taken_over_and_shown(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for method in ("bfno-node", "node"):
        write_run(tmp_path / "runs", "mnist", method)
    assert main(["results", "results", "--from", "runs"]) == 0
    printed = capsys.readouterr().out
    assert "results/cpu/mnist-node-s7: added" in printed and "written to RESULTS.md" in printed
    text = (tmp_path / "RESULTS.md").read_text()
    assert "`bfno results results -o RESULTS.md`" in text and str(tmp_path) not in text
    assert (tmp_path / "results" / "figures" / "cpu-1-mnist-accuracy.png").is_file()


def test_figures_that_the_page_no_longer_shows_are_named_and_stay(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for method in ("bfno-node", "node", "fno-node"):
        write_run(tmp_path / "results" / "cpu", "mnist", method)
    assert main(["results", "results"]) == 0
    assert "no longer shown" not in capsys.readouterr().err
    shutil.rmtree(next((tmp_path / "results" / "cpu").glob("*-fno-node*")))
    with open("RESULTS.md", "ab") as page:
        page.write(b"\xff![my own](results/figures)")
    assert main(["results", str(tmp_path / "results")]) == 0
    gone = "results/figures/cpu-ablation-operator-mnist-operators.png"
    assert f"note: {gone} is no longer shown" in capsys.readouterr().err
    assert (tmp_path / gone).is_file()


def test_runs_that_are_not_finished_are_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for method in ("bfno-node", "node", "anode"):
        write_run(tmp_path / "runs" / "cpu", "mnist", method)
    lost = next((tmp_path / "runs" / "cpu").glob("*-anode*"))
    (lost / "record.json").unlink()
    (lost / "record.json").symlink_to("nowhere")
    assert main(["results", "results", "--from", "runs"]) == 0
    notes = capsys.readouterr().err
    assert f"{lost.relative_to(tmp_path)} is left out: it has no record of a finished" in notes


def test_a_pipe_in_place_of_the_page_or_document_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for method in ("bfno-node", "node"):
        write_run(tmp_path / "results" / "cpu", "mnist", method)
    os.mkfifo("pipe.md")
    for words in (["-o", "pipe.md"], ["--overview", "pipe.md"]):
        assert main(["results", "results", *words]) == 3
        assert "pipe.md: is not a plain file" in error_line(capsys)


def test_a_folder_that_is_none_is_named(tmp_path, capsys):
    assert main(["results", str(tmp_path / "nowhere")]) == 2
    assert "nowhere: is not a folder" in error_line(capsys)
