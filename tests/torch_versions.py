"""What torch 2.6, the oldest version that is supported, cannot do yet."""

import re

import pytest
import torch

_found = re.match(r"(\d+)\.(\d+)", torch.__version__)
assert _found is not None
_is_old = (int(_found[1]), int(_found[2])) < (2, 7)


def newer_torch(what: str) -> pytest.MarkDecorator:
    """Leaves a test out where torch is too old for it.

    Args:
        what: What an old torch cannot do.
    """
    return pytest.mark.skipif(_is_old, reason=f"torch {torch.__version__} cannot {what}")


ONE_GRAPH = newer_torch("compile this as one graph")
EXPORT_WARNINGS = pytest.mark.filterwarnings(
    # Of torch 2.6, about constants of the graphs that it makes itself.
    "ignore:Attempted to insert a get_attr Node with no underlying reference:UserWarning",
    "ignore:Node .* does not reference an nn.Module:UserWarning",
    "ignore:Additional .* warnings suppressed about get_attr references:UserWarning",
)
