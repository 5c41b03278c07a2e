"""Places in a table, here and in the paper."""

from bfno.lab.paper.numbers import paper_table
from bfno.lab.paper.overview import standing_here, standing_in_paper
from bfno.lab.views.record import read_runs
from tests.lab.views.runs import record, result, write_files


def _runs(root, data, scores, key="test_accuracy"):
    folders = [
        write_files(
            root / f"{method}-{seed}",
            {**record(data, method, seed), "result": {**result(), key: value}},
        )
        for method, values in scores.items()
        for seed, value in enumerate(values)
    ]
    return read_runs(folders)


def test_the_paper_puts_its_method_first_on_cifar_and_eighth_on_mnist():
    table = paper_table("1")
    assert str(standing_in_paper(table, "cifar10")) == "BFNO-NODE 0.6289 ± 0.0054, first of 9"
    assert str(standing_in_paper(table, "mnist")) == (
        "AdamNODE 0.9834 ± 0.0004; BFNO-NODE 0.9752 ± 0.0021, place 8 of 9"
    )


def test_where_the_paper_prints_no_scores_there_is_no_standing():
    assert standing_in_paper(paper_table("ablation-branches"), "mnist") is None


def test_means_over_the_seeds_decide(tmp_path):
    scores = {"bfno-node": [0.9, 0.94], "node": [0.95, 0.85], "anode": [0.93, 0.93]}
    found = standing_here(paper_table("1"), "mnist", _runs(tmp_path, "mnist", scores))
    assert found is not None
    assert (found.leader, found.place, found.methods) == ("ANODE", 2, 3)
    assert str(found.score) == "0.9200 ± 0.0283"


def test_where_less_is_better_the_lowest_leads(tmp_path):
    scores = {"glow": [2.0], "ffjord-bfno-rnode": [1.9]}
    runs = _runs(tmp_path, "mnist-density", scores, "test_bits_per_dim")
    found = standing_here(paper_table("4"), "mnist-density", runs)
    assert str(found) == "FFJORD-BFNO-RNODE 1.900, first of 2 (4 not trained yet)"


def test_equals_share_a_place(tmp_path):
    runs = _runs(tmp_path, "mnist", {"node": [0.9], "bfno-node": [0.9]})
    found = standing_here(paper_table("1"), "mnist", runs)
    assert found is not None and found.place == 1


def test_one_method_alone_has_no_standing(tmp_path):
    runs = _runs(tmp_path, "mnist", {"bfno-node": [0.9]})
    assert standing_here(paper_table("1"), "mnist", runs) is None


def test_fewer_seeds_than_others_have_are_told(tmp_path):
    runs = _runs(tmp_path, "mnist", {"node": [0.9], "bfno-node": [0.8, 0.8]}, "test_accuracy")
    found = str(standing_here(paper_table("1"), "mnist", runs))
    assert found.startswith("NODE 0.9000 (1 of 2 seeds); BFNO-NODE 0.8000 ± 0.0000, place 2 of 2")
