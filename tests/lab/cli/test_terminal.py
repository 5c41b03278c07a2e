"""Tables on a terminal of any width."""

import pytest

from bfno.lab.cli.terminal import show_table
from tests import architecture
from tests.conftest import REPOSITORY
from tests.lab.views.test_layout import TABLE

PACKAGE = REPOSITORY / "src" / "bfno"

BOLD = "\x1b[1m"


@pytest.mark.parametrize("width", [40, 60, 100])
def test_a_table_is_never_wider_than_the_terminal_and_loses_no_letter(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    show_table(TABLE)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= width
    for text in ("1,234", "0.50 ± 0.25", "0.33 (1 of 2 seeds)", "2.0 *", "A note."):
        assert printed.count(text) == 1
    assert "…" not in printed and "-" not in printed


def test_headings_and_best_cells_are_bold_on_a_terminal_with_styles(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    show_table(TABLE)
    lines = capsys.readouterr().out.splitlines()
    rule = next(index for index, line in enumerate(lines) if "─" in line)
    assert all(line.startswith(BOLD) for line in lines[:rule])
    assert [line.count(BOLD) for line in lines[rule + 1 : rule + 3]] == [1, 1]


def test_names_that_look_like_markup_stay_text(monkeypatch, capsys):
    from dataclasses import replace

    monkeypatch.setenv("COLUMNS", "100")
    rows = (("[red]one[/red]", *TABLE.rows[0][1:]), ("[bold", *TABLE.rows[1][1:]))
    show_table(replace(TABLE, rows=rows))
    printed = capsys.readouterr().out
    assert "[red]one[/red]" in printed and "[bold" in printed


def test_everything_is_printed_through_one_door():
    # An estimator belongs to a program of somebody else, where verbose=True is asked for.
    doors = {"bfno.lab.cli.terminal", "bfno.lab.estimators.training"}
    assert architecture.calls(PACKAGE, {"print"}, of={""}) == doors
