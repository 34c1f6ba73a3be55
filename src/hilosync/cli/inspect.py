"""`hilo inspect`: what a log holds, without replaying it."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from hilosync.errors import ConfigurationError, LogNotFound, WireError
from hilosync.log import Log, open_log
from hilosync.protocol import Run
from hilosync.wire import decode_record, record_hash

__all__ = ["command"]


@click.command("inspect")
@click.argument("log")
@click.option("--version", type=click.IntRange(1), help="Show one record, block by block.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(log: str, version: int | None, as_json: bool) -> None:
    """Show the versions in LOG (an address, or a run folder): bytes, ranks, scalars, digests."""
    opened = open_log(log)
    genesis = opened.steps.read(0)
    if genesis is None:
        raise LogNotFound(f"no run at {opened.url}: record 0 is missing")
    run = Run.of(genesis)
    head = opened.steps.head()
    if version is not None:
        if version > head:
            raise ConfigurationError(f"{opened.url} has no version {version}: the newest is {head}")
        result = _record(opened, run, version) | {"blocks": _blocks(opened, run, version)}
    else:
        result = _run(opened, run, head) | {"records": [_record(opened, run, number) for number in range(1, head + 1)]}
    if as_json:
        click.echo(json.dumps(result))
    else:
        _show(result, run)


def _run(opened: Log, run: Run, head: int) -> dict[str, Any]:
    genesis = run.genesis
    return {
        "log": opened.url,
        "run": genesis.run,
        "created_by": genesis.created_by,
        "base_model": genesis.base_model,
        "optimizer": genesis.optimizer.name,
        "compressor": genesis.compressor.name,
        "budget": genesis.budget,
        "adapter_bytes": run.plan.adapter_bytes,
        "tensors": len(run.plan.blocks),
        "parameters": run.plan.size,
        "seed": genesis.seed,
        "versions": head,
    }


def _read(opened: Log, run: Run, version: int):
    data = opened.steps.read(version)
    if data is None:
        raise LogNotFound(f"record {version} of {opened.url} is missing")
    try:
        return data, decode_record(data, run.limits)
    except WireError as error:
        raise type(error)(f"record {version} of {opened.url}: {error}") from error


def _blocks(opened: Log, run: Run, version: int) -> list[dict[str, Any]]:
    _, record = _read(opened, run, version)
    rows = run.compressor.describe(run.plan, record.payload)
    return [row | {"tag": f"{tag:04x}"} for row, tag in zip(rows, record.tags.tolist(), strict=True)]


def _record(opened: Log, run: Run, version: int) -> dict[str, Any]:
    data, record = _read(opened, run, version)
    blocks = run.compressor.describe(run.plan, record.payload)
    names = run.optimizer.scalar_names
    return {
        "version": version,
        "epoch": record.epoch,
        "bytes": len(data),
        "payload_bytes": len(record.payload),
        "of_adapter": len(data) / run.plan.adapter_bytes,
        "rank_mean": sum(block["rank"] for block in blocks) / len(blocks),
        "rank_max": max(block["rank"] for block in blocks),
        "scalars": [dict(zip(names, row, strict=True)) for row in record.scalars.tolist()],
        "hash": record_hash(data).hex(),
        "digest": record.digest.hex(),
    }


def _show(result: dict[str, Any], run: Run) -> None:
    console = Console()
    rows = result.get("records", [result])
    if "records" in result:
        for key in ("log", "run", "created_by", "base_model", "optimizer", "compressor", "seed", "versions"):
            console.print(f"{key:12} {result[key]}", highlight=False)
        budget = "none" if result["budget"] is None else f"{result['budget']:,} bytes"
        console.print(
            f"{'adapter':12} {result['tensors']} tensors, {result['parameters']:,} parameters, "
            f"{result['adapter_bytes']:,} bytes; budget {budget}",
            highlight=False,
        )
    scalar_names = run.optimizer.scalar_names
    shown = [name for name in ("step_size", "lr", "decay") if name in scalar_names][:2]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("version", "epoch", "bytes", "of adapter", "rank mean", "rank max", *shown, "digest"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            str(row["version"]),
            str(row["epoch"]),
            f"{row['bytes']:,}",
            f"{100 * row['of_adapter']:.2f}%",
            f"{row['rank_mean']:.2f}",
            str(row["rank_max"]),
            *(f"{row['scalars'][0][name]:.6g}" for name in shown),
            row["digest"][:16],
        )
    console.print(table)
    if "blocks" in result:
        scalars = ", ".join(f"{name} {value:.9g}" for name, value in (result["scalars"] or [{}])[0].items())
        console.print(f"scalars      {scalars or 'none'}", highlight=False)
        blocks = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("tensor", "rank", "bytes", "tag"):
            blocks.add_column(heading, justify="left" if heading == "tensor" else "right")
        for block in result["blocks"]:
            blocks.add_row(block["name"], str(block["rank"]), f"{block['bytes']:,}", block["tag"])
        console.print(blocks)
