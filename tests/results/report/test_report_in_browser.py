"""The report in a real browser: what a reader sees, presses and moves; skipped without chromium."""

import json

import pytest

from bfno.results.report.page import write_report
from tests.results.browser import CHROMIUM, browser
from tests.results.exhibits import exhibit, write_exhibit
from tests.results.runs import epoch_lines, record, result, write_files, write_run

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

CURVES = "document.querySelectorAll('.chart:first-child .curve[data-method=\"{}\"]').length"
LEVELS = "[...document.querySelectorAll('.chart:first-child .level')].map(node => node.textContent)"
HEIGHTS = LEVELS.replace("node.textContent", "node.getBoundingClientRect().y")
TIP = "document.querySelector('.plot output')"
CLOCK = "document.querySelector('.time output').textContent"
FIRST_FRAME = "getComputedStyle(document.querySelector('.frame')).backgroundPositionX"
STEPS = "[...document.querySelectorAll('.step')].map(node => node.textContent)"
BAR = "document.querySelector('.bar.true b').textContent"
SHOWN = (CLOCK, FIRST_FRAME, BAR)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Two methods, one of two seeds, that take other steps through the same images."""
    root = tmp_path_factory.mktemp("runs")
    for method, seed, accuracy in (
        ("bfno-node", 7, 0.97),
        ("bfno-node", 8, 0.95),
        ("node", 7, 0.9),
    ):
        write_exhibit(write_run(root, method=method, seed=seed, result=result(accuracy)))
    flow = {**exhibit()["flow"], "steps": [0.0, 0.5, 1.0]}
    write_exhibit(root / "digits-node-s7", flow=flow)
    return write_report(sorted(root.iterdir()), tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile") / "new") as page:
        yield page


@pytest.fixture
def page(opened, report):
    opened.resize(1280)
    opened.prefer()
    opened.open(report)
    yield opened
    assert opened.problems == []


def test_the_page_loads_nothing_but_itself(page, report):
    assert {url for url in page.requests if not url.startswith("data:image/png;")} == {
        report.as_uri()
    }
    assert page.find("document.querySelectorAll('.chart .curve').length") == 8


def test_the_slider_moves_the_states_the_bars_and_the_readout(page):
    page.find("document.querySelector('input[type=range]').focus()")
    assert [page.find(one) for one in SHOWN] == ["t = 0.00", "0%", "50 %"]
    assert page.find(STEPS) == ["step 1 of 3", "step 1 of 2"]
    page.press("ArrowRight")
    assert [page.find(one) for one in SHOWN] == ["t = 0.25", "25%", "63 %"]
    assert page.find(STEPS) == ["step 2 of 3", "step 1 of 2"]
    for _ in range(3):
        page.press("ArrowRight")
    assert [page.find(one) for one in SHOWN] == [
        "t = 1.00",
        "100%",
        "100 %",
    ]
    assert page.find(STEPS) == ["step 3 of 3", "step 2 of 2"]


@pytest.mark.parametrize(
    "motion", ["no-preference", pytest.param("reduce", marks=pytest.mark.slow)]
)
def test_play_goes_to_the_end_and_starts_again(page, motion):
    page.prefer(motion=motion)
    page.click(".play")
    assert page.find("document.querySelector('.play').textContent") == "Pause"
    page.wait_for(f"{CLOCK} === 't = 1.00'")
    assert page.find("document.querySelector('.play').textContent") == "Play"
    page.click(".play")
    page.wait_for(f"{CLOCK} !== 't = 1.00'")
    page.click(".play")
    paused = page.find(CLOCK)
    page.find("new Promise(done => setTimeout(done, 900))")
    assert page.find(CLOCK) == paused


@pytest.mark.slow
def test_the_solvers_steps_are_marked_where_the_slider_gets_to(page):
    ends = (
        "[...document.querySelectorAll('.rail')].map(rail => [...rail.querySelectorAll('i[style]')]"
        ".map(tick => tick.getBoundingClientRect().x + 1))"
    )
    ours, theirs = page.find(ends)
    assert [round((x - ours[0]) / (ours[-1] - ours[0]), 2) for x in ours] == [0, 0.1, 0.4, 1]
    assert len(theirs) == 3 and theirs[0] == ours[0] and theirs[-1] == ours[-1]
    box = page.find(
        "(() => { const box = document.querySelector('input[type=range]').getBoundingClientRect();"
        "return [box.left, box.right]; })()"
    )
    assert [ours[0] - box[0], box[1] - ours[-1]] == [pytest.approx(10, abs=1)] * 2


def test_a_method_can_be_hidden_and_shown_again(page):
    assert [page.find(CURVES.format(method)) for method in (0, 1)] == [3, 1]  # two seeds, a mean
    page.click(".legend button")
    assert [page.find(CURVES.format(method)) for method in (0, 1)] == [0, 1]
    assert page.find("document.querySelector('.legend button').ariaPressed") == "false"
    page.click(".legend button:nth-child(2)")
    assert "nothing to draw" in page.find("document.querySelector('.chart svg').textContent")
    page.click(".legend button")
    assert page.find(CURVES.format(0)) == 3


def test_another_metric_and_a_logarithmic_axis_can_be_chosen(page):
    before = page.find(LEVELS)
    assert before == ["0.4", "0.6", "0.8"]
    low, middle, high = page.find(HEIGHTS)
    assert low - middle == pytest.approx(middle - high, abs=1)
    page.click(".chart input")
    low, middle, high = page.find(HEIGHTS)
    assert low - middle > 1.2 * (middle - high)
    page.click(".chart input")
    page.find(
        "(() => { const picker = document.querySelector('.chart select');"
        "picker.value = 'train_loss'; picker.dispatchEvent(new Event('change')); })()"
    )
    assert page.find(LEVELS) != before
    names = page.find("[...document.querySelectorAll('option')].map(node => node.textContent)")
    assert names == [
        *("test accuracy", "validation accuracy", "training accuracy", "test loss"),
        *("training loss", "NFE forward", "NFE backward", "NFE test"),
    ]


def test_values_that_differ_by_rounding_alone_are_drawn_as_one_level(opened, tmp_path):
    lines = [
        line.replace("0.3", "0.30000000000000004")
        for line in epoch_lines({"test_accuracy": 0.3}, 1)
    ]
    lines.append(lines[0].replace("0.30000000000000004", "0.3").replace('"epoch": 1', '"epoch": 2'))
    folder = write_files(tmp_path / "run", {**record(), "result": {"test_accuracy": 0.3}}, lines)
    opened.open(write_report([folder], tmp_path / "report.html"))
    assert "0.4" in opened.find(LEVELS) and opened.find(CURVES.format(0)) == 1


def test_the_pointer_reads_the_nearest_point(page):
    place = page.find(
        "(() => { document.querySelector('.chart').scrollIntoView();"
        "const marks = document.querySelectorAll('.chart:first-child .marker');"
        "const box = marks[marks.length - 1].getBoundingClientRect();"
        "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    page.mouse("mouseMoved", place[0] + 3, place[1] + 3)
    assert page.find(f"{TIP}.textContent") == "node, seed 7, epoch 3: 0.9000"
    assert page.find(f"{TIP}.hidden") is False
    page.mouse("mouseMoved", 2, 2)
    assert page.find(f"{TIP}.hidden") is True
    touch = {"type": "touchStart", "touchPoints": [{"x": place[0], "y": place[1]}]}
    page.send("Input.dispatchTouchEvent", **touch)
    page.wait_for(f"!{TIP}.hidden")


@pytest.mark.slow
def test_the_arrow_keys_read_the_points(page):
    page.find("document.querySelector('.plot svg').focus()")
    page.press("ArrowRight")
    assert page.find(f"{TIP}.textContent") == "node, seed 7, epoch 3: 0.9000"
    page.press("ArrowLeft")
    assert page.find(f"{TIP}.textContent") == "node, seed 7, epoch 2: 0.6000"
    page.press("ArrowUp")
    assert page.find(f"{TIP}.textContent") == "bfno-node, mean of 2 seeds, epoch 2: 0.6400"


@pytest.mark.slow
def test_the_keyboard_reaches_every_control(page):
    reached = set()
    for _ in range(30):
        page.press("Tab")
        reached.add(
            page.find("(document.activeElement.className || document.activeElement.tagName) + ''")
        )
    kinds = page.find(
        "[...document.querySelectorAll('button, select, input, summary, .plot svg')].length"
    )
    assert kinds <= 30
    assert {"live", "method", "BUTTON", "SELECT", "INPUT", "play", "SUMMARY"} <= reached


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(page, width):
    page.resize(width)
    page.settle()
    assert page.find("document.documentElement.scrollWidth") <= width
    assert page.find("document.querySelector('.plot svg').getBoundingClientRect().width") <= width


# The least contrast of any text that shows, by the formula of the web's accessibility guidelines.
CONTRAST = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const paint = (colours) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => rgb.map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
  const behind = (node) =>
    node ? [...behind(node.parentElement), getComputedStyle(node).backgroundColor] : [];
  const text = (node) => node.nodeType === 3 && node.textContent.trim();
  let least = [99, ""];
  for (const node of document.querySelectorAll("main *")) {
    const drawing = node.closest("details figure svg:not(.plane)");  // texts on drawn cells
    if (![...node.childNodes].some(text) || !node.checkVisibility() || drawing) continue;
    const inside = node.namespaceURI.endsWith("svg");
    const style = getComputedStyle(node);
    const back = behind(node);
    const pair = [light(paint(back)), light(paint([...back, inside ? style.fill : style.color]))];
    const contrast = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    if (contrast < least[0]) least = [contrast, node.outerHTML.slice(0, 80)];
  }
  return least;
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read_in_light_and_dark(page, scheme):
    page.prefer(scheme)
    dark = page.find("getComputedStyle(document.body).backgroundColor") == "rgb(17, 20, 26)"
    assert dark == (scheme == "dark")
    contrast, where = page.find(CONTRAST)
    assert contrast >= 4.5, where


@pytest.mark.slow
def test_the_button_changes_light_to_dark_and_back(page):
    colour = "getComputedStyle(document.body).backgroundColor"
    before = page.find(colour)
    page.click("#theme")
    assert page.find(colour) == "rgb(17, 20, 26)" != before
    page.click("#theme")
    assert page.find(colour) == before


@pytest.mark.slow
def test_paper_is_white_and_keeps_the_curves(page):
    page.click("#theme")
    page.prefer(media="print")
    page.settle()
    assert page.find("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.find(CURVES.format(0)) == 3
    play = "getComputedStyle(document.querySelector('.play')).visibility"
    assert page.find(play) == "hidden"


def test_without_scripts_figures_and_three_states_show(opened, report):
    opened.open(report, scripts=False)
    shown = "[...document.querySelectorAll('{}')].filter(node => node.checkVisibility()).length"
    assert opened.find(shown.format("noscript figure")) == 3
    assert opened.find(shown.format(".frame")) == 12  # two methods, two images, three times
    assert opened.find(shown.format("button, select, input")) == 0
    assert opened.find("document.documentElement.scrollWidth") <= 1280


def test_hostile_names_run_nothing(opened, tmp_path):
    attacks = [
        "<script>window.owned = 1</script>",
        "<img src=x onerror=window.owned=1>",
        "\"'><svg onload=window.owned=1>",
        "</script></style></title></noscript><script>window.owned = 1</script>",
    ]
    folders = []
    for place, attack in enumerate(attacks):
        config = {attack: {attack: attack}}
        words = {"data": "digits", "classes": [attack, attack], "config": config}
        folder = write_run(tmp_path / str(place), method="m", **words, commit=attack)
        record = json.loads((folder / "record.json").read_text())
        (folder / "record.json").write_text(json.dumps({**record, "method": attack}))
        write_exhibit(folder)
        folders.append(folder)
    opened.open(write_report(folders, tmp_path / "report.html"))
    for button in range(len(attacks)):
        opened.click(f".legend button:nth-child({button + 1})")
    opened.find("document.querySelector('.plot svg').focus()")
    opened.press("ArrowRight")
    opened.click(".play")
    assert opened.find("typeof window.owned") == "undefined"
    assert opened.problems == []
    assert {url[:5] for url in opened.requests} == {"file:", "data:"}
