import csv
import io
import re

import pytest

from bfno.lab.errors import ConfigError
from bfno.lab.views.layout import (
    FORMATS,
    Column,
    Table,
    as_csv,
    as_latex,
    as_markdown,
    as_text,
    csv_text,
    find_format,
    stacked,
    write_table,
)
from bfno.lab.views.metrics import Estimate

TABLE = Table(
    (
        Column("method", "method", numeric=False),
        Column("a_size", "size\nhere", group="A"),
        Column("a_score", "score", measured=True, group="A"),
        Column("a_seeds", "seeds", for_programs=True, group="A"),
        Column("b_score", "score", measured=True, group="B"),
    ),
    (
        ("one", 1234, Estimate(0.5, 0.25, 2), (7, 8), None),
        ("two", None, Estimate(1 / 3, None, 2, "(1 of 2 seeds)"), (7,), Estimate(2, None, 1, "*")),
    ),
    frozenset({(0, 2), (1, 4)}),
    ("A note.",),
)

TEXT = """\
        A                           B
         size
method   here                score  score
------- ------ -------------------- -----
one     1,234          0.50 ± 0.25      –
two         –  0.33 (1 of 2 seeds)  2.0 *

A note.
"""

LATEX = r"""% needs \usepackage{booktabs}
\begin{tabular}{lrrr}
\toprule
\multicolumn{1}{c}{} & \multicolumn{2}{c}{A} & \multicolumn{1}{c}{B} \\
\cmidrule(lr){2-3}\cmidrule(lr){4-4}
 & size &  &  \\
method & here & score & score \\
\midrule
one & 1,234 & \textbf{0.50 $\pm$ 0.25} & -- \\
two & -- & 0.33 (1 of 2 seeds) & \textbf{2.0 {*}} \\
\bottomrule
\end{tabular}

{\footnotesize
A note.\par
}
"""


def test_text_has_groups_above_titles_of_several_lines():
    assert as_text(TABLE) == TEXT


def test_markdown_joins_groups_and_titles_and_marks_the_best():
    assert as_markdown(TABLE).splitlines()[:4] == [
        "| method | A: size here | A: score | B: score |",
        "| --- | ---: | ---: | ---: |",
        "| one | 1,234 | **0.50 ± 0.25** | – |",
        r"| two | – | 0.33 (1 of 2 seeds) | **2.0 \*** |",
    ]


def test_csv_has_full_precision_and_what_only_programs_need():
    head, one, two = csv.reader(as_csv(TABLE).splitlines())
    assert head == [
        "method",
        "a_size",
        "a_score",
        "a_score_std",
        "a_seeds",
        "b_score",
        "b_score_std",
    ]
    assert one == ["one", "1234", "0.5", "0.25", "7 8", "", ""]
    assert two == ["two", "", str(1 / 3), "", "7", "2", ""]


def test_csv_gives_an_estimate_as_many_cells_as_its_column_has():
    columns = (
        Column("recall", "recall"),
        Column("score", "score", measured=True),
        Column("n", "n"),
    )
    rows = (
        (Estimate(0.5, None, 2), Estimate(0.7, 0.1, 2), 3),
        (Estimate(0.6, 0.2, 2), 4, Estimate(5, None, 0)),
        (None, None, None),
    )
    assert list(csv.reader(as_csv(Table(columns, rows)).splitlines())) == [
        ["recall", "score", "score_std", "n"],
        ["0.5", "0.7", "0.1", "3"],
        ["0.6", "4", "", "5"],
        ["", "", "", ""],
    ]


def test_latex_has_rules_groups_and_bold_cells():
    assert as_latex(TABLE) == LATEX


def test_latex_escapes_everything_that_could_be_a_command():
    nasty = '50% of $x_1$ & {a}#\\b~c^d [e] <f|g> "h" `i` Δ × … † \ufffd 漢'
    table = Table((Column("k", nasty, numeric=False),), ((nasty,),), notes=(nasty,))
    body = as_latex(table).partition("\\toprule")[2]
    for text in body.splitlines():
        bare = re.sub(r"\\(text[a-z]+|dots|dag)\{\}|\$\\(Delta|times|pm)\$|\\[&%$#_{}]", "", text)
        bare = re.sub(r"\\(midrule|bottomrule|end|footnotesize|par)|\\\\$", "", bare)
        assert not re.search(r"[\\%$#_~^<>|&\"`]", bare), bare
        assert bare.isascii()
    # A cell that begins with a bracket is no option of the line break before it.
    assert "{[}" in body and not re.search(r"(^|\s)\[", body)


