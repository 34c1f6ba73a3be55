"""The bar of commands that measure many things one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["counting_bar"]


@contextmanager
def counting_bar(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar on standard error, named for what it counts, and a line for everything that is told.

    Yields:
        To be called with what is done, of how much, and a line of text.
    """
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)

        def tell(done: int, total: int, message: str) -> None:
            bar.update(task, completed=done, total=total)
            bar.console.print(message, highlight=False, soft_wrap=True)

        yield tell
