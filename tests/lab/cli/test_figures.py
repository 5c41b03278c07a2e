"""The command that writes figures, as its users meet it."""

import pytest

from bfno.lab.cli import main
from tests.lab.cli.output import error_line
from tests.lab.views.exhibits import write_exhibit
from tests.lab.views.runs import record, write_files, write_run


def test_one_line_is_printed_for_each_file(tmp_path, capsys):
    run = write_run(tmp_path)
    write_exhibit(run)
    assert main(["figures", str(run), "-o", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == sorted(str(file) for file in (tmp_path / "out").iterdir())
    assert {str(tmp_path / "out" / f"tsne-digits.{kind}") for kind in ("png", "svg")} <= {*printed}


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
        ("done", "file", "is no folder"),
    ],
)
def test_wrong_words_are_told_in_one_line(tmp_path, capsys, run, out, message):
    write_files(tmp_path / "running", {**record(), "status": "running"})
    write_files(tmp_path / "done", record())
    (tmp_path / "file").write_text("no folder")
    assert main(["figures", str(tmp_path / run), "-o", str(tmp_path / out)]) != 0
    assert message in error_line(capsys)
    assert not (tmp_path / "out").exists()


def test_no_run_or_no_folder_is_told_in_one_line(tmp_path, capsys):
    assert main(["figures", "-o", str(tmp_path / "out")]) == 2
    assert "RUN" in error_line(capsys)
    assert main(["figures", str(write_run(tmp_path))]) == 2
    assert "--out" in error_line(capsys)


def test_help_ends_in_an_example(capsys):
    assert main(["figures", "--help"]) == 0
    assert "bfno figures runs/mnist-* -o figures" in capsys.readouterr().out
