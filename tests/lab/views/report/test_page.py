import base64
import hashlib
import json
import math
import os
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bfno.lab.errors import ConfigError, DataError
from bfno.lab.runs.folder import RunFolder, read_runs
from bfno.lab.views.figures.gallery import draw_figures
from bfno.lab.views.figures.style import PALETTE
from bfno.lab.views.report.page import write_report
from bfno.lab.views.report.run import EXAMINED
from tests.lab.views.exhibits import exhibit, write_exhibit
from tests.lab.views.runs import epoch_lines, record, result, write_files, write_run

TAGS = ["script", "img", "svg", "iframe", "body", "math", "object", "a", "style", "input"]
SHAPES = [
    "<{tag}>alert(1)</{tag}>",
    "<{tag} src=x onerror=alert(1)>",
    "\"><{tag} onload='alert(1)'>",
    "'/><{tag}/onmouseover=alert(1)//",
    '" onfocus="alert(1)" autofocus x="<{tag}',
    "</title></style></textarea></svg><{tag} href=javascript:alert(1)>",
    "--><!--<{tag} onclick=alert(1)>-->",
    "]]><{tag} xlink:href='javascript:alert(1)'>",
    "{{{{ '<{tag}>' | safe }}}}{{% raw %}}<{tag} onerror=x>",
    "&lt;{tag}&gt;&#60;{tag} onerror=alert(1)&#62;$\\frac<{tag}>${tag}\u2028<{tag}\x00 onload=x>",
]
HOSTILE = [shape.format(tag=tag) for shape in SHAPES for tag in TAGS]


