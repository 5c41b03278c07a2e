"""The report in a real browser: what a reader sees, presses and moves.

Skipped without chromium and playwright.
"""

import pytest

from bfno.lab.views.report.page import write_report
from tests.lab.views.browser import MISSING, browser
from tests.lab.views.exhibits import exhibit, write_exhibit
from tests.lab.views.runs import record, result, write_files, write_old_record, write_run

pytestmark = pytest.mark.skipif(MISSING, reason="chromium or playwright is not installed")

CURVES = "document.querySelectorAll('.chart:first-child .curve[data-method=\"{}\"]').length"
LEVELS = "[...document.querySelectorAll('.chart:first-child .level')].map(node => node.textContent)"
HEIGHTS = LEVELS.replace("node.textContent", "node.getBoundingClientRect().y")
TIP = "document.querySelector('.plot output')"
CLOCK = "document.querySelector('.clock').textContent"
FIRST_FRAME = "getComputedStyle(document.querySelector('.frame:last-child')).backgroundPositionX"
STEPS = "[...document.querySelectorAll('.step')].map(node => node.textContent)"
BAR = "document.querySelector('.bar.true b').textContent"
SHOWN_COUNT = "[...document.querySelectorAll('{}')].filter(node => node.checkVisibility()).length"
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
def opened():
    with browser() as page:
        yield page


@pytest.fixture
def page(opened, report):
    opened.resize(1280)
    opened.prefer()
    opened.open(report)
    yield opened
    assert opened.problems == []


def test_the_page_loads_only_itself(page, report):
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


