"""Byte budgets: how a user names them, and how many bytes they are for a plan.

    "1.6%"        fraction of the adapter as an engine is served it (bf16)
    "rank 1"      one bf16 rank of every block; "rank 0.25" is a quarter of that
    2_229_248     bytes
    None          no limit

A budget is for a whole record, header included.
"""

from __future__ import annotations

import math
import re
import sys

from hilosync.errors import ConfigurationError
from hilosync.plan import AdapterPlan

__all__ = ["UNLIMITED", "budget_bytes"]

UNLIMITED = sys.maxsize
"""Bytes of a budget that is no limit."""

_NUMBER = r"(\d+(?:\.\d+)?)"
_FRACTION = re.compile(_NUMBER + r"\s*%")
_RANK = re.compile(r"rank\s+" + _NUMBER)
_BYTES = re.compile(r"\d+")


def budget_bytes(budget: str | int | None, plan: AdapterPlan) -> int:
    """Bytes of a budget for this plan, rounded down.

    Args:
        budget: a fraction of the adapter (``"1.6%"``), an equivalent rank (``"rank 1"``), bytes as
            an int or as digits, or None for no limit.
        plan: the adapter's tensors.

    Raises:
        ConfigurationError: the budget is of no known form, or is zero bytes.
    """
    if budget is None:
        return UNLIMITED
    if isinstance(budget, str):
        text = budget.strip()
        if match := _FRACTION.fullmatch(text):
            size = math.floor(float(match[1]) / 100 * plan.adapter_bytes)
        elif match := _RANK.fullmatch(text):
            size = math.floor(float(match[1]) * plan.one_rank_bytes())
        elif _BYTES.fullmatch(text):
            size = int(text)
        else:
            raise _unreadable(budget)
    elif isinstance(budget, int) and not isinstance(budget, bool):
        size = budget
    else:
        raise _unreadable(budget)
    if size < 1:
        raise ConfigurationError(
            f"the budget {budget!r} is {size} bytes of the {plan.adapter_bytes}-byte adapter: "
            "expected at least one byte; give a larger fraction, rank or number of bytes"
        )
    return min(size, UNLIMITED)


def _unreadable(budget: object) -> ConfigurationError:
    return ConfigurationError(
        f"cannot read the budget {budget!r}: expected a fraction of the adapter such as '1.6%', "
        "an equivalent rank such as 'rank 1', or a number of bytes"
    )
