"""Encoder states as flat dicts of tensors, which a learner's checkpoint holds beside E.

A state that does not fit, because it is another compressor's or another plan's, is refused by name
instead of going into the next payload.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from hilosync.errors import ConfigurationError

__all__ = ["require_names", "saved_scalar", "saved_tensor", "scalar_tensor"]


def require_names(compressor: str, tensors: Mapping[str, torch.Tensor], names: Iterable[str]) -> None:
    """Checks that a saved state has exactly these tensors.

    Raises:
        ConfigurationError: one is missing or is too many; names it.
    """
    expected = set(names)
    if found := sorted(expected ^ tensors.keys()):
        what = "lacks" if found[0] in expected else "has an unknown"
        raise ConfigurationError(
            f"the saved encoder state {what} tensor {found[0]!r}: it is not one of {compressor!r} for this plan; "
            "take the checkpoint of this run"
        )


def scalar_tensor(value: float) -> torch.Tensor:
    """A number as a saved state holds it: 0-d, fp64."""
    return torch.tensor(value, dtype=torch.float64)


def saved_scalar(tensors: Mapping[str, torch.Tensor], name: str) -> float:
    """A finite number of 0 or more out of a saved state.

    Raises:
        ConfigurationError: the tensor is not 0-d fp64, or holds something else.
    """
    value = saved_tensor(tensors, name, (), torch.float64).item()
    if value < 0:
        raise ConfigurationError(f"the saved encoder state has {name} = {value}: expected 0 or more")
    return value


def saved_tensor(
    tensors: Mapping[str, torch.Tensor], name: str, shape: tuple[int | None, ...], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """A finite tensor out of a saved state; None in `shape` stands for any length.

    Raises:
        ConfigurationError: shape or dtype are others, or the tensor holds NaN or Inf.
    """
    tensor = tensors[name]
    fits = len(tensor.shape) == len(shape) and all(
        want in (None, got) for want, got in zip(shape, tensor.shape, strict=True)
    )
    if not fits or tensor.dtype != dtype or not bool(torch.isfinite(tensor).all()):
        raise ConfigurationError(
            f"the saved encoder state has {name} of shape {tuple(tensor.shape)} and {tensor.dtype}: expected finite "
            f"values of shape {shape} and {dtype}; take the checkpoint of this run"
        )
    return tensor
