"""The list of models has the flows in it, with or without what some of them need."""

from bfno.lab.experiments import resolve, sizes
from bfno.lab.experiments.density import models
from bfno.lab.experiments.density.experiment import DENSITY_METHODS, DensityExperiment


def _density_sizes(monkeypatch):
    monkeypatch.setattr(resolve, "EXPERIMENTS", (DensityExperiment,))
    monkeypatch.setattr(sizes, "SCALES", ("paper",))
    return [row | {"parameters": row["sizes"]["paper"]} for row in sizes.count_models()]


def test_flows_are_listed_with_the_known_sizes(monkeypatch):
    found = {(row["data"], row["method"]): row for row in _density_sizes(monkeypatch)}
    assert {method for _, method in found} == set(DENSITY_METHODS)
    assert found["mnist-density", "ffjord-rnode"]["parameters"] == 800_636
    assert found["cifar10-density", "ffjord-bfno-rnode"]["parameters"] == 8_912_458
    assert (
        found["fashion-mnist-density", "glow"]["parameters"]
        == (found["mnist-density", "glow"]["parameters"])
    )
    # These counts follow from the text of the paper, which does not print them.
    assert all(row["paper"] is None for row in found.values())


def test_flows_whose_package_is_missing_are_left_out(monkeypatch):
    def missing(*_, **__):
        raise ImportError("No module named 'normflows'")

    for flow in ("RealNVP", "Glow", "IResNet"):
        monkeypatch.setattr(models, flow, missing)
    methods = {row["method"] for row in _density_sizes(monkeypatch)}
    assert methods == {"ffjord", "ffjord-rnode", "ffjord-bfno-rnode"}
