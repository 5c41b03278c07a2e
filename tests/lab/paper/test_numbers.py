import pytest
import yaml

from bfno.lab.errors import ConfigError
from bfno.lab.paper.numbers import paper_table

TABLES = ("1", "2", "3", "4", "ablation-operator", "ablation-branches")
# Which tables hold which part of the specification, and what it calls their data.
PARTS = {
    "image_classification": (
        "1",
        {"MNIST": "mnist", "CIFAR-10": "cifar10", "CIFAR-100": "cifar100", "STL-10": "stl10"},
    ),
    "activity": ("2", {"HumanActivity": "activity"}),
    "physionet": ("3", {"PhysioNet": "physionet"}),
    "image_generation": ("4", {"MNIST": "mnist-density", "CIFAR-10": "cifar10-density"}),
    "ablation_parameter_counts": ("ablation-operator", {"CIFAR-100": "cifar100"}),
}


@pytest.fixture(scope="module")
def printed(shared_folder):
    """The numbers as the specification holds them, a list for each table."""
    content = yaml.safe_load((shared_folder / "spec" / "paper_results.yaml").read_text())
    series = content.pop("time_series_classification")
    content["activity"] = [one for one in series if one["dataset"] == "HumanActivity"]
    content["physionet"] = [one for one in series if one["dataset"] == "PhysioNet"]
    return content


@pytest.mark.parametrize("part", PARTS)
def test_every_number_is_that_of_the_paper(printed, part):
    name, data = PARTS[part]
    table = paper_table(name)
    wanted = {
        (one["method"].replace("Delta_t", "Δt"), data[one["dataset"]]): (
            one["mean"],
            one["std"],
            one["params"],
        )
        for one in printed[part]
    }
    found = {
        (row.label, of): (cell.mean, cell.std, cell.parameters)
        for row in table.rows
        for of, cell in row.cells.items()
        if of in data.values()
    }
    assert found == wanted
    assert len(wanted) == len(printed[part])


def test_values_that_the_paper_quotes_are_marked_with_their_source(printed):
    for part in ("image_classification", "activity", "physionet", "image_generation"):
        sources = {one["method"].replace("Delta_t", "Δt"): one.get("from") for one in printed[part]}
        for row in paper_table(PARTS[part][0]).rows:
            if not row.cells:
                continue  # announced in the paper, and not in its table; or a control
            assert bool(row.quoted) == bool(sources[row.label])
            if row.quoted:
                author, year = sources[row.label][:-4], sources[row.label][-4:]
                assert row.quoted.lower().startswith(author) and year in row.quoted


def test_tables_have_the_rows_of_the_paper():
    # Two more than printed in table 3: the paper announces them, and its table lacks them.
    own = [[row for row in paper_table(name).rows if not row.control] for name in TABLES]
    assert list(map(len, own)) == [9, 13, 11 + 2, 6, 3, 5]
    controls = [row.method for name in TABLES for row in paper_table(name).rows if row.control]
    assert controls == ["bfno-node-budget", "bfno-node-small-two-branches"]
    missing = [row.label for row in paper_table("3").rows if not row.cells]
    assert missing == ["GHBNODE-RNN", "GNesterovNODE-RNN"]
    assert paper_table("2").rows[0].label == "RNN-Δt"


def test_two_branches_are_the_experiment_of_table_1_with_its_published_size():
    two = paper_table("ablation-branches").rows[1]
    assert (two.label, two.experiment("stl10")) == ("L = 2", "stl10/bfno-node")
    assert two.cells["stl10"].parameters == 514_291
    assert two.cells["stl10"].mean is None  # the paper prints no accuracy there


def test_on_cifar100_the_operators_are_the_small_ones_with_a_control():
    rows = paper_table("ablation-operator").rows
    assert [row.experiment("cifar100") for row in rows] == [
        "cifar100/fno-node-small",
        "cifar100/afno-node-small",
        "cifar100/bfno-node-small",
        "cifar100/bfno-node-small-two-branches",
    ]
    assert [row.experiment("mnist") for row in rows][2:] == ["mnist/bfno-node", None]


def test_a_row_is_found_by_each_of_its_names():
    table = paper_table("ablation-operator")
    for name in ("fno-node", "fno-node-small"):
        assert [row.label for row in table.selected([name])] == ["FNO-NODE"]
    assert table.selected([]) == table.rows


@pytest.mark.parametrize(
    ("ask", "near"),
    [
        (lambda: paper_table("ablation-branch"), "ablation-branches"),
        (lambda: paper_table("1").selected(["bnfo-node"]), "bfno-node"),
        (lambda: paper_table("1").check_data(["minst"]), "mnist"),
        (lambda: paper_table("2").check_data(["digits"]), "activity"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(ask, near):
    with pytest.raises(ConfigError) as error:
        ask()
    assert error.value.fix.endswith(f"nearest: {near}")