class _Nodes(HTMLParser):
    """Everything in a page that could run, load or lead somewhere."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.dangerous: list[str] = []
        self.tags: Counter[str] = Counter()
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            leads = name in {"href", "src", "xlink:href", "action", "data", "srcdoc", "formaction"}
            inside = (value or "").startswith(("#", "data:image/png;base64,"))
            if name.startswith("on") or (leads and not inside):
                self.dangerous.append(f"{tag} {name}={value}")

    def handle_data(self, data: str) -> None:
        self.text += data


# What the template and matplotlib write; a name from a run can add nothing to it.
OURS = {"html", "head", "meta", "title", "style", "body", "main", "header", "footer", "section"}
OURS |= {"nav"}
OURS |= {"h1", "h2", "h3", "h4", "p", "div", "span", "i", "a", "code", "details", "summary"}
OURS |= {"table", "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd", "figure"}
OURS |= {"svg", "defs", "g", "path", "text", "use", "clippath", "rect", "image", "line"}
OURS |= {"noscript", "button", "select", "option", "label", "output", "ul", "li", "b"}
OURS |= {"circle", "polyline", "figcaption"}
LINES = epoch_lines({"test_accuracy": 0.9}, epochs=1)
SCRIPTS = 2  # the data and the one that runs


def _page(folders: list[Path], out: Path) -> str:
    return write_report(folders, out).read_text(encoding="utf-8")


def _assert_harmless(page: str) -> None:
    nodes = _Nodes(page)
    assert nodes.dangerous == []
    assert set(nodes.tags) <= OURS | {"script", "input", "img"}
    assert nodes.tags["script"] == SCRIPTS
    assert nodes.tags["img"] == page.count('src="data:image/png;base64,')
    sliders = page.count('<input type="range"')
    boxes = nodes.tags["select"] + 1  # one for each choice, one for light and dark
    assert nodes.tags["input"] == boxes + sliders
    assert page.count("<style>") == 1


def _hostile_record(text: str) -> dict:
    words = ("experiment", "data", "method", "scale", "chosen_by", "commit")
    return {
        **record(),
        **dict.fromkeys(words, text),
        "result": {**result(), text: 1.0},
        "config": {text: {text: text, "list": [text]}, "top": text, "a/b": f"/{text}"},
        "versions": {text: text},
        "classes": [text, text],
    }


def test_a_hundred_hostile_strings_in_every_field_stay_text(tmp_path):
    assert len(set(HOSTILE)) == 100
    folders = []
    for number, text in enumerate(HOSTILE):
        content = _hostile_record(text)
        if number % 10:  # each matrix takes a while; all strings are drawn in the next test
            del content["confusion"]
        folders.append(write_files(tmp_path / str(number), content, lines=[]))
    page = _page(folders, tmp_path / "report.html")
    _assert_harmless(page)
    assert "<script>alert(1)</script>" in _Nodes(page).text


def test_a_hundred_hostile_names_stay_text_in_figures(tmp_path):
    lines = epoch_lines(result())
    folders = []
    for number, text in enumerate(HOSTILE):
        content = {**record(), "method": text}
        del content["confusion"]
        folders.append(write_files(tmp_path / str(number), content, lines))
    for start in range(0, 100, 20):
        names = {"classes": HOSTILE[start : start + 20], "seed": start}
        counts = [[int(row == column) for column in range(20)] for row in range(20)]
        content = {**record(), **names, "confusion": counts}
        folders.append(write_files(tmp_path / f"classes-{start}", content, lines))
    _assert_harmless(_page(folders, tmp_path / "report.html"))


def test_hostile_classes_stay_text_wherever_an_exhibit_names_them(tmp_path):
    folder = write_run(tmp_path, method=HOSTILE[0], classes=[HOSTILE[1], HOSTILE[2]])
    write_exhibit(folder)
    page = _page([folder], tmp_path / "report.html")
    _assert_harmless(page)
    assert f"{HOSTILE[1]} taken for {HOSTILE[2]}, 90\xa0% sure" in _Nodes(page).text


def test_a_hostile_folder_name_stays_text(tmp_path):
    folder = write_files(tmp_path / "<img src=x onerror=alert(1)>", record())
    _assert_harmless(_page([folder], tmp_path / "report.html"))


def test_the_page_forbids_the_network_and_all_scripts_but_its_own(tmp_path):
    page = _page([write_run(tmp_path)], tmp_path / "report.html")
    script = page[page.index("<script>") + len("<script>") : page.rindex("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    assert f'<meta http-equiv="Content-Security-Policy" content="{policy}">' in page
    assert page.startswith("<!DOCTYPE html>")
    # The only addresses are the names of XML vocabularies.
    assert set(re.findall(r"https?://[^\"'\s<]+", page)) == {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_the_same_runs_give_the_same_bytes_in_any_order_and_place(tmp_path):
    here = [write_run(tmp_path / "here", method=method) for method in ("node", "bfno-node")]
    there = [write_run(tmp_path / "there", method=method) for method in ("bfno-node", "node")]
    pages = [_page(here, tmp_path / "1.html"), _page(there, tmp_path / "2.html")]
    assert pages[0] == pages[1]
    assert str(tmp_path) not in pages[0]


def test_paths_of_this_machine_are_not_passed_on(tmp_path):
    config = {"data": {"dir": "/home/alice/images", "other": "C:\\Users\\alice\\images"}}
    experiment = "/home/alice/experiment.yaml"
    folder = write_run(tmp_path, config=config, experiment=experiment)
    page = _page([folder], tmp_path / "report.html")
    assert "alice" not in page
    assert "bfno train experiment.yaml --scale cpu --seed 7" in page


def test_the_data_of_the_script_end_where_they_should(tmp_path):
    page = _page([write_run(tmp_path, method="</script><!--\u2028&")], tmp_path / "report.html")
    start = page.index('id="data">') + len('id="data">')
    data = page[start : page.index("</script>", start)]
    assert not set("<>&\u2028") & set(data)
    (task,) = json.loads(data)
    assert task["curves"][0]["points"]["test_accuracy"][-1] == [3, pytest.approx(0.97)]


def test_each_run_is_described_in_full(tmp_path):
    nodes = _Nodes(_page([write_run(tmp_path)], tmp_path / "report.html"))
    for text in (
        "bfno train digits/bfno-node --scale cpu --seed 7",
        "2 of 3, chosen by validation accuracy",
        "dopri5",
        "2.13.0",
        "predicted class",
        "0.889",  # precision of cats: 8 of 9
        "a7adaec3f0c5",
    ):
        assert text in nodes.text


def test_colours_are_assigned_for_each_task_separately(tmp_path):
    methods = [f"m{number}" for number in range(len(PALETTE))]
    folders = [
        write_files(tmp_path / data / name, {**record(data, name), "confusion": []}, lines=LINES)
        for data in ("one", "two")
        for name in (methods if data == "two" else [f"x{name}" for name in methods])
    ]
    page = _page(folders, tmp_path / "report.html")
    for section in page.split('<section id="task-')[1:]:
        legend = section[section.index('class="legend"') : section.index('class="charts"')]
        lines = re.findall(r'class="curve ink-(\d+)" stroke-dasharray="([^"]+)"', legend)
        assert len({hue for hue, _ in lines}) == len(methods)
        assert ("0", "none") in lines and len({dashes for _, dashes in lines}) > 1


def test_variants_of_one_method_are_told_apart_in_their_headings(tmp_path):
    folders = [
        write_files(tmp_path / str(width), {**record(), "config": {"model": {"width": width}}})
        for width in (32, 64)
    ]
    text = _Nodes(_page(folders, tmp_path / "report.html")).text
    for width in (32, 64):
        assert f"bfno-node (model.width={width}) on digits, seed 7" in text


def test_errors_are_of_the_images_that_were_looked_at(tmp_path):
    from bfno.lab.experiments.images.exhibit import _IMAGES

    assert EXAMINED == _IMAGES
    few, many = (
        write_run(tmp_path),
        write_run(tmp_path, method="node", confusion=[[900, 300], [1, 9]]),
    )
    for folder in (few, many):
        write_exhibit(folder)
    text = _Nodes(_page([few, many], tmp_path / "report.html")).text
    assert "The errors that it is surest of, among 20 test images." in text
    assert "The errors that it is surest of, among 1,000 test images." in text


def test_the_top_says_what_the_scale_and_the_abbreviations_mean(tmp_path):
    folders = [write_run(tmp_path), write_run(tmp_path, "letters")]
    text = _Nodes(_page(folders, tmp_path / "report.html")).text
    assert text.index("classify images") < text.index("Scale cpu: ") < text.index("Seconds are")
    for once in ("Scale cpu: ", "NFE, the number of function evaluations, "):
        assert text.count(once) == 1


def test_what_is_no_number_is_a_dash(tmp_path):
    folder = write_run(tmp_path)
    flow = exhibit()["flow"]
    flow["images"][0]["probabilities"] = [[math.nan, math.nan]] * len(flow["times"])
    write_exhibit(folder, flow=flow)
    page = _page([folder], tmp_path / "report.html")
    assert page.count('style="--share: 0"><span>') == 2 + 1  # and what is sure not to be it
    assert page.count("<b>–</b>") == 2


def test_the_slider_names_its_times_and_the_states_their_seed(tmp_path):
    folder = write_run(tmp_path)
    flow = {**exhibit()["flow"], "times": [0, 0.5, 1, 1.5, 2.5]}
    write_exhibit(folder, flow=flow)
    page = _page([folder], tmp_path / "report.html")
    assert 'aria-label="Time from h(0) to h(2.5)"' in page
    states = page[page.index('<div class="states') :]
    assert 'bfno-node<span class="soft">seed 7</span></h4>' in states


def test_runs_of_different_tasks_share_a_page(tmp_path):
    series = {"test_auroc": 0.75, "train_loss": 0.4, "forward_nfe": 12.0}
    density = {"test_bits_per_dim": 0.93, "train_loss": 0.9}
    folders = [
        write_run(tmp_path),
        write_run(tmp_path, "physionet", "gru-d", result=series, confusion=None, classes=None),
        write_run(tmp_path, "mnist-density", "ffjord", result=density, confusion=None),
        write_run(tmp_path, "other", "unknown", result={"speed": 1.0}),
    ]
    text = _Nodes(_page(folders, tmp_path / "report.html")).text
    assert "Results on digits, mnist-density, other and physionet" in text
    assert "On physionet (scale cpu), gru-d reaches a test AUROC of 0.7500." in text
    bits = "ffjord reaches a test bits/dim (uniform) of 0.930."
    assert f"On mnist-density (scale cpu), {bits}" in text
    assert "On other (scale cpu), no run recorded a known metric." in text


def test_a_page_that_is_there_is_kept_unless_forced(tmp_path):
    folder, out = write_run(tmp_path), tmp_path / "report.html"
    out.write_text("mine")
    with pytest.raises(ConfigError, match=r"exists already\. Fix: pass --force"):
        write_report([folder], out)
    assert out.read_text() == "mine"
    assert write_report([folder], out, force=True) == out
    assert out.read_text().startswith("<!DOCTYPE html>")


def test_a_failed_write_leaves_the_old_page_and_no_part(tmp_path, monkeypatch):
    folder, out = write_run(tmp_path / "runs"), tmp_path / "page" / "report.html"
    out.parent.mkdir()
    out.write_text("old")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="the disk is full"):
        write_report([folder], out, force=True)
    assert [(file.name, file.read_text()) for file in out.parent.iterdir()] == [
        ("report.html", "old")
    ]


def test_a_folder_is_no_file_to_write(tmp_path):
    with pytest.raises(ConfigError, match=r"is a folder\. Fix: name a file"):
        write_report([write_run(tmp_path)], tmp_path)


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_a_missing_package_is_named_with_the_command_that_brings_it(tmp_path, monkeypatch, package):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(ConfigError, match=f"{package}: is not installed. Fix: pip install 'bfno"):
        write_report([write_run(tmp_path)], tmp_path / "report.html")


PHOTOS = {"data": {"name": "folder", "folder": "/home/me/photos", "size": 32}}


def test_a_page_of_ones_own_photos_begins_with_what_counts_and_never_speaks_of_papers(tmp_path):
    folder = write_run(tmp_path, "folder", config=PHOTOS, result=result(0.85))
    page = _page([folder], tmp_path / "report.html")
    text = _Nodes(page).text
    assert "Results on photos" in text and "photos, scale cpu" in text
    first = re.search(r'<section class="summary".*?<p[^>]*>(.*?)</p>', page, re.DOTALL)
    assert first and first[1] == (
        "Right on 85 % of 20 test images (chance 50 %); weakest: cat (80 %)."
    )
    assert "publish" not in text.lower() and "paper" not in text.partition("</style>")[2]


def test_settings_numbers_and_versions_are_folded(tmp_path):
    page = _page([write_run(tmp_path)], tmp_path / "report.html")
    for title in ("All numbers", "Settings", "Versions and machine"):
        assert f"<details>\n<summary>{title}</summary>" in page


def test_one_run_is_unfolded_and_has_no_contents(tmp_path):
    page = _page([write_run(tmp_path)], tmp_path / "report.html")
    assert "<nav" not in page and '<details class="run" id="run-1" open>' in page


def test_several_runs_are_folded_but_the_best_and_listed_at_the_top(tmp_path):
    folders = [write_run(tmp_path, seed=seed, result=result(0.9 + seed / 100)) for seed in (1, 2)]
    page = _page([*folders, write_run(tmp_path, method="node")], tmp_path / "report.html")
    contents = page[page.index("<nav") : page.index("</nav>")]
    assert re.findall('href="#(run-.)"', contents) == ["run-1", "run-2", "run-3"]
    assert contents.count("test accuracy 0.9") == 3
    assert re.findall('<details class="run" id="(run-.)"( open)?>', page) == [
        *(("run-1", " open"), ("run-2", ""), ("run-3", ""))
    ]


def test_an_unfinished_run_is_named_and_the_others_are_shown(tmp_path):
    done = write_run(tmp_path, method="node")
    begun = write_run(tmp_path, method="anode")
    (begun / "record.json").unlink()
    (begun / "config.yaml").write_text("experiment: digits/anode\ntrain: {epochs: 10}\n")
    page = _page([done, begun], tmp_path / "report.html")
    text = _Nodes(page).text
    assert "digits-anode-s7 is left out: unfinished, stopped after 3 of 10 epochs." in text
    assert "Right on 97 %" in text and str(tmp_path) not in page
    contents = page[page.index("<nav") : page.index("</nav>")]
    assert "digits-anode-s7" in contents


def test_no_finished_run_is_refused_with_the_command_that_finishes_it(tmp_path):
    begun = write_run(tmp_path)
    (begun / "record.json").unlink()
    (begun / "config.yaml").touch()
    with pytest.raises(ConfigError, match="bfno resume"):
        write_report([begun], tmp_path / "report.html")


def test_evaluations_that_never_change_have_no_chart_and_zeros_no_mention(tmp_path):
    line = '{{"epoch": {}, "test_accuracy": 0.{}, "forward_nfe": {}, "test_nfe": {}}}'
    nfe = {"forward_nfe": 14.0, "test_nfe": 14.0, "backward_nfe": 0.0}
    steady = [line.format(epoch, epoch, 14.0, 14.0) for epoch in (1, 2)]
    folder = write_files(tmp_path / "ode", {**record(), "result": result(**nfe)}, steady)
    page = _page([folder], tmp_path / "ode.html")
    assert page.count('<figure class="chart">') == 1
    assert "NFE was the same in all epochs." in page
    nothing = dict.fromkeys(nfe, 0.0)
    none = [line.format(epoch, epoch, 0.0, 0.0) for epoch in (1, 2)]
    folder = write_files(tmp_path / "cnn", {**record(), "result": result(**nothing)}, none)
    page = _page([folder], tmp_path / "cnn.html")
    assert page.count('<figure class="chart">') == 1
    assert "NFE" not in page.partition("</style>")[2].partition("<script>")[0]


def test_calibration_is_reported_if_it_was_measured(tmp_path):
    errors = {"test_calibration_error": 0.08, "test_calibrated_error": 0.02}
    folder = write_run(tmp_path, result=result(**errors), temperature=1.5)
    page = _page([folder], tmp_path / "report.html")
    assert "<h3>How sure it is</h3>" in page and page.count("differ by 8.0 percentage points") == 2
    assert "How sure" not in _page([write_run(tmp_path, "letters")], tmp_path / "other.html")


def test_the_plane_has_a_legend_of_classes_and_errors(tmp_path):
    folder = write_run(tmp_path)
    write_exhibit(folder)
    page = _page([folder], tmp_path / "report.html")
    legend = page[page.index('<ul class="glyphs">') :]
    legend = _Nodes(legend[: legend.index("</ul>")]).text.split()
    assert legend == ["Acat", "Bdog", "taken", "for", "another", "class"]


def test_hidden_states_are_explained(tmp_path):
    folder = write_run(tmp_path)
    content = write_exhibit(folder)
    text = _Nodes(_page([folder], tmp_path / "report.html")).text
    assert "it begins as the image, h(0), and ends as what the classifier reads, h(1)" in text
    assert "The slider moves through this time." in text
    write_exhibit(folder, flow={**content["flow"], "shown": "strength"})
    text = _Nodes(_page([folder], tmp_path / "features.html")).text
    assert "begins as features of the image" in text and "bright means that they are strong" in text


@pytest.mark.parametrize(
    ("weights", "is_shown"),
    [({"step": 69}, True), ({"step": 46}, False), ({"step": 46, "stands_for": 69}, True)],
)
def test_an_exhibit_of_weights_from_before_the_run_went_on_is_left_out(tmp_path, weights, is_shown):
    folder = write_run(tmp_path, chosen_step=69)
    write_exhibit(folder, **weights)
    assert ("taken for" in write_report([folder], tmp_path / "report.html").read_text()) is is_shown
    names = draw_figures(read_runs([folder]), [folder])
    assert ("flow-digits-bfno-node" in names) is is_shown


@pytest.mark.parametrize(("step", "is_shown"), [(69, True), (46, False), (None, True)])
def test_a_picture_of_weights_from_before_the_run_went_on_is_left_out(tmp_path, step, is_shown):
    folder = write_run(tmp_path, chosen_step=69)
    (folder / "figures").mkdir()
    (folder / "figures" / "reconstruction.svg").write_text("<svg/>")
    if step is not None:
        RunFolder(folder).note_picture("reconstruction.svg", step)
    page = write_report([folder], tmp_path / "report.html").read_text()
    assert ("data:image/svg" in page) is is_shown
    names = draw_figures(read_runs([folder]), [folder])
    assert ("reconstruction-digits-bfno-node" in names) is is_shown
