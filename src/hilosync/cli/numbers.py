"""Numbers on the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

__all__ = ["Number", "Seconds", "seconds_option"]


class Number(click.FloatRange):
    """A range of numbers. NaN lies in none: of that no comparison holds, so that none refuses it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType.convert`."""
        number = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value!r}: expected a number", param, ctx)
        return number


class Seconds(click.ParamType):
    """A time to wait, which ends."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See `click.ParamType.convert`."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < 1e9:
            self.fail(f"{value!r}: expected a number of seconds, such as 300", param, ctx)
        return seconds


def seconds_option(flag: str, default: float, what: str) -> Callable[[Any], Any]:
    """An option of a time to wait; `what` is its help."""
    return click.option(flag, default=default, show_default=True, type=Seconds(), help=what)
