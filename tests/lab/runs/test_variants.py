"""Which settings make a table another, and what it is called then."""

import pytest

from bfno.lab.experiments.resolve import changed_settings, resolve
from bfno.lab.paper.numbers import paper_table, table_names
from bfno.lab.runs.variants import PROTOCOLS, Variant, variant_of

COUNTED, LEAN = (tuple(sorted(PROTOCOLS[name].changes)) for name in ("counted", "lean"))


CASES = [
    (table, data, protocol)
    for table in map(paper_table, table_names())
    for protocol in sorted(PROTOCOLS.keys() & table.protocols.keys())
    for data in table.titles
]


@pytest.mark.parametrize(("table", "data", "protocol"), CASES)
def test_a_protocol_changes_all_its_settings_in_every_experiment_of_a_table(table, data, protocol):
    # Otherwise a run would not be known by its changes as one of the protocol.
    known = PROTOCOLS[protocol]
    for name in filter(None, (row.experiment(data) for row in table.rows)):
        config = resolve(name, scale=known.scale or "cpu", changes=known.settings)
        assert set(changed_settings(config)) == known.changes


@pytest.mark.parametrize(
    ("changes", "folder", "title"),
    [
        (COUNTED, "cpu-counted", "protocol counted"),
        ((*LEAN, "train.epochs=3"), "cpu-lean-epochs-3", "protocol lean, train.epochs=3"),
        (COUNTED[1:], None, None),  # all but one of its settings are not the protocol
        ((*COUNTED, "train.lr=0.5"), None, None),
        (('solver.memory="2 GB"',), "cpu-memory-2-GB", "solver.memory=2 GB"),
    ],
)
def test_a_protocol_is_called_by_its_name(changes, folder, title):
    found = variant_of(changes)
    assert (found and found.folder("cpu"), found and found.title) == (folder, title)


def test_the_words_of_a_variant_ask_for_it_again():
    assert Variant(LEAN).words == ["--protocol", "lean"]
    assert Variant.of([*LEAN, "train.epochs=3"]).words[2:] == ["--set", "train.epochs=3"]
    assert Variant(COUNTED).measures == "nfe" and Variant(LEAN).measures == ""
