"""Commands about densities as their users meet them."""

import csv
import io
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

from bfno.lab.cli import main
from bfno.lab.experiments.density.sampling import test_images as held_out
from bfno.lab.experiments.images.calibration import temperature_of
from bfno.lab.runs.load import open_run
from tests.lab.cli.output import error_line

TINY = ["--scale", "smoke", "--set", "threads=1", "--set", "train.epochs=1"]
IMAGES = ("ffjord-rnode", "glow")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Densities of digits by two methods, one of points, and a classifier."""
    folder = tmp_path_factory.mktemp("runs")
    experiments = {name: f"digits-density/{name}" for name in IMAGES}
    experiments |= {"moons": "moons/ffjord-rnode", "classifier": "digits/node"}
    for name, experiment in experiments.items():
        assert main(["train", experiment, "--out", str(folder / name), *TINY]) == 0
    words = ["train", "digits/node", "--set", "data.size=4", "--out", str(folder / "small")]
    assert main([*words, *TINY]) == 0
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two image files, of a size that the model does not have."""
    folder = tmp_path_factory.mktemp("files")
    for name, grey in (("light.png", 220), ("dark.png", 30)):
        Image.new("L", (20, 16), grey).save(folder / name)
    return [str(folder / "light.png"), str(folder / "dark.png")]


def _pixels(file) -> np.ndarray:
    return np.array(Image.open(file))


def test_training_tells_both_figures_by_their_names(tmp_path, capsys):
    assert (
        main(["train", "digits-density/ffjord-rnode", "--out", str(tmp_path / "run"), *TINY]) == 0
    )
    titles, values, result, advice = capsys.readouterr().out.splitlines()
    for title in ("loss", "valid. bits/dim", "test uniform", "test center", "NFE fwd"):
        assert title in titles
    assert len(values) == len(titles)  # every number stands below its title
    assert re.search(r"test bits/dim \(uniform\) \d+\.\d{4}, test bits/dim \(center\) \d", result)
    assert "chosen by validation bits/dim (uniform)" in result
    assert "bfno sample" in advice and "bfno predict" in advice


def test_points_are_trained_by_their_likelihood(tmp_path, capsys):
    assert main(["train", "moons/ffjord-rnode", "--out", str(tmp_path / "run"), *TINY]) == 0
    titles, _, result, advice = capsys.readouterr().out.splitlines()
    assert "valid. NLL" in titles and "test NLL" in titles and "bits/dim" not in titles
    assert "test NLL" in result and "bfno predict" not in advice


