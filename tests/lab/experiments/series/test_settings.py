"""Settings of series: complete, closed, and explained where they are wrong."""

import pytest
import torch

from bfno.fields import LatentOperatorField
from bfno.lab.data import SERIES_SETS
from bfno.lab.errors import ConfigError
from bfno.lab.experiments.resolve import SCALES, changed_settings, resolve
from bfno.lab.experiments.series.experiment import SERIES_METHODS
from bfno.lab.experiments.trees import differences, read_settings
from bfno.models import count_parameters


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("data", SERIES_SETS)
def test_every_method_builds_for_all_data_at_every_scale(data, scale):
    for method in SERIES_METHODS:
        config = resolve(f"{data}/{method}", scale=scale)
        with torch.device("meta"):
            model = config.build(config.known_facts())
        assert count_parameters(model) > 0


def test_the_paper_scale_is_the_published_protocol():
    config = resolve("physionet/latent-ode", scale="paper")
    train, solver = config.train, config.solver
    assert (train.optimizer, train.lr, train.batch, train.clip) == ("adamax", 1e-2, 50, None)
    assert (train.decay, train.decay_every, train.decay_floor) == (0.999, 1, 0.1)
    assert (solver.method, solver.rtol, solver.atol) == ("dopri5", 1e-3, 1e-4)
    assert (config.loss.reconstruction, config.loss.classification) == (1.0, 100.0)
    assert train.epochs == 100 and config.model.samples == 3
    activity = resolve("activity/latent-ode", scale="paper")
    assert activity.train.epochs == 200 and activity.loss.reconstruction == 0
    assert resolve("activity/latent-bfno-node", scale="paper").train.lr == 1e-4


def test_the_published_protocol_brings_its_deviation_and_no_validation():
    published = resolve("physionet/gru-d", changes=read_settings(["data.protocol=published"]))
    assert (published.loss.deviation, published.data.validation) == (0.01, 0.0)
    again = resolve("physionet/gru-d", changes=read_settings(changed_settings(published)))
    assert again == published and changed_settings(published) == ['data.protocol="published"']


PUBLISHED = {
    "rnn-delta-t": {"gap": "public_code"},
    "rnn-impute": {"gap": "public_code"},
    "rnn-d": {"gap": "public_code"},
    "gru-d": {"gap": "public_code"},
    "rnn-vae": {"reverse_axis": "public_code"},
    "ode-rnn": {
        **{"method": "euler", "steps": "public_code", "gaps": "public_code"},
        "reconstruction": "public_code",
    },
    "ghbnode-rnn": {"method": "euler", "steps": "public_code"},
    "gnesterovnode-rnn": {"method": "euler", "steps": "public_code"},
    "latent-ode-rnn": {"encoder_rows": "public_code"},
    "latent-ode": {"encoder_method": "euler", "encoder_steps": "public_code"},
    "augmented-ode": {"encoder_method": "euler", "encoder_steps": "public_code"},
    "ace-latent-ode": {
        **{"encoder_method": "euler", "encoder_steps": "public_code"},
        "variant": "public_code",
    },
    "latent-bfno-node": {
        **{"encoder_method": "euler", "encoder_steps": "public_code"},
        "grid": "batch",
    },
}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("method", SERIES_METHODS)
@pytest.mark.parametrize("data", SERIES_SETS)
def test_the_published_protocol_changes_these_settings_and_no_others(data, method, scale):
    sound = resolve(f"{data}/{method}", scale=scale).as_dict()
    changes = read_settings(["data.protocol=published"])
    published = resolve(f"{data}/{method}", scale=scale, changes=changes).as_dict()
    expected = {f"model.{name}": value for name, value in PUBLISHED.get(method, {}).items()} | {
        "data.protocol": "published",
        "data.validation": 0.0,
        "data.times": "public_code",
        "data.order": "public_code",
        "loss.deviation": 0.01,
        "train.eval_batch": 50,
        **({"data.labels": "public_code"} if data == "activity" else {}),
    }
    if (data, scale) == ("physionet", "cpu"):
        expected |= {"train.epochs": 6, "loss.classification": 100.0}
    assert {name: now for name, (_, now) in differences(sound, published)} == expected


@pytest.mark.parametrize(("data", "parameters"), [("activity", 1_017_515), ("physionet", 11_765)])
def test_the_published_protocol_has_the_operator_of_the_papers_table(data, parameters):
    changes = {"data": {"protocol": "published"}}
    config = resolve(f"{data}/latent-bfno-node", scale="paper", changes=changes)
    model = config.build(config.known_facts())
    field = next(part for part in model.modules() if isinstance(part, LatentOperatorField))
    assert count_parameters(field) == parameters and model.couples_series


@pytest.mark.parametrize(("data", "parameters"), [("activity", 1_017_515), ("physionet", 11_765)])
@pytest.mark.parametrize("grid", ["point", "batch"])
def test_the_operator_of_the_papers_shape_has_the_size_of_its_table(data, parameters, grid):
    changes = {"model": {"grid": grid}}
    config = resolve(f"{data}/latent-bfno-node", scale="paper", changes=changes)
    model = config.build(config.known_facts())
    field = next(part for part in model.modules() if isinstance(part, LatentOperatorField))
    assert count_parameters(field) == parameters
    assert model.couples_series == (grid == "batch")


def test_the_batch_grid_is_never_the_default():
    for method in SERIES_METHODS:
        config = resolve(f"physionet/{method}")
        assert getattr(config.model, "grid", "latent") == "latent"


def test_an_option_of_another_kind_of_model_is_refused():
    with pytest.raises(ConfigError, match=r"^model\.impute: has no meaning"):
        resolve("physionet/latent-ode", changes={"model": {"impute": True}})


def test_a_misspelt_option_gets_the_nearest_one():
    with pytest.raises(ConfigError, match=r"^model\.grd: is not a setting.*model\.grid"):
        resolve("physionet/latent-bfno-node", changes={"model": {"grd": "batch"}})


@pytest.mark.parametrize(("given", "sets"), [("a", ("a",)), ("a,b", ("a", "b")), ("[b]", ("b",))])
def test_sets_of_physionet_are_named_as_one_would(given, sets):
    config = resolve("physionet/gru-d", changes=read_settings([f"data.sets={given}"]))
    assert config.data.sets == sets


def test_a_part_of_physionet_is_not_taken_twice():
    with pytest.raises(ConfigError, match=r"data\.sets: each part should be named once"):
        resolve("physionet/gru-d", changes=read_settings(["data.sets=a,a"]))


def test_an_unknown_set_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"^data\.sets.*'a' or 'b'"):
        resolve("physionet/gru-d", changes={"data": {"sets": "c"}})


def test_an_unknown_method_gets_the_nearest_ones():
    with pytest.raises(ConfigError, match=r"physionet/gru-dd: .*physionet/gru-d"):
        resolve("physionet/gru-dd")


def test_the_settings_of_a_run_resolve_to_themselves(tmp_path):
    changes = read_settings(["data.protocol=published", "model.grid=batch"])
    config = resolve("activity/latent-bfno-node", changes=changes)
    file = tmp_path / "config.yaml"
    file.write_text(config.as_yaml())
    assert resolve(str(file)) == config
