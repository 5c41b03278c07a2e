"""The page of results says what the records say, and only that."""

import dataclasses
import json
import math
import os
import re
import shutil
from pathlib import Path

import pytest

from bfno.lab.data.catalogue import DATA_SETS
from bfno.lab.errors import ConfigError, DataError
from bfno.lab.paper import page as page_module
from bfno.lab.paper.claims import PAPER_CLAIMS, Claim, Judgement
from bfno.lab.paper.findings import (
    Verdicts,
    counts_text,
    explanation_text,
    findings_text,
    full_size_of,
    read_released,
    released_text,
    trained_text,
    verdicts_of,
)
from bfno.lab.paper.numbers import paper_table
from bfno.lab.paper.overview import (
    agreement_text,
    order_agreement,
    overview,
    put_overview,
    standing_here,
    standing_in_paper,
)
from bfno.lab.paper.page import (
    Evidence,
    claims_text,
    figures_of,
    introduction,
    left_out_text,
    section_text,
    summary_text,
    write_page,
)
from bfno.lab.paper.sections import sections_of, select_runs
from bfno.lab.runs.archive import keep_runs
from bfno.lab.runs.folder import RunFolder, read_run, read_runs
from bfno.lab.runs.variants import PROTOCOLS, Variant
from tests.lab.views.runs import (
    FAILURE,
    epoch_lines,
    record,
    result,
    write_failed,
    write_files,
    write_run,
)


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
    shown = re.findall(r'<img src="([^"]*)"', text) + re.findall(r"^!\[.*\]\((.*)\)$", text, re.M)
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
    assert len(anchors) == 3 and set(anchors) <= headings


def test_claims_are_judged_on_the_page(written):
    assert "| BFNO-NODE is more accurate than NODE on MNIST |" in written[0].read_text()


def test_claims_stand_at_the_top_by_what_became_of_them(folder, written):
    runs = [read_run(place) for place in sorted(folder.glob("cpu/*"))]
    verdicts = verdicts_of(runs)
    counts, text = counts_text(verdicts), findings_text(verdicts)
    tested = f"Runs here test 1 of the paper's {len(PAPER_CLAIMS)} claims. Verdicts (cpu scale)"
    assert counts == f"**The paper's claims.** {tested}: 1 borne out and 0 not borne out.\n"
    others = f"{len(PAPER_CLAIMS) - 1} claims about CIFAR-10, CIFAR-100, Fashion-MNIST"
    assert text.splitlines() == [
        "- **borne out**: BFNO-NODE is more accurate than NODE on MNIST (p < 0.001)",
        f"- **without runs**: {others}, HumanActivity, MNIST, PhysioNet, STL-10, densities of "
        "CIFAR-10 and densities of MNIST",
    ]
    before, picture, after = written[0].read_text().partition("![Leads")
    assert counts in before and text in before and picture  # all of it on the first screen
    assert explanation_text(verdicts) in after
    none = verdicts_of(runs[:1])
    assert "No claim of the paper has runs" in counts_text(none)
    assert "A claim is *borne out*" not in summary_text(Evidence([]), None)


def _judged(outcome, reason, praise="A beats B", on="MNIST"):
    is_ahead = reason.startswith("leads")
    return Judgement(Claim(praise, on, "1", "mnist", "node"), "", outcome, reason, is_ahead, None)


def test_outcomes_are_counted_and_decided_claims_named():
    plain = _judged("undecided", "leads, but not significantly (p = 0.2)")
    other = _judged("not borne out", "it diverged")
    apart = _judged("not comparable", "solver.rtol is not the paper's", "C")
    verdicts = [
        Verdicts("cpu", Variant(), (plain, apart)),
        Verdicts("paper", Variant(), (other,)),
    ]
    text, tested = findings_text(verdicts), f"Runs here test 1 of the paper's {len(PAPER_CLAIMS)}"
    assert counts_text(verdicts) == (
        f"**The paper's claims.** {tested} claims. Verdicts of all 3 comparisons (cpu scale, "
        "unless a line says otherwise): 0 borne out, 1 not borne out, 1 undecided and 1 not "
        "comparable.\n"
    )
    assert text.splitlines()[:-1] == [
        "- **not borne out**: A beats B on MNIST [paper scale] (it diverged)",
        "- **undecided, ahead**: A beats B on MNIST: leads, but not significantly (p = 0.2)",
        "- **not comparable**: C on MNIST",
    ]
    single = _judged("undecided", "leads with one seed, which says little")
    counts = counts_text([Verdicts("cpu", Variant(), (plain, single))])
    assert counts.endswith("0 not borne out and 2 undecided (1 of them with one seed).\n")
    alone = counts_text([Verdicts("cpu", Variant(), (single,))])
    assert alone.endswith("0 not borne out and 1 undecided (with one seed).\n")
    table = claims_text(verdicts)
    assert table.index("leads, but not") < table.index("not comparable: solver.rtol")
    assert claims_text([]) == ""
    assert "(page.md#" in explanation_text(verdicts, "page.md")
    assert "Small models cannot refute" in explanation_text(verdicts)
    assert "Small models" not in explanation_text(verdicts[1:])