def test_sample_draws_a_grid_into_the_run_and_the_report_shows_it(runs, tmp_path, capsys):
    run = runs / "ffjord-rnode"
    picture, page = run / "figures" / "samples.png", tmp_path / "report.html"
    capsys.readouterr()
    assert main(["sample", str(run), "-n", "9"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == [f"{run}: 9 samples, temperature 1, seed 0", f"written to {picture}"]
    content = picture.read_bytes()
    assert _pixels(picture).shape[0] == _pixels(picture).shape[1]
    assert main(["sample", str(run), "-n", "9"]) == 2
    assert "--force" in error_line(capsys)
    assert main(["sample", str(run), "-n", "9", "--force"]) == 0
    assert picture.read_bytes() == content  # the same bytes each time
    assert main(["report", str(run), "-o", str(page)]) == 0
    text = page.read_text()
    assert "<h3>Samples</h3>" in text and "<h3>Classes</h3>" not in text


def test_the_report_of_a_run_that_went_on_shows_samples_of_its_new_weights(tmp_path, capsys):
    run, page = tmp_path / "run", str(tmp_path / "report.html")
    picture = run / "figures" / "samples.png"
    assert main(["train", "moons/ffjord-rnode", "--out", str(run), *TINY]) == 0
    assert main(["sample", str(run), "-n", "50", "--seed", "3"]) == 0
    before = picture.read_bytes()
    assert main(["report", str(run), "-o", page]) == 0
    assert picture.read_bytes() == before  # the user's own picture stays
    assert main(["resume", str(run), "--epochs", "2"]) == 0
    step = open_run(run).step
    assert main(["report", str(run), "-o", page, "--force"]) == 0
    shown = picture.read_bytes()
    assert shown != before and json.loads((run / "figures" / "drawn.json").read_text()) == {
        "samples.png": step
    }
    assert main(["sample", str(run), "-o", str(tmp_path / "new.png")]) == 0
    assert (tmp_path / "new.png").read_bytes() == shown


def test_another_seed_or_temperature_gives_other_samples(runs, tmp_path):
    words = ["sample", str(runs / "ffjord-rnode"), "-n", "4", "-o"]
    changes = {"a": [], "b": ["--seed", "1"], "c": ["--temperature", "0.5"]}
    for name, change in changes.items():
        assert main([*words, str(tmp_path / f"{name}.png"), *change]) == 0
    assert len({(tmp_path / f"{name}.png").read_bytes() for name in changes}) == 3


def test_runs_stand_beside_real_images_under_their_names(runs, tmp_path, capsys):
    out = tmp_path / "grid.svg"
    words = [str(runs / name) for name in IMAGES]
    assert main(["sample", *words, "--real", "-n", "4", "-o", str(out)]) == 0
    for name in ("real", *IMAGES):
        assert f">{name}</text>" in out.read_text()


def test_a_classifier_says_how_sure_it_is_of_samples_and_of_real_images(runs, tmp_path, capsys):
    words = ["sample", str(runs / "glow"), "--real", "-n", "32", "-o", str(tmp_path / "a.png")]
    capsys.readouterr()
    assert main([*words, "--judge", str(runs / "classifier")]) == 0
    said = re.findall(
        r"(\S+): on average the classifier is (\S+)% sure of these 32 images, and finds (\d+) of",
        capsys.readouterr().out,
    )
    assert [name for name, *_ in said] == ["real", "glow"]
    # What it says of the real images follows from its scores of the first test images.
    classifier = open_run(runs / "classifier")
    images = held_out(open_run(runs / "glow"), 32)
    with torch.inference_mode():
        scores = torch.cat([classifier.model(image[None] / 255) for image in images])
    shares = (scores / (temperature_of(classifier) or 1.0)).softmax(1)
    assert float(said[0][1]) == pytest.approx(100 * shares.amax(1).mean().item(), abs=0.3)
    assert int(said[0][2]) == len(shares.argmax(1).unique())


def test_who_judges_is_introduced(runs, tmp_path, capsys):
    data = tmp_path / "images"
    for index, name in enumerate(("a", "b")):
        (data / name).mkdir(parents=True)
        for number in range(10):
            grey = 20 * number + 9 * index
            Image.new("L", (8, 8), grey).save(data / name / f"{number}.png")
    words = ["train", "folder/node", "--data", str(data), "--out", str(tmp_path / "own"), *TINY]
    assert main([*words, "--set", "data.size=8", "--set", "data.colour=false"]) == 0
    capsys.readouterr()
    words = ["sample", str(runs / "glow"), "-n", "2", "-o", str(tmp_path / "a.png")]
    assert main([*words, "--judge", str(tmp_path / "own")]) == 0
    told = capsys.readouterr().out
    assert re.search(r"classifier: folder/node, test accuracy \d", told)
    assert "glow learned digits, but the classifier learned folder" in told


def test_a_run_that_is_called_real_does_not_hide_the_real_images(runs, tmp_path):
    for name in ("real", "other"):
        (tmp_path / name).symlink_to(runs / "glow")
    out = tmp_path / "grid.svg"
    words = [str(tmp_path / name) for name in ("real", "other")]
    assert main(["sample", *words, "--real", "-n", "2", "-o", str(out)]) == 0
    assert out.read_text().count("<image ") == 3 and ">real</text>" in out.read_text()


def test_runs_of_one_method_are_named_by_their_folders(runs, tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).symlink_to(runs / "glow")
    out = tmp_path / "grid.svg"
    words = [str(tmp_path / name) for name in ("first", "second")]
    assert main(["sample", *words, "-n", "2", "-o", str(out)]) == 0
    assert ">first</text>" in out.read_text() and ">second</text>" in out.read_text()


def test_interpolation_starts_and_ends_at_the_images(runs, files, tmp_path, capsys):
    out = tmp_path / "between.png"
    words = ["sample", str(runs / "ffjord-rnode"), "--interpolate", *files]
    assert main([*words, "--steps", "4", "-o", str(out)]) == 0
    assert "1 pair, 4 images" in capsys.readouterr().out
    pixels = _pixels(out).astype(int)
    side = pixels.shape[0]
    ends = pixels[:, :side], pixels[:, -side:]
    # The solver brings back what it took away, up to its tolerance of 1e-3 on the logit.
    assert abs(np.median(ends[0]) - 220) <= 2 and abs(np.median(ends[1]) - 30) <= 2


def test_interpolation_without_files_takes_pairs_of_test_images(runs, capsys):
    run = runs / "ffjord-rnode"
    assert main(["sample", str(run), "--interpolate", "-n", "3", "--steps", "5"]) == 0
    assert "3 pairs" in capsys.readouterr().out
    height, width = _pixels(run / "figures" / "interpolation.png").shape
    assert width / height == pytest.approx(5 / 3, abs=0.02)


def test_points_become_a_picture_whose_density_integrates_to_one(runs, tmp_path, capsys):
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<svg")):
        out = tmp_path / f"moons.{kind}"
        assert main(["sample", str(runs / "moons"), "-n", "50", "-o", str(out)]) == 0
        assert out.read_bytes().startswith(start)
        mass = re.search(r"integrates to (\d\.\d{4}) over \[", capsys.readouterr().out)
        # The window holds all but the tails of a density that is nearly normal.
        assert mass is not None and 0.97 < float(mass[1]) < 1.001


def test_eval_says_which_figure_is_a_bound(runs, capsys):
    assert main(["eval", str(runs / "ffjord-rnode")]) == 0
    uniform, center, nfe, seconds = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"bits/dim \(uniform\) \d+\.\d{4} ± \d\.\d{4} of 40 images "
        r"\(an upper bound; comparable\)",
        uniform,
    )
    assert center.startswith("bits/dim (center) ") and "what RNODE reports" in center
    assert nfe.startswith("NFE ") and seconds.startswith("seconds ")
    assert main(["eval", str(runs / "moons")]) == 0
    printed = capsys.readouterr().out
    assert re.match(r"NLL +\d\.\d{4} ± \d\.\d{4} nats of 64 points\n", printed)


def test_eval_repeats_the_record(runs, capsys):
    for name in ("ffjord-rnode", "moons"):
        capsys.readouterr()
        assert main(["eval", str(runs / name), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        result = json.loads((runs / name / "record.json").read_text())["result"]
        metrics = {key: value for key, value in found.items() if f"test_{key}" in result}
        assert metrics and "classes" not in found
        for key, value in metrics.items():
            assert value == pytest.approx(result[f"test_{key}"], rel=1e-6)


def test_predict_scores_files_in_every_format(runs, files, capsys, caplog):
    words = ["predict", str(runs / "ffjord-rnode"), *files]
    capsys.readouterr()
    assert main([*words, "--format", "json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    columns = {"file", "label", "bits_per_dim_center", "percentile", "anomaly"}
    assert [set(one) for one in found] == [columns] * 2
    assert main([*words, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    scores = [one["bits_per_dim_center"] for one in found]
    assert [float(row["bits_per_dim_center"]) for row in rows] == pytest.approx(scores, abs=1e-6)
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{file}  {one['label']}  bits/dim (center) {one['bits_per_dim_center']:.4f}  "
        f"percentile {one['percentile']:.1f}  anomaly {one['anomaly']:.1f}"
        for file, one in zip(files, found, strict=True)
    ]
    # Once for each command.
    assert caplog.text.count("validation and test images; sort by") == 3


def test_compare_keeps_densities_and_classifiers_apart(runs, capsys):
    capsys.readouterr()
    assert main(["compare", *(str(runs / name) for name in (*IMAGES, "moons", "classifier"))]) == 0
    blocks = [block.splitlines() for block in capsys.readouterr().out.split("\n\n")]
    tables = [block for block in blocks if "parameters" in block[0].split()]
    assert len(tables) == 3
    images = next(table for table in tables if "test bits/dim (uniform)" in table[0])
    assert "test bits/dim (center)" in images[0] and "accuracy" not in images[0]
    assert len(images) == 4


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["classifier"], 2, "not a density"),
        (["nowhere"], 2, "nowhere"),
        (["unfinished"], 2, "bfno resume"),
        (["glow", "-n", "0"], 2, "-n"),
        (["glow", "-n", "9999"], 2, "ask for at most 4,096"),
        (["glow", "--temperature", "inf"], 2, "--temperature"),
        (["glow", "--temperature", "-1"], 2, "--temperature"),
        (["glow", "--steps", "1"], 2, "--steps"),
        (["glow", "-o", "x.svg"], 2, ".png"),
        (["glow", "-o", "x.jpg"], 2, ".png"),
        (["glow", "-o", "."], 2, "folder"),
        (["glow", "-o", "record.json/x.png"], 2, "not a folder"),
        (["glow", "--interpolate", "one.png"], 2, "pairs"),
        (["glow", "--interpolate", "--real"], 2, "--real"),
        (["glow", "--interpolate", "nowhere.png", "nowhere.png"], 3, "nowhere.png"),
        (["glow", "--interpolate", "record.json", "record.json"], 3, "not a PNG"),
        (["glow", "--interpolate", "-n", "9", "--data-dir", "x", "-o", "a.txt"], 2, ".png"),
        (["moons", "--real"], 2, "points"),
        (["moons", "--interpolate"], 2, "points"),
        (["glow", "moons"], 2, "points"),
        (["glow", "classifier"], 2, "not a density"),
        (["glow", "--judge", "moons"], 2, "which does not classify images"),
        (["glow", "--judge", "classifier", "--interpolate"], 2, "--judge: judges samples"),
        (["glow", "--judge", "small"], 2, "images of shape (1, 4, 4), but glow draws (1, 8, 8)"),
        (["moons", "--judge", "classifier"], 2, "points, not images"),
    ],
)
def test_wrong_words_are_one_line_and_write_nothing(
    runs, tmp_path, monkeypatch, capsys, words, code, message
):
    for name in (*IMAGES, "moons", "classifier", "small"):
        (tmp_path / name).symlink_to(runs / name)
    (tmp_path / "record.json").write_text("no image")
    (tmp_path / "unfinished").mkdir()
    config = (runs / "glow" / "config.yaml").read_text()
    (tmp_path / "unfinished" / "config.yaml").write_text(config)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    out = [] if "-o" in words else ["-o", "out.png"]
    capsys.readouterr()
    assert main(["sample", *words, *out]) == code
    assert message in error_line(capsys)
    assert sorted(tmp_path.rglob("*")) == before


def test_several_runs_need_a_name_for_their_picture(runs, capsys):
    capsys.readouterr()
    assert main(["sample", *(str(runs / name) for name in IMAGES)]) == 2
    assert "name a file with -o" in error_line(capsys)


def test_predict_of_points_and_bad_files_is_one_line(runs, files, tmp_path, capsys):
    capsys.readouterr()
    assert main(["predict", str(runs / "moons"), files[0]]) == 2
    assert "points" in error_line(capsys)
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    assert main(["predict", str(runs / "glow"), str(bad), files[0], "--format", "json"]) == 3
    printed = capsys.readouterr()
    assert json.loads(printed.out)["file"] == files[0] and printed.err.count("\n") == 1