def test_the_pointer_reads_the_nearest_point(page):
    place = page.find(
        "(() => { document.querySelector('.chart').scrollIntoView();"
        "const marks = document.querySelectorAll('.chart:first-child .marker');"
        "const box = marks[marks.length - 1].getBoundingClientRect();"
        "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    page.move_mouse(place[0] + 3, place[1] + 3)
    assert page.find(f"{TIP}.textContent") == "node, seed 7, epoch 3: 0.9000"
    assert page.find(f"{TIP}.hidden") is False
    page.move_mouse(2, 2)
    assert page.find(f"{TIP}.hidden") is True


def test_what_a_finger_reads_stays_when_it_is_lifted(page):
    page.resize(390)
    page.settle()
    page.touch(*page.middle(".chart:first-child .marker"))
    assert page.find(f"{TIP}.hidden") is False
    assert page.find(f"{TIP}.textContent") == "bfno-node, mean of 2 seeds, epoch 1: 0.3200"
    page.touch(*page.middle("h1"))
    assert page.find(f"{TIP}.hidden") is True


def test_curves_that_lie_on_each_other_are_all_read(page):
    place = page.middle(".chart:nth-child(2) .marker")
    page.move_mouse(*place)
    assert page.find("document.querySelectorAll('.plot output')[1].textContent").split("\n") == [
        "bfno-node, mean of 2 seeds, epoch 1: 6.833",
        "node, seed 7, epoch 1: 6.833",
    ]


HEADS = "[...document.querySelectorAll('.sortable th')].map(head => head.ariaSort)"
FIRST_CELLS = (
    "[...document.querySelectorAll('.sortable tbody tr')].map(row => row.cells[0].innerText.trim())"
)


def test_a_press_on_a_heading_sorts_the_methods(opened, tmp_path):
    speeds = {"slow": [1129.4], "middle": [17.0, 21.0], "quick": [9.5], "none": [None]}
    folders = [
        write_run(tmp_path, method=method, seed=seed, seconds=one)
        for method, times in speeds.items()
        for seed, one in enumerate(times)
    ]
    opened.resize(1280)
    opened.open(write_report(folders, tmp_path / "report.html"))
    keys = opened.find(
        "[...document.querySelectorAll('.sortable th')].map(head => head.textContent)"
    )
    place = keys.index("seconds")
    opened.click(f".sortable th:nth-child({place + 1}) button")
    assert opened.find(FIRST_CELLS) == ["quick", "middle", "slow", "none"]
    assert opened.find(HEADS)[place] == "ascending"
    opened.press(" ")  # the heading that was pressed has the keyboard
    assert opened.find(FIRST_CELLS) == ["slow", "middle", "quick", "none"]
    opened.click(".sortable th button")
    assert opened.find(FIRST_CELLS) == ["middle", "none", "quick", "slow"]
    assert [one for one in opened.find(HEADS) if one] == ["ascending"]
    assert opened.problems == []


def test_a_phone_shows_the_result_of_a_method_with_a_long_name(opened, tmp_path):
    long = "a-method-with-a-name-that-somebody-typed-and-nobody-can-remember"
    folders = [
        write_files(tmp_path / name, {**record(), "method": name}) for name in ("node", long)
    ]
    opened.resize(390)
    opened.open(write_report(folders, tmp_path / "report.html"))
    edges = (
        "[...document.querySelectorAll('.sortable tr')]"
        ".map(row => row.cells[1].getBoundingClientRect().right)"
    )
    assert max(opened.find(edges)) <= 390
    opened.find("document.querySelector('.scroll').scrollTo(500, 0)")
    first = "document.querySelector('.sortable td').getBoundingClientRect().left"
    assert 0 <= opened.find(first) < 30
    assert opened.find("document.documentElement.scrollWidth") <= 390


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
    controls = "document.querySelectorAll('button, select, input, summary, .plot svg, .scroll, a')"
    page.find(f"window.left = new Set([...{controls}].filter(node => node.checkVisibility())), 1")
    assert page.find("left.size") > 20
    for _ in range(page.find("left.size") + 5):
        page.press("Tab")
        page.find("left.delete(document.activeElement)")
    assert page.find("[...left].map(node => node.outerHTML.slice(0, 80))") == []


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
    assert page.find(SHOWN_COUNT.format(".frame")) == 12  # two methods, two images, three times
    widths = "getComputedStyle(document.querySelector('.charts')).gridTemplateColumns.split(' ')"
    assert len(page.find(widths)) == 1
    play = "getComputedStyle(document.querySelector('.play')).visibility"
    assert page.find(play) == "hidden"


@pytest.mark.slow
def test_paper_shows_where_the_states_end_and_the_runs_that_were_unfolded(page):
    page.click("#run-2 summary")
    page.send("Page.printToPDF")
    assert [page.find(one) for one in SHOWN] == ["t = 1.00", "100%", "100 %"]
    page.prefer(media="print")
    page.settle()
    folded = "[...document.querySelectorAll('.body')].map(node => node.checkVisibility({}))"
    visible = folded.format("{contentVisibilityAuto: true}")
    assert page.find(visible) == [True, True, False]


def test_without_scripts_figures_and_three_states_show(opened, report):
    opened.open(report, scripts=False)
    assert opened.find(SHOWN_COUNT.format("noscript figure")) == 3
    assert opened.find(SHOWN_COUNT.format(".frame")) == 12  # two methods, two images, three times
    assert opened.find(SHOWN_COUNT.format("button, select, input:not(#theme)")) == 0
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
        words = {"classes": [attack, attack], "config": config, "commit": attack}
        folder = write_old_record(write_run(tmp_path / str(place)), **words, method=attack)
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
    assert {url[:5] for url in opened.requests} == {"file:"}


def test_a_link_in_the_contents_unfolds_its_run(page):
    assert page.find("document.getElementById('run-3').open") is False
    page.click(".contents a[href='#run-3']")
    page.wait_for("document.getElementById('run-3').open")


# How far each region can be scrolled sideways, and whether its hint shows.
REGIONS = """[...document.querySelectorAll('.scroll')].filter(node => node.checkVisibility())
  .map(node => [node, node.parentElement.querySelector('.hint')])
  .map(([node, hint]) => [node.scrollWidth - node.clientWidth, hint.hidden])"""


@pytest.mark.parametrize("width", [390, 1280])
def test_what_is_too_wide_says_that_it_can_be_scrolled(opened, tmp_path, width):
    size = 12
    classes = [f"a kind of animal {place}" for place in range(size)]
    confusion = [[place + 1] * size for place in range(size)]
    folder = write_run(tmp_path, classes=classes, confusion=confusion)
    opened.resize(width)
    opened.open(write_report([folder], tmp_path / "report.html"))
    regions = opened.find(REGIONS)
    assert len(regions) == 3
    assert all(hidden == (more <= 1) for more, hidden in regions)
    # On a phone, the table of methods and the matrix are wider than the screen.
    assert [more > 1 for more, _ in regions][:2] == [width == 390] * 2
    assert opened.find("document.documentElement.scrollWidth") <= width
    assert opened.problems == []


def test_no_label_of_a_long_class_is_clipped(opened, tmp_path):
    classes = ["long-haired dachshund", "Norwegian forest cat"]
    folder = write_run(tmp_path, classes=classes)
    write_exhibit(folder)
    opened.resize(390)
    opened.open(write_report([folder], tmp_path / "report.html"))
    clipped = """[...document.querySelectorAll('.bar span, .glyphs li, .mistakes li, .state p')]
      .filter(node => node.scrollWidth > node.clientWidth + 1 && node.clientWidth).length"""
    assert opened.find(clipped) == 0
    # Texts of the matrix stay inside of their drawing.
    outside = """(() => {
      const box = document.querySelector('.matrix svg').getBoundingClientRect();
      return [...document.querySelectorAll('.matrix svg text, .matrix svg use')]
        .map(node => node.getBoundingClientRect())
        .filter(one => one.left < box.left - 1 || one.right > box.right + 1
          || one.bottom > box.bottom + 1 || one.top < box.top - 1).length;
    })()"""
    assert opened.find(outside) == 0