def test_claims_that_say_the_same_of_several_data_are_told_as_one():
    reason = "behind, but not significantly (p = 1)"
    behind = [_judged("undecided", reason, on=on) for on in ("MNIST", "CIFAR-10")]
    other = _judged("undecided", reason, "C wins")
    counted = Verdicts("cpu", Variant(("train.epochs=9",)), (other,))
    lines = findings_text([Verdicts("cpu", Variant(), (*behind, other)), counted]).splitlines()
    assert lines[:4] == [
        "- **undecided, not ahead**:",
        "  - A beats B on MNIST and CIFAR-10",
        "  - C wins on MNIST",
        "  - C wins on MNIST [train.epochs=9]",
    ]


def test_claims_about_several_passes_are_told_as_one():
    def judged(way, on):
        claim = Claim("A takes the fewest {way} evaluations", on, "1", "mnist", "node", way=way)
        reason = "behind, but not significantly (p = 1)"
        return Judgement(claim, "", "undecided", reason, False, None)

    said = [judged("forward", "MNIST"), judged("test", "MNIST"), judged("test", "CIFAR-10")]
    assert said[0].claim.text == "A takes the fewest forward evaluations on MNIST"
    lines = findings_text([Verdicts("cpu", Variant(), tuple(said))]).splitlines()
    assert lines[:3] == [
        "- **undecided, not ahead**:",
        "  - A takes the fewest forward and test evaluations on MNIST",
        "  - A takes the fewest test evaluations on CIFAR-10",
    ]
    said.append(judged("forward", "CIFAR-10"))
    both = (*said[:2], said[3], said[2])
    lines = findings_text([Verdicts("cpu", Variant(), both)]).splitlines()
    assert lines[0].endswith(
        "A takes the fewest forward and test evaluations on MNIST and CIFAR-10"
    )


def _table_one(folder, scores, data="cifar10", **values):
    """The section of Table 1 with a run of each method and its score."""
    places = []
    for method, score in scores.items():
        content = {**record(data, method, 7), "result": result(score), **values}
        places.append(write_files(folder / f"{data}-{method}", content))
    return next(sections_of([(place, read_run(place)) for place in places]))


def test_the_order_of_methods_is_compared_with_the_papers(tmp_path):
    # In the paper: node < hbnode < anode < sonode < bfno-node.
    same = {"node": 0.1, "hbnode": 0.2, "anode": 0.5, "sonode": 0.6, "bfno-node": 0.61}
    assert str(order_agreement(_table_one(tmp_path / "1", same))) == "1.00 (5 methods, p = 0.017)"
    reverse = {method: 1 - score for method, score in same.items()}
    opposite = _table_one(tmp_path / "2", reverse)
    assert str(order_agreement(opposite)) == "-1.00 (5 methods, p = 0.017)"
    # One neighbouring pair of five exchanged: 1 - 6 * 2 / (5 * 24).
    swapped = _table_one(tmp_path / "3", {**same, "node": 0.2, "hbnode": 0.1})
    assert str(order_agreement(swapped)) == "0.90 (5 methods, p = 0.083)"
    text = agreement_text([swapped, _table_one(tmp_path / "4", same)])
    # Of all 120 orders, the same one and its reverse; and with four exchanges of neighbours each.
    assert "\n| CIFAR-10 | 1.00 | 0.017 | 5 |\n| CIFAR-10 | 0.90 | 0.083 | 5 |\n" in text
    full = _table_one(tmp_path / "6", same, scale="paper")
    assert "| CIFAR-10 (paper scale) | 1.00 |" in agreement_text([swapped, swapped, full])
    changed = _table_one(tmp_path / "5", same, changes=["train.epochs=2"])
    assert "| CIFAR-10 (train.epochs=2) | 1.00 |" in agreement_text([changed])


def test_a_method_that_diverged_or_failed_is_the_last_in_its_order(tmp_path):
    same = {"node": 0.1, "hbnode": 0.2, "anode": 0.5, "sonode": 0.6, "bfno-node": 0.61}
    worst = _table_one(tmp_path / "1", {**same, "bfno-node": 0.0})
    diverged = _table_one(tmp_path / "2", {**same, "bfno-node": math.nan})
    failed = _table_one(tmp_path / "3", {**same, "bfno-node": 0.61})
    place = write_failed(tmp_path / "4", seed=8, data="cifar10")
    failed = dataclasses.replace(failed, runs=(*failed.runs, (place, RunFolder(place).ended())))
    expected = order_agreement(worst)
    assert str(expected).startswith("0.00 (5 methods, ")
    assert order_agreement(diverged) == order_agreement(failed) == expected


def test_densities_are_not_called_what_their_images_are(tmp_path):
    methods = {"realnvp": 4.0, "i-resnet": 3.0, "glow": 2.0, "ffjord": 1.0, "ffjord-rnode": 0.5}
    runs = []
    for method, bits in methods.items():
        score = {"test_bits_per_dim": bits}
        content = {**record("mnist-density", method, 7), "scale": "paper", "result": score}
        lines = epoch_lines(score, 1)
        runs.append((tmp_path / method, read_run(write_files(tmp_path / method, content, lines))))
    found = Evidence(runs)
    assert "| densities of MNIST | 0." in agreement_text(found.sections)
    assert "on densities of MNIST." in trained_text(found.full_size)


