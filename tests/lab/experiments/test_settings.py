"""Settings: complete, closed, and explained where they are wrong."""

import random
import string

import pytest
import yaml
from torch import nn

from bfno.fields import LAYERS
from bfno.lab.data import DATA_SETS
from bfno.lab.errors import ConfigError, UserError
from bfno.lab.experiments.images.presets import IMAGE_PRESETS
from bfno.lab.experiments.resolve import SCALES, changed_settings, resolve
from bfno.lab.experiments.trees import merged, read_settings


def test_the_paper_scale_is_the_recipe_of_the_paper():
    config = resolve("cifar10/bfno-node", scale="paper")
    train, solver = config.train, config.solver
    assert (train.lr, train.batch, train.epochs, train.clip) == (1e-3, 64, 10, 1.0)
    assert (train.decay, train.decay_every, train.weight_decay) == (0.95, 1000, 0.0)
    assert (solver.method, solver.rtol, solver.atol) == ("dopri5", 1e-3, 1e-3)
    assert config.data.validation == 0 and config.data.shape == (3, 32, 32)
    assert config.model.width == IMAGE_PRESETS["cifar10", "bfno-node"].model["width"]


@pytest.mark.parametrize("scale", SCALES)
def test_every_preset_builds_at_every_scale(scale):
    for data, method in IMAGE_PRESETS:
        config = resolve(f"{data}/{method}", scale=scale)
        if scale == "paper":
            assert config.data.shape == DATA_SETS[data].shape
        else:
            model = config.build(config.known_facts())
            assert model.in_shape == config.data.shape


def test_the_settings_of_a_run_resolve_to_themselves(tmp_path):
    config = resolve("mnist/gnesterovnode", scale="cpu", changes=read_settings(["train.lr=0.5"]))
    file = tmp_path / "config.yaml"
    file.write_text(config.as_yaml())
    assert resolve(str(file)) == config


def test_a_folder_of_grey_images_gets_the_sizes_for_grey_images():
    grey = resolve("folder/anode", scale="paper", changes={"data": {"colour": False}})
    assert grey.model.width == IMAGE_PRESETS["mnist", "anode"].model["width"]
    colour = resolve("folder/anode", scale="paper")
    assert colour.model.width == IMAGE_PRESETS["cifar10", "anode"].model["width"]
    assert (grey.data.shape[0], colour.data.shape[0]) == (1, 3)


@pytest.mark.parametrize("settings", [[], ["data.colour=false"], ["data.colour=false", "seed=3"]])
def test_the_changed_settings_resolve_to_the_same_experiment(settings):
    given = read_settings([*settings, "train.lr=0.25", "model.field_options.branches=3"])
    config = resolve("folder/bfno-node", changes=given)
    again = resolve("folder/bfno-node", changes=read_settings(changed_settings(config)))
    assert again == config.model_copy(update={"seed": again.seed})


def test_any_dynamics_goes_with_any_field():
    changes = read_settings(["model.field=bfno", "model.width=4", "model.field_options.branches=3"])
    for method in ("sonode", "hbnode", "ghbnode", "nesterovnode", "gnesterovnode", "adamnode"):
        config = resolve(f"digits/{method}", scale="smoke", changes=changes)
        field = config.build(config.known_facts()).block.dynamics.field
        assert type(field).__name__ == "OperatorField"
    other = resolve("digits/bfno-node", changes=read_settings(["model.field=conv"]))
    assert other.model.field_options == {}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.lrr=1", r"train\.lrr: is not a setting .* did you mean train\.lr,"),
        ("lr=1", r"lr: is not a setting .* did you mean train\.lr,"),
        ("train.lr=-1", r"train\.lr: .*greater than 0, got '-1'"),
        ("train.lr=.nan", r"train\.lr: .*finite number"),
        ("train.epochs=2.5", r"train\.epochs: .*integer"),
        ("train=3", r"train: .*dictionary"),
        ("solver.method=rk5", r"solver\.method: .*'dopri5'"),
        ("data.name=imagenet", r"data\.name: .*'cifar10'"),
        ("model.width", r"model\.width: is not a setting. Fix: write section\.key=value"),
        ("train.lr={", r"train\.lr=\{: the value is not YAML"),
        ("seed=99999999999", r"seed: .*less than"),
    ],
)
def test_a_wrong_setting_is_named_with_what_would_be_right(setting, message):
    with pytest.raises(ConfigError, match=message) as error:
        resolve("mnist/node", changes=read_settings([setting]))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.field_options.branch=2", r"model\.field_options\.branch: BFNO has no such option"),
        ("model.dynamics_options.pace=2", r"model\.dynamics_options\.pace: FirstOrder has no such"),
        ("model.field_options.branches=two", r"model: branches must be"),
        ("model.channels=1", "model: the state must hold the image"),
    ],
)
def test_parts_that_do_not_fit_are_named(setting, message):
    config = resolve("cifar10/bfno-node", scale="smoke", changes=read_settings([setting]))
    with pytest.raises(ConfigError, match=message):
        config.build(config.known_facts())


def test_an_option_that_a_part_needs_is_named(monkeypatch):
    class Smooth(nn.Module):
        def __init__(self, channels: int, modes: int, share: float) -> None:
            super().__init__()

    monkeypatch.setitem(LAYERS, "smooth", Smooth)
    config = resolve("cifar10/node", scale="smoke", changes={"model": {"field": "smooth"}})
    with pytest.raises(
        ConfigError, match=r"^model: Smooth needs 'modes' and 'share'\. Fix: .*model\.field_options"
    ):
        config.build(config.known_facts())


