"""What the program tells its users beside results: what to type next, what it will make."""

import re
import shlex
from typing import Any

import pytest
from typer.main import get_command

from bfno.lab.cli import display, main
from bfno.lab.cli.commands import app
from bfno.lab.cli.targets import tell_new_folder
from bfno.lab.errors import ConfigError
from bfno.lab.runs.folder import RunFolder, read_run
from tests.conftest import REPOSITORY
from tests.lab.runs.campaigns import settings, write_run


def _commands(text: str) -> list[list[str]]:
    """The words of every command that a text quotes."""
    return [shlex.split(one) for one in re.findall("`(bfno [^`]+)`", text)]


@pytest.mark.parametrize("score", ["test_accuracy", "test_nll", "test_bits_per_dim"])
def test_a_finished_run_in_a_folder_with_spaces_says_what_to_type_next(tmp_path, capsys, score):
    folder = tmp_path / "my runs" / "it's"
    write_run(folder, settings("node"), result={score: 0.5}, judged_by=score)
    display.finished(read_run(folder), folder)
    found = _commands(capsys.readouterr().out)
    assert len(found) >= 2 and all(words[2] == str(folder) for words in found)


@pytest.mark.parametrize(
    ("by", "told"),
    [
        ("last epoch", "(epoch 2, the last)"),
        ("validation_accuracy", "(epoch 2, chosen by validation accuracy)"),
    ],
)
def test_a_finished_run_says_why_it_kept_an_epoch(tmp_path, capsys, by, told):
    folder = tmp_path / "run"
    write_run(folder, settings("node"), result={"test_accuracy": 0.5}, chosen_epoch=2, chosen_by=by)
    display.finished(read_run(folder), folder)
    assert told in capsys.readouterr().out


def test_a_folder_with_spaces_that_is_taken_says_what_to_type(tmp_path):
    folder = tmp_path / "my runs"
    write_run(folder, settings("node"))
    with pytest.raises(ConfigError) as refused:
        RunFolder(folder).check_unused()
    assert _commands(str(refused.value)) == [["bfno", "resume", str(folder)]]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_folder_that_will_be_made_is_reported(tmp_path, capsys, depth):
    out = tmp_path.joinpath(*["new"] * depth, "file.md")
    tell_new_folder(out)
    said = f"note: {out.parent} does not exist and will be created\n" if depth else ""
    assert capsys.readouterr().err == said


def test_a_table_in_a_new_folder_says_so_but_its_plan_does_not(tmp_path, capsys):
    write_run(tmp_path / "runs" / "a", settings("node"))
    words = ["table", "1", "--data", "digits", "--scale", "smoke", "--only", "node"]
    words += ["--runs", str(tmp_path / "runs"), "-o", str(tmp_path / "new" / "table.md")]
    assert main([*words, "--plan"]) == 0
    assert capsys.readouterr().err == ""
    assert main(words) == 0
    assert (
        f"note: {tmp_path / 'new'} does not exist and will be created\n" in capsys.readouterr().err
    )
    assert (tmp_path / "new" / "table.md").exists()


def test_no_command_to_type_is_written_without_quoting():
    group: Any = get_command(app)
    names = "|".join(group.commands.keys() - {"data"})  # whose words need no quotes
    unquoted = re.compile(rf"bfno ({names}) [^`\"']*\{{")
    found = [
        f"{file.name}: {line.strip()}"
        for file in (REPOSITORY / "src").rglob("*.py")
        for line in file.read_text().splitlines()
        if unquoted.search(line)
    ]
    assert found == []