def test_no_order_is_compared_of_few_methods_equal_scores_or_what_the_paper_lacks(tmp_path):
    few = {"node": 0.1, "hbnode": 0.2, "anode": 0.5, "sonode": 0.6}
    equal = dict.fromkeys([*few, "bfno-node"], 0.1)
    sections = [
        _table_one(tmp_path / "1", few),
        _table_one(tmp_path / "2", equal),
        _table_one(tmp_path / "4", {**few, "bfno-node": 0.7}, data="fashion-mnist"),
    ]
    assert [order_agreement(section) for section in sections] == [None] * 3
    assert agreement_text(sections) == ""


def test_the_authors_weights_are_shown_beside_the_papers_number(tmp_path):
    assert released_text(read_released(tmp_path)) == ""
    (tmp_path / "released").mkdir()
    classes = DATA_SETS["cifar10"].class_names
    said = {"accuracy": 0.575, "nfe": 20.0, "samples": 1000, "classes": classes}
    (tmp_path / "released" / "01.json").write_text(json.dumps(said))
    text = released_text(read_released(tmp_path))
    assert (
        "57.50 % of 1,000 test images of CIFAR-10 correctly after epoch 1 (20 evaluations of"
        in text
    )
    assert "The paper prints 62.89 ± 0.54 %." in text
    (tmp_path / "released" / "10.json").write_text(json.dumps(said))
    (tmp_path / "released" / "2.json").write_text(json.dumps(said))
    assert [one.epoch for one in read_released(tmp_path)] == [1, 2, 10]
    wrong = [{"accuracy": None}, {"accuracy": 57.5}, {"accuracy": math.nan}, {"samples": -3}]
    wrong += [{"samples": math.inf}, {"classes": ["0", "1"]}, {"accuracy": True}]
    for name, content in [
        ("last", said),
        ("1_1", said),
        ("3", []),
        *(("4", {**said, **one}) for one in wrong),
    ]:
        file = tmp_path / "released" / f"{name}.json"
        file.write_text(json.dumps(content))
        with pytest.raises(DataError, match=r"json: is not what `bfno eval --json` writes"):
            read_released(tmp_path)
        file.unlink()
    (tmp_path / "released" / "1.json").write_text(json.dumps(said))
    with pytest.raises(DataError, match=r"1.json: is a second file of epoch 1"):
        read_released(tmp_path)


def test_models_of_the_papers_size_are_told_beside_its_numbers(tmp_path):
    def told(changes, epochs):
        places = []
        for method, seeds in (("node", (7, 8)), ("bfno-node", (7,)), ("fno-node", (7,))):
            for seed in seeds:
                score = result(0.9 + seed / 1000)
                content = {**record("mnist", method, seed), "scale": "paper", "result": score}
                place = tmp_path / f"{len(changes)}-{epochs}-{method}-{seed}"
                lines = epoch_lines(score, epochs)
                places.append(write_files(place, {**content, "changes": changes}, lines))
        return trained_text(full_size_of([read_run(place) for place in places]))

    head = "| method | epochs | here | in the paper |\n| --- | ---: | ---: | ---: |\n"
    rows = (
        "| NODE | {0} | 0.9075 ± 0.0007 | 0.9531 ± 0.0042 |\n"
        "| BFNO-NODE | {0} | 0.9070 (1 of 2 seeds) | 0.9752 ± 0.0021 |\n"
    )
    size = "has 20,123 parameters here and"
    where = "**Trained here at full size**, with the paper's settings"
    of = (
        f"(2 seeds): test accuracy on MNIST. NODE {size} 85,316 in the paper. BFNO-NODE {size} "
        f"85,591 in the paper.\n\n{head}"
    )
    assert told([], 11) == f"{where} {of}{rows.format('11 of 10')}"
    short = told(["train.epochs=1"], 1)
    assert short == f"{where} {of}{rows.format('1 of 10')}"
    other = told(["solver.first_step=0.5", "train.epochs=1"], 1)
    assert other == f"{where} except for solver.first_step=0.5 {of}{rows.format('1 of 10')}"
    found = [json.loads(line)["test_accuracy"] for line in epoch_lines(result(0.907), 2)]
    longer = told(["train.epochs=2"], 2)
    assert "| method | epochs | after each epoch | here | in the paper |\n" in longer
    line = f"| BFNO-NODE | 2 of 10 | {found[0]:.4f}, {found[1]:.4f} | 0.9070 (1 of 2 seeds) |"
    assert line in longer
    assert trained_text([]) == ""


def test_at_the_papers_size_the_longest_training_of_each_method_is_reported(tmp_path):
    runs = []
    for method, epochs in (("node", 1), ("bfno-node", 1), ("bfno-node", 3)):
        score = result(0.9 + epochs / 100)
        changes = [f"train.epochs={epochs}"]
        content = {**record("mnist", method, 7), "scale": "paper", "result": score}
        place = tmp_path / f"{method}-{epochs}"
        write_files(place, {**content, "changes": changes}, epoch_lines(score, epochs))
        runs.append(read_run(place))
    everything = [(tmp_path / run.name, run) for run in runs]
    # The short run is in a table beside the other method, the long one only at the top of the page.
    assert left_out_text(tmp_path, Evidence(everything)) == ""
    assert "1 run in `.`" in left_out_text(tmp_path, Evidence(everything[2:]))
    for order in (runs, runs[::-1]):
        text = trained_text(full_size_of(order))
        assert text.count("| BFNO-NODE |") == text.count("| NODE |") == 1
        assert "| NODE | 1 of 10 |  | 0.9100 |" in text
        assert re.search(r"\| BFNO-NODE \| 3 of 10 \| 0\.\d{4}, 0\.\d{4}, 0\.9300 \| 0.9300", text)


