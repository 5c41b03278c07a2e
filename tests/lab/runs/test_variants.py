"""Which settings make a table another, and what it is called then."""

import pytest

from bfno.lab.experiments.resolve import changed_settings, resolve
from bfno.lab.experiments.settings import SCALES
from bfno.lab.paper.numbers import paper_table, table_names
from bfno.lab.runs.variants import PROTOCOLS, Variant, variant_of

COUNTED = tuple(sorted(PROTOCOLS["counted"].changes))


CASES = [
    (table, data, protocol, scale)
    for table in map(paper_table, table_names())
    for protocol in sorted(PROTOCOLS.keys() & table.protocols.keys())
    for scale in PROTOCOLS[protocol].scales or SCALES
    for data in table.titles
]


@pytest.mark.parametrize(("table", "data", "protocol", "scale"), CASES)
def test_a_protocol_changes_all_its_settings_in_every_experiment_of_a_table(
    table, data, protocol, scale
):
    # Otherwise a run would not be known by its changes as one of the protocol.
    known = PROTOCOLS[protocol]
    for name in filter(None, (row.experiment(data) for row in table.rows)):
        config = resolve(name, scale=scale, changes=known.settings)
        assert set(changed_settings(config)) == known.changes


def test_every_protocol_of_a_table_has_settings_but_the_usual_one():
    for table in map(paper_table, table_names()):
        assert set(list(table.protocols)[1:]) <= PROTOCOLS.keys()


@pytest.mark.parametrize(
    ("changes", "folder", "title"),
    [
        (COUNTED, "cpu-counted", "protocol counted"),
        (
            (*COUNTED, 'data.sets=["b"]'),
            "cpu-counted-sets-b",
            "protocol counted, data.sets=b",
        ),
        (("train.epochs=3",), "cpu-epochs-3", "train.epochs=3"),
        (COUNTED[1:], None, None),  # all but one of its settings are not the protocol
        ((*COUNTED, "train.lr=0.5"), None, None),
        (('solver.memory="2 GB"',), "cpu-memory-2-GB", "solver.memory=2 GB"),
    ],
)
def test_a_protocol_is_called_by_its_name(changes, folder, title):
    found = variant_of(changes)
    assert (found and found.folder("cpu"), found and found.title) == (folder, title)


def test_the_words_of_a_variant_ask_for_it_again():
    assert Variant(COUNTED).words == ["--protocol", "counted"]
    more = Variant.of([*COUNTED, "solver.memory=null"])
    assert more.words == ["--protocol", "counted", "--set", "solver.memory=null"]
    assert Variant(COUNTED).measures == "nfe" and Variant().measures == ""
