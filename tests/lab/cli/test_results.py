"""`bfno results` from the command line."""

from bfno.lab.cli import main
from tests.lab.cli.output import error_line
from tests.lab.views.runs import write_run


def test_records_are_taken_over_and_shown(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for method in ("bfno-node", "node"):
        write_run(tmp_path / "runs", "mnist", method)
    assert main(["results", "results", "--from", "runs"]) == 0
    printed = capsys.readouterr().out
    assert (
        "results/cpu/mnist-node-s7: kept as it is now" in printed
        and "written to RESULTS.md" in printed
    )
    text = (tmp_path / "RESULTS.md").read_text()
    assert "`bfno results results -o RESULTS.md`" in text and str(tmp_path) not in text
    assert (tmp_path / "results" / "figures" / "cpu-1-mnist-accuracy.png").is_file()


def test_a_folder_that_is_none_is_named(tmp_path, capsys):
    assert main(["results", str(tmp_path / "nowhere")]) == 2
    assert "nowhere: is not a folder" in error_line(capsys)
