"""The page of results says what the records say, and only that."""

import re

import pytest

from bfno.errors import ConfigError
from bfno.results.page import overview, sections_of, write_page
from bfno.results.record import read_run
from tests.results.runs import record, result, write_files


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("page")
    for method, accuracy in (("node", 0.92), ("bfno-node", 0.95), ("fno-node", 0.9)):
        for seed in (7, 8):
            content = {**record("mnist", method, seed), "result": result(accuracy + seed / 1000)}
            write_files(tmp_path / "results" / "cpu" / f"{method}-{seed}", content)
    return tmp_path / "results"


@pytest.fixture(scope="module")
def written(folder):
    """The files, the page first; drawing takes seconds."""
    return write_page(folder, folder.parent / "RESULTS.md")


def test_each_table_with_runs_gets_its_section_command_and_figures(folder, written):
    text = written[0].read_text()
    headings = re.findall("^## (.*)$", text, re.MULTILINE)
    assert headings[1:] == [
        "Table 1: Image classification, MNIST (cpu scale)",
        "`ablation-operator`: Which operator, MNIST (cpu scale)",
    ]
    assert "bfno table 1 --data mnist --scale cpu --seeds 2\n" in text
    assert "| NODE | 20,123 | 85,316 | 0.9275 ± 0.0007 | 0.9531 ± 0.0042 |" in text
    shown = re.findall('<img src="([^"]*)"', text)
    assert {folder.parent / name for name in shown} == set(written[1:])
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in written[1:])


def test_links_of_the_overview_lead_to_the_sections(written):
    text = written[0].read_text()
    anchors = re.findall(r"\]\(#([^)]*)\)", text)
    # GitHub's rule: lower case, no punctuation but hyphens, spaces become hyphens.
    headings = {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall("^## (.*)$", text, re.MULTILINE)
    }
    assert len(anchors) == 2 and set(anchors) <= headings


def test_claims_are_judged_on_the_page(written):
    assert "| BFNO-NODE is more accurate than NODE on MNIST |" in written[0].read_text()


def test_the_same_runs_give_the_same_page_which_may_be_replaced(folder, written):
    first = {file: file.read_bytes() for file in written}
    assert {file: file.read_bytes() for file in write_page(folder, written[0])} == first


def test_a_page_of_somebody_elses_is_not_replaced(folder, tmp_path):
    page = tmp_path / "NOTES.md"
    page.write_text("# My notes\n")
    with pytest.raises(ConfigError, match="not from this command"):
        write_page(folder, page)
    assert page.read_text() == "# My notes\n"


def test_a_folder_without_runs_of_a_table_is_refused(tmp_path):
    write_files(tmp_path / "results" / "own", record("digits", "mine", 7))
    with pytest.raises(ConfigError, match="holds no run of the paper's tables"):
        write_page(tmp_path / "results", tmp_path / "RESULTS.md")


def test_runs_with_changed_settings_stay_out(folder, tmp_path):
    content = {**record("mnist", "node", 9), "result": result(0.5), "changes": ["train.lr=1"]}
    changed = write_files(tmp_path / "changed", content)
    places = [changed, *sorted(folder.glob("cpu/*node-*"))]
    sections = list(sections_of([(place, read_run(place)) for place in places]))
    assert all(run.seed != 9 for section in sections for _, run in section.runs)
    assert "BFNO-NODE 0.9575 ± 0.0007, first of 2" in overview(sections)
