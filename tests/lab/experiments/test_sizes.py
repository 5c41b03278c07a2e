"""The kept counts are those of the present sources, and every count is what a model really has."""

import json
import subprocess
import sys

import pytest

from bfno.lab.errors import ConfigError
from bfno.lab.experiments import sizes
from bfno.lab.experiments.resolve import EXPERIMENTS, resolve

CHEAP = {"folder/bfno-node", "series/gru-d", "cifar10/node", "digits-density/glow"}


def test_the_kept_counts_are_those_of_these_sources():
    kept = json.loads(sizes._KEPT.read_text())
    message = "run `python -m bfno.lab.experiments.sizes` and commit what it writes"
    assert kept["sources"] == sizes.source_checksum(), message


def test_counts_of_other_sources_are_not_believed(monkeypatch, tmp_path):
    other = tmp_path / "sizes.json"
    other.write_text(json.dumps({"sources": "other", "models": [{"data": "wrong"}]}))
    monkeypatch.setattr(sizes, "_KEPT", other)
    monkeypatch.setattr(sizes, "count_models", lambda: iter([{"data": "right"}]))
    assert sizes.model_sizes() == [{"data": "right"}]
    for spoilt in ("", "[]", "{}"):
        other.write_text(spoilt)
        assert sizes.model_sizes() == [{"data": "right"}]
    other.unlink()
    assert sizes.model_sizes() == [{"data": "right"}]


@pytest.mark.parametrize("scale", ["smoke", "cpu", "paper"])
def test_a_count_is_that_of_the_model_that_is_built(scale):
    kept = {f"{row['data']}/{row['method']}": row["sizes"] for row in sizes.model_sizes()}
    for name in CHEAP if scale != "paper" else CHEAP - {"digits-density/glow"}:
        config = resolve(name, scale=scale)
        own = config.own_data.get(name.partition("/")[0])
        model = config.build((own and own.facts) or config.known_facts())
        assert kept[name][scale] == config.count(model)


def test_all_data_of_ones_own_are_in_the_list_with_what_they_are_counted_for():
    own = {data: one.example for kind in EXPERIMENTS for data, one in kind.own_data.items()}
    listed = {row["data"]: row["example"] for row in sizes.model_sizes() if row["example"]}
    assert listed == own and len(own) == 3


@pytest.mark.slow
def test_every_count_is_that_of_a_model_that_was_built_now():
    assert sizes.model_sizes() == list(sizes.count_models())


def test_nothing_is_written_if_a_model_cannot_be_built(monkeypatch, tmp_path):
    monkeypatch.setattr(sizes, "_KEPT", tmp_path / "sizes.json")
    monkeypatch.setattr(sizes, "count_models", lambda: iter([]))
    with pytest.raises(ConfigError, match="not every model"):
        sizes.write_sizes()
    assert not (tmp_path / "sizes.json").exists()


ROWS = [
    {"data": data, "method": method}
    for data in ("folder", "folder-density", "cifar10", "cifar100", "mnist", "fashion-mnist")
    for method in ("node", "anode", "bfno-node")
]


@pytest.mark.parametrize(
    ("wanted", "data", "methods"),
    [
        ("folder", {"folder", "folder-density"}, {"node", "anode", "bfno-node"}),
        ("cifar10", {"cifar10"}, {"node", "anode", "bfno-node"}),
        ("mnist", {"mnist"}, {"node", "anode", "bfno-node"}),
        ("bfno", {row["data"] for row in ROWS}, {"bfno-node"}),
        ("cifar10/node", {"cifar10"}, {"node"}),
        ("cifar10/", {"cifar10"}, {"node", "anode", "bfno-node"}),
        ("BFNO", {row["data"] for row in ROWS}, {"bfno-node"}),
    ],
)
def test_a_word_names_data_an_experiment_or_a_part_of_names(wanted, data, methods):
    found = sizes.select(ROWS, wanted)
    assert {row["data"] for row in found} == data
    assert {row["method"] for row in found} == methods


def test_a_word_that_names_nothing_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="the nearest are cifar10/node"):
        sizes.select(ROWS, "cifar10/nod3")


def test_the_list_takes_a_fraction_of_a_second_and_no_torch():
    code = (
        "import sys, time; from bfno.lab.cli import main; main(['models']);"
        "assert 'torch' not in sys.modules; assert time.process_time() < 1, time.process_time()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
