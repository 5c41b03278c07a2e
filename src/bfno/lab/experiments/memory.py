"""Samples in the memory of a Python program, as the data of an experiment."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from bfno.lab.errors import ConfigError
from bfno.lab.experiments.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor  # not at run time: tables read records without it

__all__ = ["MEMORY", "InMemory", "fingerprint", "gone", "is_in_memory", "source_of"]

MEMORY = "memory"
"""The `data.name` of such samples; only the program that holds them can train on them."""


class InMemory(Settings):
    """Settings of samples in memory, common to all kinds.

    Attributes:
        samples: `fingerprint` of the samples and labels, by which a run recognises them; empty in
            settings that do not belong to a run.
    """

    samples: str = ""


def is_in_memory(settings: Any) -> bool:
    """Whether settings of data, parsed or not, are for samples in memory."""
    is_raw = isinstance(settings, dict)
    return (settings.get("name") if is_raw else getattr(settings, "name", None)) == MEMORY


def source_of(settings: Any) -> str:
    """`memory` or `files`: which of two kinds of settings these are."""
    return "memory" if is_in_memory(settings) else "files"


def fingerprint(*tensors: Tensor) -> str:
    """A checksum that identifies the samples.

    Example:
        >>> import torch
        >>> fingerprint(torch.zeros(2)) == fingerprint(torch.zeros(2, 1))
        False
    """
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype} ".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


def gone() -> ConfigError:
    """The error when a run's samples are needed that never were files."""
    why = "were in the memory of the program that trained this run, and are not here"
    fix = "call fit of the estimator again with the same samples and checkpoints=FOLDER"
    return ConfigError("the samples", why, fix)
