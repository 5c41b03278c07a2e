"""The program as its users meet it: what it prints, and its exit codes."""

import csv
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

import bfno
from bfno.lab.cli import commands, main
from bfno.lab.cli.display import prediction_lines
from bfno.lab.data import SERIES_SETS
from bfno.lab.experiments.density.experiment import DENSITY_METHODS
from bfno.lab.experiments.experiment import Prediction
from bfno.lab.experiments.images.presets import IMAGE_DATA, IMAGE_PRESETS, NETS
from bfno.lab.experiments.resolve import resolve
from bfno.lab.experiments.series.experiment import SERIES_METHODS
from tests.lab.cli.output import error_line

TINY = [
    *("--scale", "smoke", "--set", "threads=1", "--set", "solver.method=midpoint"),
    *("--set", "train.epochs=1", "--set", "model.width=2", "--set", "model.depth=1"),
]


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "digits"
    assert main(["train", "digits/bfno-node", "--out", str(run), *TINY]) == 0
    return run


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of small pictures: red ones and blue ones."""
    folder = tmp_path_factory.mktemp("photos")
    generator = torch.Generator().manual_seed(0)
    for name, channel in (("red", 0), ("blue", 2)):
        (folder / name).mkdir()
        for number in range(20):
            pixels = torch.randint(0, 90, (12, 10, 3), generator=generator, dtype=torch.uint8)
            pixels[..., channel] += 150
            Image.fromarray(pixels.numpy()).save(folder / name / f"{number}.png")
    return folder


def test_help_waits_for_no_large_library():
    # What it imports tells why it is slow, its seconds tell how busy the machine is.
    program = (
        "import sys\n"
        "from bfno.lab.cli import main\n"
        "main(['--help'])\n"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    imported = set(done.stderr.split())
    assert "train" in done.stdout and "predict" in done.stdout
    assert {"bfno", "typer"} <= imported
    large = {"torch", "numpy", "scipy", "sklearn", "matplotlib", "pandas", "accelerate", "PIL"}
    assert not imported & (large | {"pydantic", "yaml", "jinja2", "rich", "requests", "pooch"})


@pytest.mark.parametrize("words", [[], ["data"]])
def test_without_a_command_the_help_is_printed(words, capsys):
    assert main(words) == 0
    printed = capsys.readouterr()
    assert main([*words, "--help"]) == 0
    assert printed == capsys.readouterr()
    assert printed.out.startswith("Usage: ") and printed.out.count("\n") > 10 and not printed.err


@pytest.mark.parametrize("words", [[], ["data"]])
def test_the_list_of_commands_cuts_no_summary(words, capsys):
    main(words)
    printed = capsys.readouterr().out
    assert "..." not in printed.partition("Commands:")[2]


def test_commands_are_listed_in_the_order_of_use(capsys):
    main([])
    commands = capsys.readouterr().out.partition("Commands:")[2]
    listed = re.findall(r"^  ([a-z-]+) ", commands, re.MULTILINE)
    assert listed[:5] == ["demo", "train", "resume", "sweep", "eval"]
    assert listed.index("compare") < listed.index("report") < listed.index("table")
    assert listed[-1] == "bench"


def test_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == bfno.__version__


def test_models_prints_every_preset_with_the_paper_beside_it(capsys):
    assert main(["models", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = {(row["data"], row["method"]): (row["parameters"], row["paper"]) for row in rows}
    assert found["cifar10", "bfno-node"] == (171333, 171333)
    images = {name: (p.parameters, p.published) for name, p in IMAGE_PRESETS.items()}
    assert {name: sizes for name, sizes in found.items() if name in images} == images
    series = {(data, method) for data in SERIES_SETS for method in SERIES_METHODS}
    densities = {(f"{data}-density", method) for data in IMAGE_DATA for method in DENSITY_METHODS}
    nets = {(data, method) for data in IMAGE_DATA for method in NETS}
    own = {name for name in found if name[0] in ("folder", "folder-density", "series")}
    assert set(found) - own == {*images, *nets, *series, *densities}
    assert {("folder", "bfno-node"), ("folder-density", "glow"), ("series", "gru-d")} <= own
    assert found["mnist-density", "ffjord-rnode"] == (800636, None)
    assert found["cifar10-density", "ffjord-rnode"] == (1358868, None)


def test_models_come_with_those_for_ones_own_data_first_and_the_sizes_of_a_scale(capsys):
    assert main(["models"]) == 0
    heading, first, *_, last = capsys.readouterr().out.splitlines()
    assert heading.split() == ["parameters", "at", "scale", "cpu", "paper"]
    assert first.startswith("folder/") and last.startswith("Your own data decide the sizes")
    assert main(["models", "cifar10/bfno-node", "--scale", "smoke"]) == 0
    heading, line = capsys.readouterr().out.splitlines()
    size = model_parameters("cifar10/bfno-node", "smoke")
    assert heading.split()[-1] == "smoke" and line.split() == ["cifar10/bfno-node", f"{size:,}"]


def model_parameters(experiment, scale):
    config = resolve(experiment, scale=scale)
    return config.count(config.build(config.known_facts()))


def test_a_wrong_name_or_scale_of_models_is_reported_in_one_line(capsys):
    assert main(["models", "foldr"]) == 2
    assert "the nearest are folder" in error_line(capsys)
    assert main(["models", "folder", "--scale", "huge"]) == 2
    assert "smoke, cpu, paper" in error_line(capsys)


def test_an_unknown_method_of_a_folder_is_not_told_in_terms_of_other_data(capsys):
    assert main(["train", "folder/nodee", "--folder", "photos"]) == 2
    line = error_line(capsys)
    assert "folder/node" in line and "cifar" not in line and "mnist" not in line


def test_a_run_has_its_files(digits_run):
    names = {path.name for path in digits_run.iterdir() if not path.name.startswith(".")}
    assert names == {"config.yaml", "metrics.jsonl", "record.json", "run.json", "checkpoints"}
    record = json.loads((digits_run / "record.json").read_text())
    assert record["experiment"] == "digits/bfno-node" and record["status"] == "finished"
    assert {"config", "versions", "commit", "threads", "seed", "seconds"} <= set(record)
    assert record["hardware"]["cores"] == os.cpu_count()
    assert record["hardware"]["processor"]
    tested = sum(map(sum, record["confusion"]))
    assert record["samples"]["test"] == tested and record["samples"]["train"] > tested


def test_a_record_says_what_was_changed(digits_run):
    changes = json.loads((digits_run / "record.json").read_text())["changes"]
    given = {word for word in TINY if "=" in word and not word.startswith("threads")}
    assert {change.replace('"', "") for change in changes} == given


def test_eval_prints_one_object(digits_run, capsys):
    assert main(["eval", str(digits_run), "--limit", "50", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["samples"] == 50 and 0 <= found["accuracy"] <= 1
    assert {"accuracy", "nfe", "samples", "seconds", "confusion", "per_class"} <= set(found)
    right = sum(found["confusion"][k][k] for k in range(10))
    assert found["accuracy"] == pytest.approx(right / 50)


def test_eval_of_a_run_repeats_its_record(digits_run, capsys):
    main(["eval", str(digits_run), "--json"])
    found = json.loads(capsys.readouterr().out)
    result = json.loads((digits_run / "record.json").read_text())["result"]
    assert found["accuracy"] == result["test_accuracy"]
    assert found["loss"] == pytest.approx(result["test_loss"], rel=1e-6)
    main(["eval", str(digits_run)])
    printed = capsys.readouterr().out
    assert "precision" in printed and "confusion" in printed


def test_loading_a_run_gives_a_model_ready_to_call(digits_run):
    model = bfno.load(digits_run)
    assert not model.training and model.class_names == tuple("0123456789")
    assert model(torch.rand(2, *model.in_shape)).shape == (2, 10)


def test_a_folder_of_images_becomes_a_model_that_names_their_class(photos, tmp_path, capsys):
    run = tmp_path / "run"
    words = ["train", "folder/bfno-node", "--data", str(photos), "--out", str(run), *TINY]
    assert main([*words, "--set", "train.epochs=12", "--set", "train.lr=0.05"]) == 0
    assert json.loads((run / "record.json").read_text())["result"]["test_accuracy"] == 1
    assert main(["eval", str(run), "--data", str(photos), "--json"]) == 0
    capsys.readouterr()
    files = [str(photos / "red" / "0.png"), str(photos / "blue" / "3.png")]
    assert main(["predict", str(run), *files, "--format", "json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["label"] for one in found] == ["red", "blue"]
    assert sum(found[0]["probabilities"].values()) == pytest.approx(1, abs=1e-6)
    assert main(["predict", str(run), *files, "--format", "csv"]) == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["label"] for row in table] == ["red", "blue"] and "red" in table[0]
    assert main(["predict", str(run), *files]) == 0
    assert "red" in capsys.readouterr().out


@pytest.mark.parametrize("place", [{}, {"id": "anna", "time": 1.5}])
def test_a_class_with_the_name_of_a_column_gets_a_column_of_its_own(place):
    names = ["file", "label", "id", "time", "probability of label"]
    probabilities = {name: number / 10 for number, name in enumerate(names)}
    line = prediction_lines("csv")(Prediction(Path("a.png"), "id", probabilities, place=place))
    (row,) = csv.DictReader(io.StringIO(line))
    assert len(row) == 2 + len(place) + len(names) == len(line.splitlines()[0].split(","))
    assert (row["file"], row["label"]) == ("a.png", "id")
    assert row["probability of file"] == "0.000000" and row["probability of label"] == "0.100000"
    assert row["probability of id" if place else "id"] == "0.200000"
    assert row["probability of probability of label"] == "0.400000"


def nested(photos, folder):
    """Photographs at several depths, and things that are none."""
    (folder / "a" / "b").mkdir(parents=True)
    for number, place in enumerate((folder, folder / "a", folder / "a" / "b")):
        shutil.copy(photos / "red" / f"{number}.png", place / f"{number}.png")
    (folder / "notes.txt").write_text("no image")
    (folder / "a" / ".hidden.png").write_bytes(b"")
    return folder


def test_predict_takes_folders_and_says_what_it_leaves_out(
    digits_run, photos, tmp_path, capsys, caplog
):
    folder = nested(photos, tmp_path / "new")
    assert main(["predict", str(digits_run), str(folder), "--format", "json"]) == 0
    files = [json.loads(line)["file"] for line in capsys.readouterr().out.splitlines()]
    assert files == [str(folder / name) for name in ("0.png", "a/1.png", "a/b/2.png")]
    assert caplog.messages == [
        f"{folder}: left out 1 hidden file or folder (a/.hidden.png), "
        "1 file of another kind (notes.txt)"
    ]
    (tmp_path / "empty").mkdir()
    assert main(["predict", str(digits_run), str(tmp_path / "empty")]) == 3
    assert "empty: holds no images. Fix: name a folder with images" in error_line(capsys)


def test_predictions_go_whole_into_a_file_and_over_none(digits_run, photos, tmp_path, capsys):
    folder = nested(photos, tmp_path / "new")
    words = ["predict", str(digits_run), str(folder), "-o"]
    table, array, lines = (tmp_path / f"answers.{end}" for end in ("csv", "json", "jsonl"))
    for file in (table, array, lines):
        assert main([*words, str(file)]) == 0
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert [row["file"] for row in rows] == [one["file"] for one in json.loads(array.read_text())]
    assert len(rows) == len(lines.read_text().splitlines()) == 3
    assert f"{table}: 3 predictions\n" in capsys.readouterr().out
    before = table.read_bytes()
    assert main([*words[:-1], "--format", "csv"]) == 0
    assert capsys.readouterr().out.encode() == before and b"\r" not in before
    table.write_text("mine")
    assert main([*words, str(table)]) == 2
    assert "exists already. Fix: pass --force" in error_line(capsys)
    assert table.read_text() == "mine"
    (folder / "bad.png").write_bytes(b"no image")
    assert main([*words, str(table), "--force"]) == 3
    assert table.read_bytes() == before
    assert f"{table}: 3 predictions; 1 could not be read" in capsys.readouterr().out
    assert main([*words, str(tmp_path / "answers.dat"), "--format", "csv"]) == 3
    assert (tmp_path / "answers.dat").read_bytes() == before


def test_without_a_single_prediction_no_file_is_written(digits_run, tmp_path, capsys):
    bad, out = tmp_path / "bad.png", tmp_path / "answers.csv"
    bad.write_bytes(b"no image")
    out.write_text("those of yesterday")
    assert main(["predict", str(digits_run), str(bad), "-o", str(out), "--force"]) == 3
    assert f"{out}: not written: 1 could not be read" in capsys.readouterr().out
    assert out.read_text() == "those of yesterday"


def test_a_bad_file_among_predictions_spoils_no_other(digits_run, photos, tmp_path, capsys):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    good = str(photos / "red" / "0.png")
    assert main(["predict", str(digits_run), str(bad), good, "--format", "json"]) == 3
    printed = capsys.readouterr()
    assert json.loads(printed.out)["file"] == good
    assert printed.err.startswith(f"error: {bad}: ") and printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "value", "setting"),
    [
        ("--seed", "3", "seed=5"),
        ("--data-dir", "a", "data.dir=b"),
        ("--data", "a", "data.folder=b"),
    ],
)
def test_an_option_beside_its_setting_is_refused(tmp_path, capsys, option, value, setting):
    words = ["train", "folder/cnn", "--out", str(tmp_path / "run"), option, value]
    assert main([*words, "--set", setting]) == 2
    told = f"error: {option}: repeats --set {setting.partition('=')[0]}. Fix: keep one of"
    assert told in capsys.readouterr().err


def test_resume_of_a_finished_run_can_add_epochs(digits_run, tmp_path, capsys):
    run = tmp_path / "run"
    command = ["train", "digits/node", "--out", str(run), *TINY]
    assert main([*command, "--epochs", "2"]) == 2  # beside another number
    assert "keep one of them" in capsys.readouterr().err
    assert main([*command, "--set", "train.epochs=2"]) == 0
    assert main(["resume", str(run), "--set", "train.epochs=3"]) == 0
    assert main(["resume", str(run), "--epochs", "4"]) == 0
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 4


def test_compare_and_report_take_runs(digits_run, tmp_path, capsys):
    assert main(["compare", str(digits_run)]) == 0
    printed = capsys.readouterr().out
    assert "bfno-node reaches a test accuracy of" in printed and "first → last" in printed
    assert main(["compare", str(digits_run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["method"] == "bfno-node"
    # A report leaves an exhibit in the run, which another test counts the files of.
    page, run = tmp_path / "report.html", tmp_path / "run"
    shutil.copytree(digits_run, run)
    assert main(["report", str(run), "-o", str(page)]) == 0
    assert "bfno-node" in page.read_text()
    capsys.readouterr()
    assert main(["report", str(run), "-o", str(page)]) == 2
    assert "report.html" in error_line(capsys)


def test_compare_fits_the_terminal(digits_run, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["compare", str(digits_run)]) == 0
    lines = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 100 and "accuracy" in lines[1]


def test_config_prints_what_train_takes(tmp_path, capsys):
    assert main(["config", "digits/hbnode", *TINY]) == 0
    file = tmp_path / "mine.yaml"
    file.write_text(capsys.readouterr().out)
    assert main(["train", str(file), "--out", str(tmp_path / "run")]) == 0


def test_data_list_and_check(shared_folder, capsys):
    assert main(["data", "list"]) == 0
    assert {"mnist", "cifar100", "stl10", "folder"} <= set(capsys.readouterr().out.split())
    assert main(["data", "check", "mnist", "--data-dir", str(shared_folder / "data")]) == 0
    assert capsys.readouterr().out.count("ok ") == 4


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["trian"], 2, "trian"),
        (["trian"], 2, "see `bfno --help`"),
        (["train"], 2, "'experiment'. Fix: see `bfno train --help`"),
        (["data", "get"], 2, "'name'. Fix: see `bfno data get --help`"),
        (["train", "mnist/bfno"], 2, "mnist/bfno-node"),
        (["train", "digits/node", "--scale", "huge"], 2, "smoke, cpu, paper"),
        (["train", "digits/node", "--set", "train.lrr=1"], 2, "train.lr"),
        (["train", "digits/node", "--log", "paper"], 2, "tensorboard, mlflow or wandb"),
        (["train", "folder/node"], 2, "--data"),
        (["train", "folder/node", "--data", "nowhere"], 3, "nowhere"),
        (["train", "folder/node", "--folder", "nowhere"], 3, "nowhere"),
        (["train", "folder/node", "--folder", "a", "--data", "b"], 2, "the old name of --data"),
        (["train", "series/rnn-d", "--data", "nowhere.csv"], 3, "nowhere.csv"),
        (["train", "mnist/node", "--data", "photos"], 2, "or train folder/node"),
        (["train", "mnist-density/glow", "--data", "x"], 2, "or train folder-density/glow"),
        (["train", "physionet/rnn-d", "--data", "x.csv"], 2, "or train series/rnn-d"),
        (["train", "digits/node", "--epochs", "0"], 2, "--epochs"),
        (["train", "folder/bfno"], 2, "the nearest are folder/bfno-net, folder/bfno-node"),
        (["train", "mnist/node", "--data-dir", "nowhere"], 3, "bfno data get mnist"),
        (["train", "nowhere.yaml"], 3, "nowhere.yaml"),
        (["eval", "nowhere"], 2, "nowhere"),
        (["resume", "nowhere"], 2, "nowhere"),
        (["predict", "nowhere", "x.png"], 2, "nowhere"),
        (["predict", "nowhere", "x.png", "--format", "xml"], 2, "table, csv or json"),
        (["predict", "nowhere", "x.png", "-o", "answers"], 2, "end it in .csv, .json"),
        (["predict", "nowhere", "x.png", "-o", "answers.xls"], 2, "end it in .csv, .json"),
        (["predict", "nowhere", "x.png", "-o", "."], 2, "ending"),
        (["compare", "nowhere"], 2, "nowhere"),
        (["data", "get", "mnst"], 2, "mnist"),
        (["data", "check", "mnist", "--data-dir", "nowhere"], 3, ""),
        (["import-released", "nowhere.pt", "-o", "x"], 3, "nowhere.pt"),
        (["train", "digits/node", "--seed", "-1"], 2, "seed"),
        (["bench", "layers"], 2, "layer"),
    ],
)
def test_wrong_words_are_one_line_with_the_fix(tmp_path, monkeypatch, capsys, words, code, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BFNO_DATA", raising=False)
    assert main(words) == code
    if message:
        assert message in error_line(capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_numerical_failure_has_its_own_code(tmp_path, capsys):
    words = ["train", "digits/node", "--out", str(tmp_path / "run"), *TINY]
    diverging = ["--set", "solver.method=dopri5", "--set", "solver.max_steps=5"]
    assert main([*words, *diverging, "--set", "train.lr=1e6", "--set", "train.epochs=5"]) == 4
    printed = capsys.readouterr().err
    assert printed.startswith("error: step ") and printed.count("\n") == 1


def test_a_checkpoint_of_another_model_is_refused(digits_run, tmp_path, capsys):
    run = tmp_path / "run"
    main(["train", "digits/node", "--out", str(run), *TINY])
    config = (digits_run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config)
    capsys.readouterr()
    assert main(["eval", str(run)]) == 2
    assert "is 'digits/bfno-node', but 'digits/node' in its checkpoints" in error_line(capsys)


def test_an_internal_error_shows_its_traceback_only_when_asked(monkeypatch, capsys):
    def broken(*_, **__):
        raise KeyError("surprise")

    monkeypatch.setattr("bfno.lab.experiments.resolve.resolve", broken)
    assert main(["config", "digits/node"]) == 1
    assert "internal: KeyError" in error_line(capsys)
    assert main(["config", "digits/node", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_the_demo_compares_two_models_and_writes_a_report(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path / "demo"), "--scale", "smoke"]) == 0
    printed = capsys.readouterr().out
    assert "bfno-node" in printed and str(tmp_path / "demo" / "report.html") in printed
    assert (tmp_path / "demo" / "report.html").stat().st_size > 10_000
    assert main(["demo", "--out", str(tmp_path / "demo"), "--scale", "smoke"]) == 2


def test_bench_names_the_benchmarks_of_the_checkout():
    from benchmarks.__main__ import GROUPS

    assert set(commands.BENCHMARKS) == set(GROUPS)


def test_bench_of_an_installation_says_in_one_line_that_it_needs_the_repository(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(commands, "__file__", str(tmp_path / "a/b/c/d/commands.py"))
    assert main(["bench", "layer"]) == 2
    assert "needs a clone of the repository" in error_line(capsys)


@pytest.mark.skipif(sys.platform != "linux", reason="only GNU's OpenMP reads the variable")
@pytest.mark.parametrize(("given", "seen"), [(None, "1000"), ("77", "77")])
def test_threads_that_wait_for_each_other_soon_sleep(given, seen):
    program = "from bfno.lab.cli import main; main(['--version']); import torch"
    environment = {**os.environ, "OMP_DISPLAY_ENV": "VERBOSE", "GOMP_SPINCOUNT": given or ""}
    if given is None:
        del environment["GOMP_SPINCOUNT"]
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert f"GOMP_SPINCOUNT = '{seen}'" in done.stderr


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_the_program_keeps_the_memory_of_large_tensors_that_are_freed():
    program = (
        "import resource, torch\n"
        "from bfno.lab.cli import main\n"
        "main(['--version'])\n"
        "def faults():\n"
        "    for _ in range(8): torch.ones(1 << 24)\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "before = faults()\n"
        "print(faults() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    # Memory from the system for one of the eight would be 16,384 faults with pages of 4 KiB, and
    # 32 with huge ones.
    assert int(done.stdout.split()[-1]) < 32


def test_data_that_have_come_are_told_with_their_terms_of_use(capsys):
    assert main(["data", "get", "digits"]) == 0
    said = capsys.readouterr().out
    assert "terms of use: CC BY 4.0; part of scikit-learn; see https://archive.ics.uci.edu" in said