def test_a_setting_that_a_method_has_anyway_keeps_it_among_those_of_the_papers_size(tmp_path):
    runs = []
    # By definition FFJORD-BFNO-RNODE has this tolerance, so its record names no change.
    tolerances = ["solver.atol=0.001", "solver.rtol=0.001"]
    for method, changes in (("realnvp", tolerances), ("ffjord-bfno-rnode", [])):
        score = {"test_bits_per_dim": 1.0}
        content = {**record("mnist-density", method, 7), "scale": "paper", "result": score}
        content["config"]["solver"] = {"rtol": 0.001, "atol": 0.001}
        place = tmp_path / method
        write_files(place, {**content, "changes": changes}, epoch_lines(score, 1))
        runs.append(read_run(place))
    text = trained_text(full_size_of(runs))
    assert "except for solver.atol=0.001, solver.rtol=0.001" in text
    assert "| RealNVP |" in text and "| FFJORD-BFNO-RNODE |" in text


def test_failed_trainings_of_the_papers_size_are_told(tmp_path):
    runs = []
    for method, epochs in (("node", 12), ("bfno-node", 1)):
        content = {**record("mnist", method, 7), "scale": "paper", "result": result(0.9)}
        content["changes"] = [f"train.epochs={epochs}"]
        write_files(tmp_path / method, content, epoch_lines(result(0.9), epochs))
        runs.append(read_run(tmp_path / method))
    failed = RunFolder(write_failed(tmp_path / "failed")).ended()
    failed = dataclasses.replace(failed, scale="paper", changes=["train.epochs=3"])
    text = trained_text(full_size_of([*runs, failed]))
    assert "| NODE | 12 of 10 |" in text
    assert "| BFNO-NODE | 1 of 10, 1 run failed |" in text


def test_models_of_the_papers_size_on_other_data_than_the_papers_are_told_too(tmp_path):
    places = []
    for method in ("node", "bfno-node"):
        content = {**record("fashion-mnist", method, 7), "scale": "paper", "result": result(0.8)}
        places.append(write_files(tmp_path / method, content, epoch_lines(result(0.8), 1)))
    text = trained_text(full_size_of([read_run(place) for place in places]))
    assert text.endswith(
        "on Fashion-MNIST.\n\n| method | epochs | here |\n| --- | ---: | ---: |\n"
        "| NODE | 1 of 10 | 0.8000 |\n| BFNO-NODE | 1 of 10 | 0.8000 |\n"
    )


def test_models_without_the_score_of_their_table_are_not_told(tmp_path):
    places = []
    for method in ("node", "bfno-node"):
        content = {**record("mnist", method, 7), "scale": "paper", "result": {"test_loss": 0.5}}
        places.append(write_files(tmp_path / method, content))
    assert trained_text(full_size_of([read_run(place) for place in places])) == ""


def test_the_same_runs_give_the_same_page_which_may_be_replaced(folder, written):
    first = {file: file.read_bytes() for file in written}
    assert {file: file.read_bytes() for file in write_page(folder, written[0])} == first


def test_a_page_of_somebody_elses_is_not_replaced(folder, tmp_path):
    page = tmp_path / "NOTES.md"
    page.write_text("# My notes\n")
    with pytest.raises(ConfigError, match="not written by this command"):
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


def test_runs_on_a_slice_of_some_data_are_not_pooled_with_runs_on_all_of_them(tmp_path):
    runs = []
    for seed, samples in ((7, 100), (8, 100), (9, 1000)):
        content = {**record("mnist", "node", seed), "result": result(0.9)}
        content["samples"] = {"train": 500, "test": samples}
        place = write_files(tmp_path / f"{seed}", content)
        runs.append(read_run(place))
    found = select_runs(runs)
    assert [run.seed for run in found.counted] == [7, 8]
    assert [run.seed for run in found.outliers] == [9]


@pytest.mark.parametrize(("seeds", "wanted"), [((7, 8), 2), ((1, 2, 3), 3), ((-5,), 1)])
def test_the_command_of_a_table_asks_for_seeds_that_there_can_be(tmp_path, seeds, wanted):
    places = []
    for method in ("node", "bfno-node"):
        for seed in seeds:
            content = {**record("mnist", method, seed), "result": result(0.9)}
            places.append(write_files(tmp_path / f"{method}{seed}", content))
    section, *_ = sections_of([(place, read_run(place)) for place in places])
    assert section.command.endswith(f"--seeds {wanted}")


def test_figures_of_a_record_with_an_invented_scale_stay_in_their_folder(tmp_path):
    scores = {"node": 0.1, "bfno-node": 0.2}
    section = _table_one(tmp_path, scores, scale="../../elsewhere/x")
    assert "/" not in section.figure("accuracy-cifar10")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes")
def test_a_pipe_among_the_scores_of_released_weights_is_not_waited_for(tmp_path):
    (tmp_path / "released").mkdir()
    os.mkfifo(tmp_path / "released" / "3.json")
    with pytest.raises(DataError, match=r"3\.json"):
        read_released(tmp_path)


