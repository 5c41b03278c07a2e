"""Every Python block of the documents at the top of the repository runs as printed."""

import re
from unittest import mock

import pytest
import torch

import bfno
from tests.conftest import REPOSITORY

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _blocks():
    for name in ("README.md", "CONTRIBUTING.md"):
        text = (REPOSITORY / name).read_text()
        for block in BLOCK.finditer(text):
            line = text.count("\n", 0, block.start(1)) + 1
            # Blank lines in front make a traceback point at the line of the document.
            yield pytest.param("\n" * (line - 1) + block[1], name, id=f"{name}:{line}")


@pytest.mark.parametrize(("source", "name"), list(_blocks()))
def test_block_runs_on_its_own(source, name):
    torch.set_default_dtype(torch.float32)  # what a reader has
    with mock.patch.dict(bfno.METHODS):  # one block adds a method, which ends with the block
        exec(compile(source, name, "exec"), {"__name__": "__main__"})


def test_both_documents_have_code():
    ids = [str(block.id) for block in _blocks()]
    assert {name.split(":")[0] for name in ids} == {"README.md", "CONTRIBUTING.md"}
