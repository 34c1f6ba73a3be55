"""How a process finds its run: by the address of its log, or by a ticket that also says which run it must be."""

from __future__ import annotations

import stat
from pathlib import Path

from hilosync.errors import BadTicket, ConfigurationError, LogNotFound, PlanMismatch, RunMismatch
from hilosync.log import Log, absolute_address, open_log
from hilosync.protocol import Run
from hilosync.wire import Ticket, decode_ticket, is_ticket

__all__ = ["check_ticket", "open_run", "ticket_of"]

_LARGEST_TICKET_FILE = 4096


def ticket_of(log: Log, run: Run) -> Ticket:
    """The ticket of a run; a `file:` address in it is absolute, for another folder or a shared file system."""
    return Ticket(
        url=absolute_address(log.url),
        run=run.genesis.run_id,
        plan=run.plan.fingerprint,
        configuration=run.configuration,
        origin=run.origin,
        key=None if run.genesis.key is None else bytes.fromhex(run.genesis.key),
    )


def open_run(where: str | Ticket | Log, wait: float = 0.0) -> tuple[Log, Run]:
    """Opens the log of a run and reads its genesis.

    Args:
        where: an address such as ``file:runs/demo``, a join ticket, the path of a file that holds one, or an
            open log.
        wait: seconds to wait for the run to begin.

    Raises:
        LogNotFound: there is no run at this address within `wait` seconds.
        BadTicket: the ticket is mistyped, or of a format that this program does not read.
        RunMismatch, PlanMismatch: the run is not the ticket's; with both values.
        LogUnavailable: the storage did not answer.
    """
    ticket = _ticket_in(where) if isinstance(where, str) else where if isinstance(where, Ticket) else None
    address = ticket.url if ticket is not None else where
    assert not isinstance(address, Ticket)
    log = open_log(address, wait=wait) if isinstance(address, str) else address
    genesis = log.steps.read(0, wait=wait)
    if genesis is None:
        raise LogNotFound(f"no run has begun at {log.url} within {wait:.0f} s: start its learner, or check the address")
    run = Run.of(genesis)
    if ticket is not None:
        check_ticket(ticket, log, run)
    return log, run


def check_ticket(ticket: Ticket, log: Log, run: Run) -> None:
    """Refuses a run that is not the ticket's.

    Raises:
        RunMismatch, PlanMismatch: with both values.
    """
    found = ticket_of(log, run)
    for name, error, expected, got in (
        ("run", RunMismatch, ticket.run, found.run),
        ("plan", PlanMismatch, ticket.plan, found.plan),
        ("configuration", RunMismatch, ticket.configuration, found.configuration),
        ("signing key", RunMismatch, ticket.key or b"", found.key or b""),
        ("genesis", RunMismatch, ticket.origin, found.origin),
    ):
        if expected != got:
            raise error(
                f"{log.url} holds {name} {got.hex() or 'none'}, the join ticket is for {expected.hex() or 'none'}: ask "
                "for the ticket of the run that is there now, or join the log of the ticket's run"
            )


def _ticket_in(where: str) -> Ticket | None:
    """The ticket that a text is, or that the file of this name holds; None where it is an address."""
    if is_ticket(where):
        return decode_ticket(where)
    try:
        path = Path(where).expanduser()
        status = path.stat()
    except (OSError, ValueError, RuntimeError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    if status.st_size > _LARGEST_TICKET_FILE:
        raise BadTicket(
            f"{where} has {status.st_size} bytes: expected a join ticket of at most {_LARGEST_TICKET_FILE}, or the "
            "folder of a run"
        )
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read a join ticket from {where}: {error}") from error
    return decode_ticket(text)