def test_a_page_that_is_a_link_stays_one(folder, tmp_path):
    page = tmp_path / "docs.md"
    (tmp_path / "link.md").symlink_to(page)
    written = write_page(folder, tmp_path / "link.md")
    assert (tmp_path / "link.md").is_symlink() and page.read_text().startswith("<!-- Made by")
    assert written[0] == tmp_path / "link.md"


def test_a_page_and_its_figures_stay_if_one_of_them_cannot_be_drawn(tmp_path, monkeypatch):
    for method in ("node", "bfno-node", "hbnode"):
        write_run(tmp_path / "runs" / "cpu", "mnist", method)
        write_run(tmp_path / "runs" / "cpu", "cifar10", method)
    files = write_page(tmp_path / "runs", tmp_path / "RESULTS.md")
    before = {file: file.read_bytes() for file in files}
    draw = page_module.draw_figures

    def fail_for_cifar(runs, folders):
        if runs[0].data == "cifar10":
            raise DataError("exhibit.json", "is damaged", "make it anew")
        figures = draw(runs, folders)
        return {
            name: dataclasses.replace(one, png=b"another picture") for name, one in figures.items()
        }

    monkeypatch.setattr(page_module, "draw_figures", fail_for_cifar)
    with pytest.raises(DataError, match="is damaged"):
        write_page(tmp_path / "runs", tmp_path / "RESULTS.md")
    assert {file: file.read_bytes() for file in files} == before


def test_runs_of_a_variant_have_a_section_of_their_own(folder, tmp_path):
    places = sorted(folder.glob("cpu/*node-*"))
    for method, accuracy in (("node", 0.6), ("bfno-node", 0.5)):
        content = {**record("mnist", method, 7), "result": result(accuracy)}
        content["changes"] = ['solver.gradient="adjoint"']
        places.append(write_files(tmp_path / method, content))
    runs = [(place, read_run(place)) for place in places]
    plain, other = (one for one in sections_of(runs) if one.table == "1")
    assert plain.title == "Table 1: Image classification, MNIST (cpu scale)"
    assert other.title.endswith("MNIST (cpu scale, solver.gradient=adjoint)")
    words = "bfno table 1 --data mnist --scale cpu --set solver.gradient=adjoint --seeds 1"
    assert other.command == words
    assert other.figure("nfe-mnist") == "cpu-gradient-adjoint-1-mnist-nfe.png"
    assert {run.result["test_accuracy"] for _, run in other.runs} == {0.5, 0.6}
    text = section_text(other)
    assert "Every run here has solver.gradient=adjoint." in text and "| NODE | 20,123" in text
    header = next(line for line in text.splitlines() if line.startswith("| method"))
    assert "| test accuracy here | test accuracy in the paper |" in header  # the heading says more
    assert "cpu scale, solver.gradient=adjoint:\n\n| the paper says" in claims_text(
        verdicts_of([run for _, run in runs])
    )


COUNTED = sorted(PROTOCOLS["counted"].changes)


def _counted(folder, method, evaluations, seed=7):
    content = {**record("mnist", method, seed), "changes": COUNTED}
    content["result"] = {**result(0.5), "forward_nfe": evaluations, "backward_nfe": 30.0}
    content["config"]["solver"] = {"gradient": "adjoint"}
    return write_files(folder / f"{method}-{seed}", content)


def test_a_protocol_that_counts_evaluations_shows_and_ranks_them(tmp_path):
    places = [_counted(tmp_path, "node", 20.0), _counted(tmp_path, "bfno-node", 26.0)]
    section, *_ = sections_of([(place, read_run(place)) for place in places])
    assert section.title == "Table 1: Image classification, MNIST (cpu scale, protocol counted)"
    text = section_text(section)
    header = next(line for line in text.splitlines() if line.startswith("| method"))
    assert "NFE forward" in header and "NFE backward" in header and "accuracy" not in header
    assert "Protocol counted: evaluations as the paper counts them" in text
    row = overview([section]).splitlines()[2]
    assert "NFE forward: NODE 20.0; BFNO-NODE 26.0, place 2 of 2" in row and row.endswith("| – |")
    written = write_page(tmp_path, tmp_path / "page.md")
    drawn = [file.name for file in written if "counted" in file.name]
    assert drawn and all("-mnist-nfe-" in name for name in drawn)


def test_experiments_that_have_a_setting_anyway_are_no_variant_of_themselves(tmp_path):
    places = []
    for scale, changes in (("cpu", []), ("paper", ["train.epochs=6"])):
        for method in ("node", "bfno-node"):
            content = {**record("mnist", method, 7), "scale": scale, "changes": changes}
            content["config"]["train"] = {"epochs": 6}
            places.append(write_files(tmp_path / f"{scale}-{method}", content))
    other = {**record("mnist", "cnn", 7), "changes": ["train.epochs=6"]}  # is in no table
    places.append(write_files(tmp_path / "cpu-cnn", other))
    found = [(place, read_run(place)) for place in places]
    titles = [section.title for section in sections_of(found) if section.table == "1"]
    assert [title.partition("(")[2] for title in titles] == [
        "cpu scale)",
        "paper scale, train.epochs=6)",
    ]
    assert [of.title for of in verdicts_of([run for _, run in found])] == [
        "cpu scale",
        "paper scale, train.epochs=6",
    ]


