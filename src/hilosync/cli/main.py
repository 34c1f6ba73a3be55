"""The entry point: commands by name, and one clear line for every error.

Exit codes: 0 done; 1 verification failed; 2 bad input or a refusing storage; 3 the other side is
silent; 130 interrupted. Results go to standard output, progress and tables to standard error.
"""

from __future__ import annotations

import errno
import importlib
import sys

import click
from rich.console import Console

from hilosync.errors import HiLoError

__all__ = ["hilo", "main"]

_COMMANDS = {
    "bench": "Measure: replay, codecs, learning, recovery, networks.",
    "demo": "Watch a learner and two workers train a tiny model.",
    "inspect": "Show what a log holds.",
    "learn": "Run the learner of a run.",
    "ticket": "Print what a new worker needs to join a run.",
    "relay": "Serve a log's records and snapshots over HTTP, from memory.",
    "simulate": "Run learner and workers in virtual time, under injected faults.",
    "verify": "Fold a whole log and check every digest.",
    "work": "Run one worker of a run.",
}


class _Lazy(click.Group):
    """Imports a command's module when it is called: `hilo --help` loads no torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        return importlib.import_module(f"hilosync.cli.{cmd_name}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="hilosync", prog_name="hilo")
def hilo() -> None:
    """Keep rollout workers on the learner's exact policy while about 1 % of the bytes cross the wire."""


def main() -> None:
    """Runs the command line and exits with its code."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        sys.exit(hilo.main(standalone_mode=False))
    except HiLoError as error:
        console.print(f"[bold red]{type(error).__name__}[/]: ", end="")
        console.print(str(error), markup=False)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        console.print("interrupted")
        sys.exit(130)
    except OSError as error:
        # A full disk or a missing permission outside the log (a summary, a picture) is the user's to
        # mend; any other operating system error is ours, and shows its traceback.
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EFBIG):
            raise
        console.print(f"[bold red]{error.strerror}[/]: {error.filename or 'while writing'}", markup=True)
        sys.exit(2)