def test_latex_braces_are_balanced():
    text = as_latex(TABLE) + as_latex(Table((Column("k", "{", numeric=False),), (("}",),)))
    bare = re.sub(r"\\[{}]", "", text)
    assert bare.count("{") == bare.count("}")


def test_a_wide_table_is_cut_between_groups_and_repeats_its_first_column():
    parts = stacked(TABLE, 40)
    assert [[column.key for column in part.columns] for part in parts] == [
        ["method", "a_size", "a_score", "a_seeds"],
        ["method", "b_score"],
    ]
    assert [part.notes for part in parts] == [(), TABLE.notes]
    assert [part.best for part in parts] == [{(0, 2)}, {(1, 1)}]
    assert len(stacked(TABLE, 100)) == 1
    plain = Table((Column("k", "long title"),), ((1,),))
    assert stacked(plain, 3) == [plain]


def test_a_wide_table_without_groups_is_cut_between_columns_and_repeats_its_words():
    columns = (
        Column("method", "method", numeric=False),
        Column("data", "data", numeric=False),
        *(Column(key, f"number {key}") for key in "abc"),
    )
    table = Table(columns, (("one", "x", 1, 2, 3),), frozenset({(0, 4)}), ("A note.",))
    keys = [[column.key for column in part.columns] for part in stacked(table, 32)]
    assert keys == [["method", "data", "a", "b"], ["method", "data", "c"]]
    assert stacked(table, 32)[1].best == {(0, 2)}
    assert max(map(len, "".join(map(as_text, stacked(table, 32))).splitlines())) <= 32
    assert stacked(table, 100) == [table]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("=1+1", "'=1+1"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-x", "'-x"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\tcmd", r"'\tcmd"),
        ("\rcmd", r"'\rcmd"),
        ("a\x1b[31m", r"a\x1b[31m"),
        ("-0.5", "-0.5"),
        ("+1e-9", "+1e-9"),
        ("-inf", "-inf"),
        ("-1-1", "'-1-1"),
        ("plain - text", "plain - text"),
    ],
)
def test_a_cell_of_a_csv_is_never_a_formula(text, shown):
    (row,) = csv.reader(io.StringIO(csv_text([[text, -0.5]]), newline=""))
    assert row == [shown, "-0.5"]
    table = Table((Column("k", "k", numeric=False),), ((text,),))
    assert list(csv.reader(io.StringIO(as_csv(table), newline="")))[1] == [shown]


def test_text_that_could_steer_a_terminal_is_escaped_in_a_text_table():
    name = "a\x1b[31mb\nc\u202ed\u2028e\udc9bf\x9bg"
    text = as_text(Table((Column("k", "k", numeric=False),), ((name,),), notes=(name,)))
    assert text.count(r"a\x1b[31mb\nc\u202ed\u2028e\udc9bf\x9bg") == 2
    assert text.replace("\n", "").isprintable()


def test_letters_of_double_width_are_aligned():
    columns = (Column("k", "k", numeric=False), Column("n", "n"))
    lines = as_text(Table(columns, (("猫", 1), ("ab", 2)))).splitlines()
    assert [line.index(digit) for line, digit in zip(lines[2:], "12", strict=True)] == [3, 4]


@pytest.mark.parametrize(
    ("suffix", "layout"), [("txt", "text"), ("md", "markdown"), ("csv", "csv"), ("tex", "latex")]
)
def test_a_file_is_written_in_the_format_of_its_suffix(tmp_path, suffix, layout):
    file = write_table(TABLE, tmp_path / "new" / f"table.{suffix}", None)
    assert file.read_text() == FORMATS[layout](TABLE)
    assert write_table(TABLE, file, "csv").read_text() == as_csv(TABLE)


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not name a format"):
        find_format(None, tmp_path / "table.doc")
    with pytest.raises(ConfigError, match="write text, markdown, csv, latex"):
        find_format("html", None)
    assert find_format(None, None) == "text"


def test_a_long_name_of_a_group_is_broken_where_it_would_widen_its_column():
    name = "a name of more words than a narrow column holds"
    columns = (Column("a", "first", group=name), Column("b", "b", group="B"))
    assert as_text(Table(columns, ((1, 2),))).splitlines() == [
        "a name of more words",
        "than a narrow column",
        "holds                 B",
        "               first  b",
        "--------------------- -",
        "                   1  2",
    ]
