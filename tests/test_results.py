"""What the repository says of its own runs is what their records say."""

import re
import statistics
from pathlib import Path

from bfno.lab.paper.overview import overview
from bfno.lab.paper.page import Evidence, claims_text, introduction, section_text, summary_text
from bfno.lab.runs.archive import ended_runs
from bfno.lab.runs.folder import read_run
from tests.conftest import REPOSITORY

RESULTS = REPOSITORY / "results"
LARGEST_FIGURE = 200_000


def test_the_page_of_results_has_a_section_for_every_table_with_runs():
    text = (REPOSITORY / "RESULTS.md").read_text()
    headings = re.findall("^## (.*)$", text, re.MULTILINE)
    titles = [section.title for section in Evidence.of(RESULTS).sections]
    assert headings[-len(titles) :] == titles


def test_the_page_of_results_and_the_readme_say_what_the_records_say():
    found, picture = Evidence.of(RESULTS), "results/figures/claims.png"
    for name, page in (("RESULTS.md", ""), ("README.md", "RESULTS.md")):
        text = (REPOSITORY / name).read_text()
        assert summary_text(found, picture, page) in text, name
        assert overview(found.sections, page) in text, name


def test_tables_and_verdicts_on_the_page_of_results_are_those_of_the_records():
    text, found = (REPOSITORY / "RESULTS.md").read_text(), Evidence.of(RESULTS)
    assert introduction(Path("results"), Path("RESULTS.md"), found.runs) in text
    assert claims_text(found.verdicts) in text
    for section in found.sections:
        assert section_text(section) in text, section.title


def test_figures_on_the_page_of_results_are_there_and_small():
    pictures = r'<img src="([^"]*)"|!\[[^]]*\]\(([^)]*)\)'
    found = re.findall(pictures, (REPOSITORY / "RESULTS.md").read_text())
    shown = ["".join(names) for names in found]
    assert shown
    for name in shown:
        assert (REPOSITORY / name).stat().st_size < LARGEST_FIGURE, name
    drawn = {file.relative_to(REPOSITORY).as_posix() for file in (RESULTS / "figures").iterdir()}
    assert drawn == set(shown)


def test_records_name_no_place_on_the_machine_that_made_them():
    for place in ended_runs(RESULTS):
        for file in place.glob("*.json*"):
            assert not re.search('"/[a-z]+/', file.read_text()), file


def test_what_the_documents_say_moves_an_accuracy_is_what_the_records_say():
    text = (REPOSITORY / "docs" / "reproducing.md").read_text()
    part = text.partition("## What moves BFNO-NODE's accuracy")[2].partition("\n## ")[0]
    _, _, *rows = [_cells(line) for line in part.splitlines() if line.startswith("|")]
    assert len(rows) > 1
    told = {(setting, method): cells for setting, method, *cells in rows}
    assert len(told) == len(rows)
    for (setting, method), cells in told.items():
        names = map(_folder_name, sorted(re.findall("`([^`]*)`", setting)))
        changed = _by_name(RESULTS / "-".join(["cpu", *names]), method)
        assert cells == _moved(_by_name(RESULTS / "cpu", method), changed), (setting, method)


def _by_name(folder, method):
    found = folder.glob(f"cifar10-{method.strip('`')}-s*")
    return {place.name: read_run(place).result for place in found}


def _cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def _folder_name(change):
    name, _, value = change.partition("=")
    return f"{name.rpartition('.')[2]}-{value}"


def _moved(plain, changed):
    """Mean validation accuracy and evaluations without and with a change, over the same seeds."""
    pairs = [(plain[name], result) for name, result in changed.items()]
    accuracies, evaluations = (
        [statistics.mean(one[key] for one in side) for side in zip(*pairs, strict=True)]
        for key in ("validation_accuracy", "forward_nfe")
    )
    accuracy = " → ".join(f"{100 * one:.1f}" for one in accuracies)
    evaluation = " → ".join(f"{one:.1f}" for one in evaluations)
    return [str(len(changed)), f"{accuracy} %", evaluation]
