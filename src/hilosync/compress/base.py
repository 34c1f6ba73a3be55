"""The seam between gradients and bytes: what a compressor must do."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from hilosync.arithmetic.gradient import DecodedGradient
from hilosync.plan import AdapterPlan

__all__ = ["Compressor"]


class Compressor(Protocol):
    """Turns a gradient into a payload within a byte budget, and a payload into Ĝ.

    `encode` runs on the learner only: any device, any thread count, any rounding; only its bytes
    matter. `decode` runs everywhere and is a pure function of (plan, payload): the same values on
    every machine. The learner steps with the decode of the bytes it published.

    Order: `decode` may be called for any payload in any order. Ownership: `encode` reads the
    gradient and must not keep or change it; `decode` may return views of `payload`'s memory,
    which nobody changes.

    A class attribute `takes_sums = True` says that `encode` also takes a `CorrectedGradient`: the learner's
    gradient as the two tensors that it is the sum of, which saves the memory and the passes of adding them up.
    """

    @property
    def name(self) -> str:
        """The registered name, which the run's genesis carries."""
        ...

    @property
    def budget(self) -> str | int | None:
        """Bytes of a whole record, header included: `"1.6%"`, `"rank 1"`, an int, or None (`budget_bytes`)."""
        ...

    def settings(self) -> dict[str, Any]:
        """What `decode` needs to know beyond the plan, as JSON values; part of the configuration fingerprint.

        They are keyword arguments of the compressor's constructor, whose others have defaults.
        """
        ...

    def smallest_payload(self, plan: AdapterPlan) -> int:
        """Bytes of the smallest payload that carries any gradient at all."""
        ...

    def init(self, plan: AdapterPlan) -> Any:
        """The encoder's state before the first step; None if it has none. Learner only."""
        ...

    def save_state(self, state: Any) -> dict[str, torch.Tensor]:
        """The encoder's state as contiguous tensors by name; scalars 0-d fp64, {} for no state.

        A restored encoder goes on with the payload bytes that the saved one would have written.
        """
        ...

    def load_state(self, plan: AdapterPlan, tensors: dict[str, torch.Tensor]) -> Any:
        """The state that `save_state` gave these tensors for.

        Raises:
            ConfigurationError: they are not a state of this compressor for this plan; names the tensor.
        """
        ...

    def encode(self, plan: AdapterPlan, state: Any, gradient: torch.Tensor, budget: int) -> tuple[bytes, Any]:
        """Compresses a flat fp32 gradient of `plan.size` elements to at most `budget` bytes.

        Raises:
            NonFinite: the gradient holds NaN or Inf; the message names the tensor.
            BudgetTooSmall: `budget` is below `smallest_payload`.
        """
        ...

    def decode(self, plan: AdapterPlan, payload: bytes | memoryview) -> DecodedGradient:
        """Reads Ĝ out of a payload.

        Raises:
            MalformedPayload: the bytes are not a payload of this compressor for this plan. Nothing
                larger than the plan implies is allocated before a length has been checked.
        """
        ...

    def describe(self, plan: AdapterPlan, payload: bytes | memoryview) -> list[dict[str, Any]]:
        """What a payload holds, one dict per block in plan order with at least `name`, `rank` and `bytes`.

        Raises:
            MalformedPayload: as `decode`.
        """
        ...
