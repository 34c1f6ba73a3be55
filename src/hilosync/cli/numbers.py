"""Numbers on the command line."""

from __future__ import annotations

from typing import Any

import click

__all__ = ["Number", "Seconds"]


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
