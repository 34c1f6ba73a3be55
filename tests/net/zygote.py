"""Starts `hilo` as often as it is told to, each time as a process of its own, but imports it only once.

It reads a JSON object a line: `space` (a network namespace to be in, or null), `arguments`, `variables`,
`output` (where the process's words go), and `code` (where its exit code is written in the end). It answers
with the process's number.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

CLONE_NEWNET = 0x40000000


def warm_up() -> None:
    """Imports, and has loaded, what every process would load."""
    import reasoning_gym  # noqa: F401

    import hilosync.cli.learn
    import hilosync.cli.work  # noqa: F401
    from hilosync.rl.recipe import Recipe

    Recipe().engine()


def serve() -> None:
    """Returns in each of the processes that are to be `hilo`."""
    for line in sys.stdin:
        asked = json.loads(line)
        reading, writing = os.pipe()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            number = os.fork()
            if number == 0:
                become(asked)
                return
            os.write(writing, b"%d\n" % number)
            os.close(writing)
            _, status = os.waitpid(number, 0)
            code = Path(asked["code"])
            code.with_suffix(".part").write_text(str(os.waitstatus_to_exitcode(status)))
            code.with_suffix(".part").replace(code)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as number:
            sys.stdout.write(number.readline())
            sys.stdout.flush()
    os._exit(0)


def become(asked: dict) -> None:
    with Path(asked["output"]).open("wb") as output, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    if asked["space"] is not None:
        with Path(asked["space"]).open("rb") as space:
            if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "cannot enter the namespace")
    os.environ.update(asked["variables"])
    sys.argv = ["hilo", *asked["arguments"]]


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    warm_up()
    serve()
    from hilosync.cli.main import main

    main()
