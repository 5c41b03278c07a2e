from bfno.lab.views.layout import cell_text
from bfno.lab.views.methods import replicates
from bfno.lab.views.record import read_runs
from bfno.lab.views.tables import method_table
from tests.lab.views.runs import result, write_run


def _table(tmp_path, **costs: dict[str, float]):
    runs = [
        write_run(tmp_path, method=method, result=result(0.9 + place / 100, **cost))
        for place, (method, cost) in enumerate(costs.items())
    ]
    return method_table(replicates(read_runs(runs)))


def test_the_result_comes_right_after_the_method_and_parameters_after_the_loss(tmp_path):
    table = _table(tmp_path, node={}, anode={})
    assert [column.key for column in table.columns][:5] == [
        *("method", "test_accuracy", "train_loss", "parameters"),
        "forward_nfe",
    ]
    assert [cell_text(cell) for cell in table.rows[0]][:4] == [
        "anode",
        "0.9100",
        "0.0500",
        "20,123",
    ]
    assert table.best == {(0, 1)}


def test_what_the_heading_says_is_no_column(tmp_path):
    config = {"data": {"protocol": "sound"}}
    folder = write_run(tmp_path, "physionet", result={"test_auroc": 0.8}, config=config)
    table = method_table(replicates(read_runs([folder])))
    keys = {column.key for column in table.columns}
    assert not keys & {"data", "scale", "protocol"} and "test_auroc" in keys


def test_evaluations_that_nobody_makes_are_left_out_and_explained(tmp_path):
    table = _table(tmp_path, node={"backward_nfe": 0.0}, anode={"backward_nfe": 0.0})
    keys = [column.key for column in table.columns]
    assert "backward_nfe" not in keys and "forward_nfe" in keys
    steps = "the gradient goes through the solver's own steps."
    assert table.notes == (f"NFE backward is 0 and left out: {steps}",)


def test_evaluations_that_some_make_are_shown_and_explained(tmp_path):
    table = _table(tmp_path, node={"backward_nfe": 0.0}, anode={})
    assert "backward_nfe" in [column.key for column in table.columns]
    steps = "the gradient goes through the solver's own steps."
    assert table.notes == (f"Where only NFE backward is 0, {steps}",)


def test_a_model_without_a_solver_has_no_gradient_through_one(tmp_path):
    nothing = {"forward_nfe": 0.0, "backward_nfe": 0.0, "test_nfe": 0.0}
    assert _table(tmp_path, rnn=nothing, node={}).notes == ()
