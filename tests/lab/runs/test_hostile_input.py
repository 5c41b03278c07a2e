"""Unintended input gives one clear line, at once."""

import itertools
import sys

import pytest

from bfno.lab.cli import main
from bfno.lab.errors import ConfigError
from bfno.lab.experiments.trees import read_settings
from bfno.lab.files import parse_yaml
from tests.lab.runs import launch

LETTERS = "abcdefgh"
LAUGHS = "experiment: digits/node\na: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{this}: &{this} [{','.join([f'*{last}'] * 9)}]\n"
    for last, this in itertools.pairwise(LETTERS)
)


def _line(capsys, *words: str) -> tuple[int, str]:
    code = main(["train", *words])
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 1 and "Fix: " in err
    assert "internal" not in err and len(err) < 400
    return code, err


def test_a_small_file_of_nested_anchors_is_refused_before_it_grows(tmp_path, capsys):
    file = tmp_path / "laughs.yaml"
    file.write_text(LAUGHS)
    assert file.stat().st_size < 360
    assert _line(capsys, str(file)) == (
        2,
        f"error: {file}: stands for more than 10,000 values. Fix: start from a run's config.yaml\n",
    )


@pytest.mark.parametrize("text", ["&a [*a]", "&a {b: *a}", "[" * 20_000, "!!python/name:os.x 1"])
def test_yaml_without_end_is_refused(text):
    with pytest.raises(ValueError, match=r"stands for more|is not YAML"):
        parse_yaml(text)


def test_yaml_with_a_few_aliases_is_read():
    found = parse_yaml("base: &base {lr: 1}\ntrain: *base\nmore: {<<: *base, b: 2}")
    assert found == {"base": {"lr": 1}, "train": {"lr": 1}, "more": {"lr": 1, "b": 2}}


def test_yaml_that_says_something_twice_is_refused_with_its_name():
    with pytest.raises(ValueError, match="has 'train' twice"):
        parse_yaml("train: {epochs: 1}\nseed: 3\ntrain: {batch: 32}")


def test_a_number_that_yaml_would_count_by_eights_is_refused():
    with pytest.raises(ValueError, match="has the number 010, which YAML takes for 8"):
        parse_yaml("seed: 010")
    assert parse_yaml("[0, 007, 10, 0x10, '010', -0]") == [0, 7, 10, 16, "010", 0]
    with pytest.raises(ConfigError, match=r"train\.epochs=010: the value has the number 010"):
        read_settings(["train.epochs=010"])


@pytest.mark.parametrize("setting", ["train.lr=1e300", "train.weight_decay=1e300", "train.lr=.inf"])
def test_a_rate_beyond_all_numbers_names_the_setting(tmp_path, capsys, setting):
    words = ("digits/node", "--scale", "smoke", "--out", str(tmp_path / "run"), "--set", setting)
    code, err = _line(capsys, *words)
    assert code == 2 and setting.partition("=")[0] in err


@pytest.mark.parametrize("seed", ["1" * 5001, "0x" + "f" * 5001])
def test_a_seed_of_many_digits_is_refused(tmp_path, capsys, seed):
    file = tmp_path / "seed.yaml"
    file.write_text(f"experiment: digits/node\nseed: {seed}\n")
    assert _line(capsys, str(file))[0] == 2
    assert _line(capsys, "digits/node", "--set", f"seed={seed}")[0] == 2
    assert _line(capsys, "digits/node", f"--seed={'1' * 5001}")[0] == 2


@pytest.mark.parametrize("out", ["o" * 300, f"a/{'o' * 300}/b"])
def test_a_folder_of_too_long_a_name_is_refused(tmp_path, monkeypatch, capsys, out):
    monkeypatch.chdir(tmp_path)
    code, err = _line(capsys, "digits/node", "--scale", "smoke", "--out", out)
    assert code == 3 and "name too long" in err
    for command in ("resume", "eval", "compare"):
        assert main([command, out]) in (2, 3)
        assert "internal" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_locale_without_letters_is_no_reason_to_fail(tmp_path):
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    file = tmp_path / "settings.yaml"
    file.write_text("experiment: 'digits/nöde'\n", encoding="utf-8")
    code, _, err = launch.finish(launch.program(["train", str(file)], **plain))
    assert code == 2 and err.count("\n") == 1 and "n\\xf6de" in err
    words = ["train", "digits/node", "--scale", "smoke", "--out", str(tmp_path / "läuft")]
    words += ["--set", "train.epochs=1", "--set", "data.train_limit=64"]
    assert launch.finish(launch.program(words, **plain))[0] == 0
    code, out, err = launch.finish(launch.program(["compare", str(tmp_path / "läuft")], **plain))
    assert (code, err) == (0, "") and "\\u2581" in out


def test_windows_is_reported_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "platform", "win32")
    assert main(["models"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "Fix: use Linux, macOS or WSL" in captured.err