def test_evaluations_that_cannot_be_compared_are_told_unless_others_can(tmp_path):
    adjoint = (("gradient", "adjoint"),)
    claim = Claim("", "MNIST", "1", "mnist", "bfno-node", ("node",), "backward_nfe", solver=adjoint)
    plain = [
        write_files(tmp_path / f"plain-{name}", record("mnist", name, 7))
        for name in ("node", "bfno-node")
    ]
    others = [_counted(tmp_path, name, 20.0) for name in ("node", "bfno-node")]
    usual, both = ([read_run(place) for place in some] for some in (plain, [*plain, *others]))
    outcomes = [
        [(of.title, one.outcome) for of in verdicts_of(runs, [claim]) for one in of.judgements]
        for runs in (usual, both)
    ]
    assert outcomes == [
        [("cpu scale", "not comparable")],
        [("cpu scale, protocol counted", "undecided")],
    ]


def test_what_a_variant_changes_may_be_a_methods_own_setting(folder, tmp_path):
    places = []
    for method, changes in (("node", []), ("bfno-node", ['solver.gradient="adjoint"'])):
        content = {**record("mnist", method, 7), "result": result(0.5), "changes": changes}
        content["config"]["solver"] = {"gradient": "adjoint"}
        places.append(write_files(tmp_path / method, content))
    runs = [read_run(place) for place in places]
    adjoint = Variant.of(['solver.gradient="adjoint"'])
    assert {run.method for run in select_runs(runs, adjoint).counted} == {"node", "bfno-node"}
    assert {run.method for run in select_runs(runs).counted} == {"node"}
    tighter = Variant.of([*adjoint.changes, "solver.rtol=1e-05"])
    assert not select_runs(runs, tighter).counted


BEGIN = "<!-- overview of results: made by `bfno results` -->\n"
END = "<!-- end of the overview -->\n"


def test_a_document_keeps_its_line_ends_its_rights_and_its_links(tmp_path):
    real = tmp_path / "real.md"
    real.write_bytes(f"a\r\nb\nc\r{BEGIN.strip()}\r\nold\r\n{END.strip()}".encode())
    document = tmp_path / "link.md"
    document.symlink_to("real.md")
    with pytest.raises(ConfigError, match="does not mark a place"):  # not on a line of its own
        put_overview(document, "| new |\n")
    real.write_bytes(f"a\r\nb\nc\r\n{BEGIN.strip()}\r\nold\r\n{END.strip()}".encode())
    real.chmod(0o600)
    put_overview(document, "| new |\n")
    kept = f"a\r\nb\nc\r\n{BEGIN.strip()}\r\n| new |\r\n{END.strip()}"
    assert real.read_bytes() == kept.encode() and document.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o600
    real.write_text(f"{BEGIN}{END}{END}")
    with pytest.raises(ConfigError, match="each once"):
        put_overview(document, "| new |\n")


def test_the_overview_in_a_document_is_replaced_and_nothing_else(folder, tmp_path):
    document = tmp_path / "docs" / "README.md"
    document.parent.mkdir()
    document.write_text(f"# Mine ü\n\n{BEGIN}| old |\n{END}\nend\n")
    page = tmp_path / "RESULTS.md"
    assert write_page(folder, page, document)[-1] == document
    places = [(place, read_run(place)) for place in sorted(folder.glob("cpu/*"))]
    table = overview(list(sections_of(places)), "../RESULTS.md")
    assert "(../RESULTS.md#table-1-image-classification-mnist-cpu-scale)" in table
    before, rest = document.read_text().split(BEGIN)
    top, after = rest.split(table)
    assert (before, after) == ("# Mine ü\n\n", f"{END}\nend\n")
    picture = Path(os.path.relpath(folder / "figures" / "claims.png", document.parent))
    text = summary_text(Evidence(places), picture.as_posix(), "../RESULTS.md")
    assert top == f"{text}\n"


def test_a_document_keeps_the_ends_of_its_lines(folder, tmp_path):
    document = tmp_path / "README.md"
    document.write_bytes(f"# Mine\n\n{BEGIN}{END}\nend\n".replace("\n", "\r\n").encode())
    write_page(folder, tmp_path / "RESULTS.md", document)
    content = document.read_bytes()
    assert content.count(b"\n") == content.count(b"\r\n") > 5
    assert content.startswith(b"# Mine\r\n") and content.endswith(b"\r\nend\r\n")


@pytest.mark.parametrize(
    "text", ["no place\n", BEGIN, END, f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}", f"{BEGIN}{END}" * 2]
)
def test_a_document_without_one_place_for_the_overview_is_refused_before_drawing(
    text, folder, tmp_path
):
    document = tmp_path / "README.md"
    document.write_text(text)
    with pytest.raises(ConfigError, match="does not mark a place for the overview"):
        write_page(folder, tmp_path / "RESULTS.md", document)
    assert document.read_text() == text and not (tmp_path / "RESULTS.md").exists()


