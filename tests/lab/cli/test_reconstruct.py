"""Commands about series as their users meet them."""

import csv

import pytest

from bfno.lab.cli import main
from tests.lab.cli.output import error_line

QUICK = [
    *("--scale", "smoke", "--set", "threads=1", "--set", "train.epochs=1"),
    *("--set", "solver.method=midpoint", "--set", "solver.step=0.1"),
    *("--set", "data.validation=0.2"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A latent model, and one that only forecasts."""
    folder = tmp_path_factory.mktemp("runs")
    for method in ("latent-ode", "gru-d"):
        words = ["train", f"series/{method}", "--out", str(folder / method), *QUICK]
        assert main(words) == 0
    return folder


def test_reconstruct_draws_into_the_run_and_the_report_shows_it(runs, tmp_path, capsys):
    run = runs / "latent-ode"
    picture, page = run / "figures" / "reconstruction.svg", tmp_path / "report.html"
    assert main(["reconstruct", str(run)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 5 and all("root mean squared error" in line for line in printed[:3])
    assert printed[3:] == [f"written to {picture.with_suffix(kind)}" for kind in (".svg", ".png")]
    content = picture.read_bytes()
    assert content.startswith(b"<svg")
    assert main(["reconstruct", str(run)]) == 2
    assert "--force" in error_line(capsys)
    assert main(["reconstruct", str(run), "--force"]) == 0
    assert picture.read_bytes() == content  # the same bytes each time
    assert main(["report", str(run), "-o", str(page)]) == 0
    assert "Reconstructed series" in page.read_text()


def test_the_report_of_a_run_that_went_on_shows_curves_of_its_new_weights(tmp_path):
    run, page = tmp_path / "run", str(tmp_path / "report.html")
    words = [*QUICK, "--set", "train.select=last"]
    assert main(["train", "series/latent-ode", "--out", str(run), *words]) == 0
    assert main(["report", str(run), "-o", page]) == 0
    pictures = [run / "figures" / f"reconstruction.{kind}" for kind in ("svg", "png")]
    before = [picture.read_bytes() for picture in pictures]
    assert main(["report", str(run), "-o", page, "--force"]) == 0
    assert [picture.read_bytes() for picture in pictures] == before
    assert main(["resume", str(run), "--epochs", "2"]) == 0
    assert main(["report", str(run), "-o", page, "--force"]) == 0
    assert all(new.read_bytes() != old for new, old in zip(pictures, before, strict=True))


def test_reconstruct_takes_names_times_and_files(runs, tmp_path, capsys):
    table, out, numbers = tmp_path / "mine.csv", tmp_path / "out.png", tmp_path / "out.csv"
    table.write_text("id,time,x,y\na,3,1,2\na,5,2,1\nb,0,1,1\nb,1,2,2\n")
    words = ["reconstruct", str(runs / "latent-ode"), str(table), "--series", "a"]
    words += ["--features", "y", "--until", "7", "--points", "5"]
    assert main([*words, "-o", str(out), "--csv", str(numbers)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("a: ") and "; y " in printed[0]
    assert printed[1:] == [f"written to {out}", f"written to {numbers}"]
    assert out.read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader(numbers.read_text().splitlines()))
    lines = ["mean", "low", "high", "lower", "upper"]
    assert list(rows[0]) == ["series", "feature", "time", *lines]
    assert {(row["series"], row["feature"]) for row in rows} == {("a", "y")}
    assert [float(row["time"]) for row in rows] == pytest.approx([3, 4, 5, 6, 7])
    for row in rows:
        mean, low, high, lower, upper = (float(row[line]) for line in lines)
        assert low <= mean <= high and lower < mean < upper
    capsys.readouterr()


def test_a_wider_level_gives_a_wider_interval_and_an_unknown_one_is_refused(runs, tmp_path, capsys):
    def width(level):
        out = tmp_path / f"{level}.csv"
        words = ["reconstruct", str(runs / "gru-d"), "-o", str(tmp_path / f"{level}.svg")]
        assert main([*words, "--csv", str(out), "--level", level, "--points", "9"]) == 0
        rows = list(csv.DictReader(out.read_text().splitlines()))
        return sum(float(row["upper"]) - float(row["lower"]) for row in rows)

    assert width("0.5") < width("0.8") < width("0.9")
    assert "the 90 % interval holds" in capsys.readouterr().out
    drawn = (tmp_path / "0.9.svg").read_text()
    assert "90 % interval" in drawn


def test_a_run_that_is_not_of_series_is_refused_in_one_line(tmp_path, capsys):
    run = tmp_path / "run"
    assert (
        main(["train", "digits/cnn", "--scale", "smoke", "--epochs", "1", "--out", str(run)]) == 0
    )
    capsys.readouterr()
    assert main(["reconstruct", str(run)]) == 2
    assert "digits/cnn: is not about series. Fix: name a run of series" in error_line(capsys)
    assert not (run / "figures").exists()


def test_hidden_rows_are_drawn_twice_for_each_series(runs, tmp_path, capsys):
    numbers = tmp_path / "out.csv"
    words = ["reconstruct", str(runs / "gru-d"), "-o", str(tmp_path / "out.svg")]
    assert main([*words, "--csv", str(numbers), "--hold-out", "0.3", "--points", "5"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "hidden values" in line]
    assert sum("lation: root mean squared error" in line for line in lines) == 6
    rows = list(csv.DictReader(numbers.read_text().splitlines()))
    assert {row["hidden"] for row in rows} == {"interpolation", "extrapolation"}
    assert "hidden from the model" in (tmp_path / "out.svg").read_text()


def test_hold_out_prints_errors_beside_baselines_and_writes_nothing(runs, tmp_path, capsys):
    before = sorted((runs / "latent-ode").rglob("*"))
    assert main(["reconstruct", str(runs / "latent-ode"), "--hold-out", "0.3"]) == 0
    head, *lines, unit, between, after = capsys.readouterr().out.splitlines()
    assert head.split() == ["hidden", "values", "model", "series", "mean", "last", "value"]
    assert [line.split()[0] for line in lines] == ["interpolation", "extrapolation"]
    for line in lines:
        values, *errors = line.split()[1:]
        assert int(values) > 100 and all(float(error) > 0 for error in errors)
    assert unit == "mean squared errors of scaled values"
    assert "interpolation: the 90 % interval covers" in between
    assert "extrapolation: the 90 % interval covers" in after
    assert sorted((runs / "latent-ode").rglob("*")) == before


@pytest.mark.parametrize(
    ("run", "words", "code", "message"),
    [
        ("gru-d", ["--level", "0.7"], 2, "use one of 0.5, 0.8, 0.9, 0.95, 0.99"),
        ("gru-d", ["--level", "0.95"], 2, "takes 19 validation series, and the run had"),
        ("nowhere", [], 2, "nowhere"),
        ("latent-ode", ["nowhere.csv"], 3, "nowhere.csv"),
        ("latent-ode", ["--series", "nobody"], 2, "nobody"),
        ("latent-ode", ["--features", "z"], 2, "the nearest are"),
        ("latent-ode", ["--until", "0"], 2, "name a later time"),
        ("latent-ode", ["--until", "nan"], 2, "name a later time"),
        ("latent-ode", ["--points", "1"], 2, "--points"),
        ("latent-ode", ["--hold-out", "1"], 2, "--hold-out"),
        ("latent-ode", ["-o", "x.pdf"], 2, ".svg or .png"),
        ("latent-ode", ["--csv", "x.svg"], 2, ".csv"),
        ("latent-ode", ["-o", "."], 2, "folder"),
        ("latent-ode", ["--until", "soon"], 2, "--until"),
    ],
)
def test_wrong_words_are_one_line_and_write_nothing(
    runs, tmp_path, monkeypatch, capsys, run, words, code, message
):
    monkeypatch.chdir(tmp_path)
    out = [] if {"-o", "--csv"} & set(words) else ["-o", "x.svg"]
    force = ["--force"]  # what an earlier test has drawn is not what is tested here
    capsys.readouterr()
    assert main(["reconstruct", str(runs / run), *words, *out, *force]) == code
    assert message in error_line(capsys)
    assert list(tmp_path.iterdir()) == []
