"""What the repository says of its own runs is what their records say."""

import re
from pathlib import Path

from bfno.lab.paper.overview import overview
from bfno.lab.paper.page import claims_text, introduction, section_text
from bfno.lab.paper.sections import sections_of
from bfno.lab.runs.archive import finished_runs
from bfno.lab.runs.folder import read_run
from tests.conftest import REPOSITORY

RESULTS = REPOSITORY / "results"
LARGEST_FIGURE = 200_000


def _runs():
    return [(place, read_run(place)) for place in finished_runs(RESULTS)]


def _sections():
    return list(sections_of(_runs()))


def test_the_page_of_results_has_a_section_for_every_table_with_runs():
    text = (REPOSITORY / "RESULTS.md").read_text()
    headings = re.findall("^## (.*)$", text, re.MULTILINE)
    assert headings[1:] == [section.title for section in _sections()]


def test_the_page_of_results_and_the_readme_say_what_the_records_say():
    sections = _sections()
    assert overview(sections) in (REPOSITORY / "RESULTS.md").read_text()
    assert overview(sections, "RESULTS.md") in (REPOSITORY / "README.md").read_text()


def test_tables_and_verdicts_on_the_page_of_results_are_those_of_the_records():
    text, runs = (REPOSITORY / "RESULTS.md").read_text(), _runs()
    assert introduction(Path("results"), Path("RESULTS.md"), runs) in text
    assert claims_text(runs) in text
    for section in _sections():
        assert section_text(section) in text, section.title


def test_figures_on_the_page_of_results_are_there_and_small():
    shown = re.findall('<img src="([^"]*)"', (REPOSITORY / "RESULTS.md").read_text())
    assert shown
    for name in shown:
        assert (REPOSITORY / name).stat().st_size < LARGEST_FIGURE, name
    drawn = {file.relative_to(REPOSITORY).as_posix() for file in (RESULTS / "figures").iterdir()}
    assert drawn == set(shown)


def test_records_name_no_place_on_the_machine_that_made_them():
    for place in finished_runs(RESULTS):
        for file in place.glob("*.json*"):
            assert not re.search('"/[a-z]+/', file.read_text()), file