def test_what_the_solver_refuses_is_named_as_its_setting():
    changes = read_settings(["solver.gradient=adjoint", "solver.memory=1 GB"])
    config = resolve("cifar10/bfno-node", scale="smoke", changes=changes)
    with pytest.raises(ConfigError, match=r"solver\.memory: .*Fix: .*--set solver\.memory=VALUE"):
        config.build(config.known_facts())


def test_a_file_changes_an_experiment(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("experiment: digits/node\nscale: smoke\ntrain: {epochs: 9}\n")
    config = resolve(str(file), changes={"train": {"lr": 0.25}})
    assert (config.train.epochs, config.train.lr, config.scale) == (9, 0.25, "smoke")


def _mutated(text: str, chance: random.Random) -> bytes:
    content = bytearray(text.encode())
    for _ in range(chance.randint(1, 4)):
        kind, place = chance.randrange(5), chance.randrange(len(content))
        if kind == 0:
            content[place] = chance.randrange(256)
        elif kind == 1:
            del content[place : place + chance.randint(1, 30)]
        elif kind == 2:
            content[place:place] = chance.choice(list(string.punctuation)).encode() * 3
        elif kind == 3:  # often another number, which may be as good
            digits = [index for index, one in enumerate(content) if chr(one).isdigit()]
            content[chance.choice(digits or [place])] = ord(chance.choice(string.digits))
        else:
            lines = content.split(b"\n")
            chance.shuffle(lines)
            content = bytearray(b"\n".join(lines))
        content = content or bytearray(b" ")
    return bytes(content)


def _fuzz(folder, count: int) -> None:
    """Every spoilt file is refused in one line, or still means something."""
    text = resolve("mnist/hbnode").as_yaml()
    chance, refused = random.Random(1), 0
    for number in range(count):
        file = folder / f"{number}.yaml"
        file.write_bytes(_mutated(text, chance))
        try:
            config = resolve(str(file))
        except UserError as error:
            assert "\n" not in str(error) and "Fix: " in str(error)
            refused += 1
        else:
            assert yaml.safe_load(config.as_yaml())
    assert count * 0.3 < refused < count


def test_spoilt_files_are_refused_in_one_line(tmp_path):
    _fuzz(tmp_path, 200)


@pytest.mark.slow
def test_two_thousand_spoilt_files_are_refused_in_one_line(tmp_path):
    _fuzz(tmp_path, 2000)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "experiment: 3",
        "experiment: {a: b}",
        "experiment: mnist",
        "experiment: mnist/node/extra",
        "&a [*a]",
        "experiment: !!python/object/apply:os.system [echo]",
        "experiment: mnist/node\nscale: huge",
        "experiment: mnist/node\ndata: 3",
        "experiment: mnist/node\nmodel: [1]",
        "a: " + "[" * 5000,
        "experiment: mnist/node\ntrain: {epochs: 1}\ntrain: {batch: 32}",
        "experiment: mnist/node\ntrain: {epochs: 1, epochs: 2}",
    ],
)
def test_files_that_say_something_else_are_refused(tmp_path, text):
    file = tmp_path / "odd.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        resolve(str(file))
    assert "\n" not in str(error.value)


def test_merging_leaves_both_trees_alone():
    base, change = {"a": {"b": 1}}, {"a": {"c": 2}}
    assert merged(base, change) == {"a": {"b": 1, "c": 2}}
    assert (base, change) == ({"a": {"b": 1}}, {"a": {"c": 2}})


@pytest.mark.parametrize(
    ("spellings", "kept"),
    [
        ([None], None),
        ([0, "0 GB", "stages"], 0),
        ([1001, "1001 B"], 1001),
        (["1 MB", 1_000_000, "1000kb"], "1 MB"),
        (["2 GB", "2GB", "2 gb", "2000 MB"], "2 GB"),
        (["1.5 GiB", "1536mib"], "1536 MiB"),
        (["steps 50 MB", "Steps  50mb"], "steps 50 MB"),
        (["steps"], "steps"),
        (["log", " LOG"], "log"),
        (["unlimited", "Unlimited"], "unlimited"),
    ],
)
def test_memory_of_the_solver_is_one_setting_however_it_is_written(spellings, kept):
    for value in [*spellings, kept]:
        config = resolve("digits/bfno-node", scale="smoke", changes={"solver": {"memory": value}})
        assert yaml.safe_load(config.as_yaml())["solver"]["memory"] == kept
        config.build(config.known_facts())


@pytest.mark.parametrize("value", ["much", -1, "3 apples"])
def test_other_memory_is_refused_with_an_example(value):
    with pytest.raises(ConfigError, match=r"solver\.memory: .*'256 MB'"):
        resolve("digits/bfno-node", scale="smoke", changes={"solver": {"memory": value}})


def test_the_first_step_is_a_number_or_the_last_one():
    for value in (0.5, "last"):
        changes = {"solver": {"first_step": value}}
        assert resolve("digits/bfno-node", changes=changes).solver.first_step == value
    for wrong in (0, -1, "first"):
        with pytest.raises(ConfigError, match=r"solver\.first_step"):
            resolve("digits/bfno-node", changes={"solver": {"first_step": wrong}})


def test_the_rule_for_the_step_size_is_one_of_those_with_a_name():
    assert resolve("digits/bfno-node").solver.controller == "I"
    config = resolve("digits/bfno-node", scale="smoke", changes={"solver": {"controller": "PI"}})
    config.build(config.known_facts())
    with pytest.raises(ConfigError, match=r"solver\.controller: .*'I', 'PI' or 'PID'"):
        resolve("digits/bfno-node", changes={"solver": {"controller": "P"}})