def test_a_document_that_is_not_there_is_named(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.md: cannot be read as text"):
        write_page(folder, tmp_path / "RESULTS.md", tmp_path / "nowhere.md")


def _runs(root, data, scores, key="test_accuracy"):
    folders = [
        write_files(
            root / f"{method}-{seed}",
            {**record(data, method, seed), "result": {**result(), key: value}},
        )
        for method, values in scores.items()
        for seed, value in enumerate(values)
    ]
    return read_runs(folders)


def test_the_paper_puts_its_method_first_on_cifar_and_eighth_on_mnist():
    table = paper_table("1")
    assert str(standing_in_paper(table, "cifar10")) == "BFNO-NODE 0.6289 ± 0.0054, first of 9"
    assert str(standing_in_paper(table, "mnist")) == (
        "AdamNODE 0.9834 ± 0.0004; BFNO-NODE 0.9752 ± 0.0021, place 8 of 9"
    )


def test_where_the_paper_prints_no_scores_there_is_no_standing():
    assert standing_in_paper(paper_table("ablation-branches"), "mnist") is None


def test_means_over_the_seeds_decide(tmp_path):
    scores = {"bfno-node": [0.9, 0.94], "node": [0.95, 0.85], "anode": [0.93, 0.93]}
    found = standing_here(paper_table("1"), "mnist", _runs(tmp_path, "mnist", scores))
    assert found is not None
    assert (found.leader, found.place, found.methods) == ("ANODE", 2, 3)
    assert str(found.score) == "0.9200 ± 0.0283"


def test_where_less_is_better_the_lowest_leads(tmp_path):
    scores = {"glow": [2.0], "ffjord-bfno-rnode": [1.9]}
    runs = _runs(tmp_path, "mnist-density", scores, "test_bits_per_dim")
    found = standing_here(paper_table("4"), "mnist-density", runs)
    assert str(found) == "FFJORD-BFNO-RNODE 1.900, first of 2 (4 without a score)"


def test_equals_share_a_place(tmp_path):
    runs = _runs(tmp_path, "mnist", {"node": [0.9], "bfno-node": [0.9]})
    found = str(standing_here(paper_table("1"), "mnist", runs))
    assert found == "BFNO-NODE 0.9000, first of 2, tied with 1 other (7 without a score)"


def test_those_who_lead_together_are_counted(tmp_path):
    runs = _runs(tmp_path, "mnist", {"node": [0.9], "anode": [0.9], "bfno-node": [0.8]})
    found = str(standing_here(paper_table("1"), "mnist", runs))
    assert found.startswith("NODE 0.9000, tied with 1 other; BFNO-NODE 0.8000, place 3 of 3")


def test_methods_that_diverged_have_no_place_and_are_named(tmp_path):
    runs = _runs(tmp_path, "mnist", {"node": [0.9, math.nan], "bfno-node": [0.8, 0.8]})
    found = str(standing_here(paper_table("1"), "mnist", runs))
    assert found.endswith("first of 2 (7 without a score, NODE diverged)")
    ours = _runs(tmp_path / "ours", "mnist", {"node": [0.9, 0.8], "bfno-node": [math.nan, 0.8]})
    found = str(standing_here(paper_table("1"), "mnist", ours))
    assert found == "NODE 0.8500 ± 0.0707, first of 2 (7 without a score, BFNO-NODE diverged)"


def test_a_page_tells_of_trainings_that_failed(tmp_path):
    """Of NODE all failed; the seed that FNO lost has been trained again in another folder."""
    for method, accuracy in (("bfno-node", 0.9), ("fno-node", 0.8), ("afno-node", 0.7)):
        for seed in (7, 8):
            found = result(accuracy + seed / 1000)
            write_run(tmp_path / "runs" / "cpu", "mnist", method, seed, result=found)
    for seed in (7, 8):
        write_failed(tmp_path / "runs" / "cpu", "node", seed)
    write_failed(tmp_path / "runs" / "again", "fno-node", 7)
    write_failed(tmp_path / "runs" / "again", "bfno-node-branches1", 7)
    page = write_page(tmp_path / "runs", tmp_path / "RESULTS.md")[0].read_text()
    assert "10 runs (4 of them failed)" in page
    assert re.search(r"\n\| NODE \|.*\| failed \|", page)
    for seed in (7, 8):
        assert f"mnist/node with seed {seed} failed: {FAILURE}" in page
    assert "fno-node with seed 7 failed" not in page
    verdict = (
        "BFNO-NODE 0.9075 ± 0.0007, NODE diverged or failed with 2 of 2 seeds | borne out: every"
    )
    assert verdict in page


def test_a_method_that_failed_has_no_place_and_is_named(tmp_path):
    runs = _runs(tmp_path, "mnist", {"anode": [0.9], "bfno-node": [0.8]})
    runs.append(RunFolder(write_failed(tmp_path, "node", 0)).ended())
    found = str(standing_here(paper_table("1"), "mnist", runs))
    lost = "(6 without a score, NODE failed with 1 of 1 seed)"
    assert found.endswith(f"BFNO-NODE 0.8000, place 2 of 3 {lost}")


def test_the_papers_method_is_named_even_if_it_failed(tmp_path):
    runs = _runs(tmp_path, "mnist", {"node": [0.7], "anode": [0.9], "bfno-node": [0.99]})
    runs.append(RunFolder(write_failed(tmp_path, "bfno-node", 1)).ended())
    found = str(standing_here(paper_table("1"), "mnist", runs))
    lost = "(6 without a score, BFNO-NODE failed with 1 of 2 seeds)"
    assert found == f"ANODE 0.9000 (1 of 2 seeds), first of 3 {lost}"


def test_failed_runs_do_not_outvote_finished_ones_of_other_settings(tmp_path):
    finished = read_run(write_run(tmp_path, "mnist", "node", 7))
    for seed in (7, 8):
        folder = write_failed(tmp_path / "others", "node", seed)
        other = RunFolder(folder).record()
        changed = {**other.config, "model": {**other.config["model"], "width": 64}}
        RunFolder(folder).write_record(dataclasses.replace(other, config=changed))
    failed = [RunFolder(folder).ended() for folder in sorted((tmp_path / "others").iterdir())]
    assert select_runs([finished, *failed]).counted == [finished]


def test_if_all_diverged_no_method_has_a_place(tmp_path):
    scores = {"node": [math.nan], "bfno-node": [math.inf]}
    assert standing_here(paper_table("1"), "mnist", _runs(tmp_path, "mnist", scores)) is None


def test_an_infinite_score_does_not_lead(tmp_path):
    runs = _runs(tmp_path, "mnist", {"node": [math.inf, 0.9], "bfno-node": [0.8, 0.8]})
    found = str(standing_here(paper_table("1"), "mnist", runs))
    assert found.startswith("BFNO-NODE 0.8000 ± 0.0000, first of 2")


def test_seeds_without_a_score_are_not_counted(tmp_path):
    runs = _runs(tmp_path, "mnist", {"node": [0.9, 0.9], "bfno-node": [0.8, 0.9]})
    del runs[-1].result["test_accuracy"]
    found = str(standing_here(paper_table("1"), "mnist", runs))
    assert found.endswith("BFNO-NODE 0.8000 (1 of 2 seeds), place 2 of 2 (7 without a score)")


def test_copies_and_links_are_no_further_runs(folder, tmp_path):
    runs = tmp_path / "runs"
    shutil.copytree(folder / "cpu", runs / "cpu")
    shutil.copytree(folder / "cpu", runs / "backup")
    keep_runs(runs, runs / "kept")
    (runs / "latest").symlink_to("cpu")
    write_page(runs, tmp_path / "RESULTS.md")
    text = (tmp_path / "RESULTS.md").read_text()
    assert " 6 runs and " in text and "No table shows" not in text


def test_a_training_that_went_on_counts_its_hours_once(tmp_path):
    lines = epoch_lines(result())

    def hours(**trainings):
        for name, (seed, epochs) in trainings.items():
            content = {**record("mnist", "node", seed), "seconds": 3600.0 * len(epochs)}
            write_files(tmp_path / name / "mnist-node", content, epochs)
        runs = Evidence.of(tmp_path).runs
        return float(re.findall(r"([\d.]+) hours", introduction(tmp_path, Path("page"), runs))[0])

    assert hours(whole=(7, lines)) == 3
    assert hours(begun=(7, lines[:1]), on=(7, lines[:2])) == 3
    assert hours(other_seed=(8, lines[:2])) == 5
    assert hours(again=(7, [lines[0].replace("0.5", "0.6")])) == 6  # the seconds of another one


def test_the_command_of_a_table_trains_its_seeds(tmp_path):
    places = [write_files(tmp_path / m, record("mnist", m, 10)) for m in ("node", "bfno-node")]
    section, *_ = sections_of([(place, read_run(place)) for place in places])
    assert section.command.endswith("--seeds 1")  # the three before it are not needed
    places.append(write_files(tmp_path / "eight", record("mnist", "node", 8)))
    section, *_ = sections_of([(place, read_run(place)) for place in places])
    assert section.command.endswith("--seeds 4")  # 7, 8, 9, 10


def test_names_of_folders_are_quoted_in_links_and_commands(folder, tmp_path):
    runs = tmp_path / "my (res) [x]|y"
    shutil.copytree(folder, runs)
    page = tmp_path / "a page.md"
    written = write_page(runs, page)
    text = page.read_text()
    assert "(my%20%28res%29%20%5Bx%5D%7Cy/figures/claims.png)" in text
    assert "--runs 'my (res) [x]|y'" in text.replace(f"{tmp_path}/", "")
    assert figures_of(page, runs) == {Path(os.path.abspath(file)) for file in written[1:]}


def test_variants_that_differ_in_the_section_alone_have_figures_of_their_own(tmp_path):
    found = [
        Variant.of([f"{section}.rtol=0.05"]).folder("cpu") for section in ("solver", "evaluation")
    ]
    assert found == ["cpu-rtol-0.05", "cpu-evaluation-rtol-0.05"]


def test_one_method_alone_has_no_standing(tmp_path):
    runs = _runs(tmp_path, "mnist", {"bfno-node": [0.9]})
    assert standing_here(paper_table("1"), "mnist", runs) is None


def test_fewer_seeds_than_others_have_are_told(tmp_path):
    runs = _runs(tmp_path, "mnist", {"node": [0.9], "bfno-node": [0.8, 0.8]}, "test_accuracy")
    found = str(standing_here(paper_table("1"), "mnist", runs))
    assert found.startswith("NODE 0.9000 (1 of 2 seeds); BFNO-NODE 0.8000 ± 0.0000, place 2 of 2")


def test_runs_that_are_in_no_table_are_named(folder, tmp_path):
    runs, page = tmp_path / "runs", tmp_path / "RESULTS.md"
    shutil.copytree(folder, runs)
    write_page(runs, page)
    assert "No table shows" not in page.read_text()
    content = {**record("mnist", "node", 8), "result": result(0.5), "changes": ["train.lr=0.5"]}
    write_files(runs / "cpu" / "mnist-node-fast", content)
    write_page(runs, page)
    assert "No table shows 1 run in `cpu`: their settings belong to no table" in page.read_text()
