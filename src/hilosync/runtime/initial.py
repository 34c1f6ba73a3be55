"""The stored adapter that a run starts from, where it does not start from its seed."""

from __future__ import annotations

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors

from hilosync.errors import MalformedRecord
from hilosync.log import Log
from hilosync.protocol import Run

__all__ = ["stored_parameters"]


def stored_parameters(log: Log, run: Run) -> torch.Tensor | None:
    """The fp32 parameters of version 0 as the log stores them; None where they follow from the seed.

    Raises:
        LogNotFound: the blob is gone.
        MalformedRecord: it is damaged, or no adapter.
    """
    if run.genesis.initial == "seed":
        return None
    try:
        return load_safetensors(log.blobs.get(run.genesis.initial))["params"]
    except (SafetensorError, KeyError) as error:
        raise MalformedRecord(
            f"the initial adapter {run.genesis.initial[:16]}… of {log.url} is not one: expected a safetensors blob "
            f"with a tensor 'params', got {error}"
        ) from error
