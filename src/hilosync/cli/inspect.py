"""`hilo inspect`: what a log holds, without replaying it."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.table import Table

from hilosync.cli.extent import Extent, extent_of
from hilosync.cli.tables import table_console
from hilosync.errors import ConfigurationError, LogNotFound, MalformedRecord, WireError
from hilosync.log import Log
from hilosync.protocol import Run
from hilosync.runtime.joining import open_run
from hilosync.runtime.snapshots import read_manifest
from hilosync.wire import decode_record, record_hash

__all__ = ["command"]


@click.command("inspect")
@click.argument("log")
@click.option("--version", type=click.IntRange(1), help="Show one record, block by block.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(log: str, version: int | None, as_json: bool) -> None:
    """Show the versions in LOG (an address, a run folder or a join ticket): bytes, ranks, scalars, digests, snapshots.

    Exits with 1 after showing what there is, if a record is missing.
    """
    opened, run = open_run(log)
    extent = extent_of(opened.steps)
    if version is not None:
        missing = []
        result = _one(opened, run, extent, version)
    else:
        numbers = range(extent.oldest, extent.newest + 1)
        records = {number: _record(opened, run, number) for number in numbers}
        missing = [number for number in numbers if records[number] is None]
        result = _run(opened, run, extent) | {
            "missing": missing,
            "snapshots": _snapshots(opened, run),
            "records": [record for record in records.values() if record is not None],
        }
    if as_json:
        click.echo(json.dumps(result))
    else:
        _show(result, run)
        if version is None and extent.removed:
            click.echo(f"{extent.removed}: retention keeps what the oldest snapshot needs")
    if missing:
        raise MalformedRecord(extent.hole_at(missing[0], opened.url))


def _one(opened: Log, run: Run, extent: Extent, version: int) -> dict[str, Any]:
    if version > extent.newest:
        raise ConfigurationError(f"{opened.url} has no version {version}: the newest is {extent.newest}")
    if version < extent.oldest:
        raise ConfigurationError(f"{opened.url} has no version {version}: {extent.removed} by retention")
    found = _record(opened, run, version, by_block=True)
    if found is None:
        raise MalformedRecord(extent.hole_at(version, opened.url))
    return found


def _snapshots(opened: Log, run: Run) -> list[dict[str, Any]]:
    """Each snapshot with its digest and number of chunks, or with what is wrong with its manifest."""
    found = []
    for version in opened.snapshots.versions():
        try:
            manifest = read_manifest(opened, run, version)
        except (LogNotFound, WireError, ConfigurationError) as error:
            found.append({"version": version, "error": str(error)})
            continue
        found.append({"version": version, "digest": manifest.digest.hex(), "chunks": len(manifest.chunks)})
    return found


def _run(opened: Log, run: Run, extent: Extent) -> dict[str, Any]:
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
        "versions": extent.newest,
        "oldest_record": extent.oldest,
    }


def _record(opened: Log, run: Run, version: int, by_block: bool = False) -> dict[str, Any] | None:
    """What a record holds, or None if it is missing."""
    data = opened.steps.read(version)
    if data is None:
        return None
    try:
        record = decode_record(data, run.limits)
    except WireError as error:
        raise type(error)(f"record {version} of {opened.url}: {error}") from error
    blocks = run.compressor.describe(run.plan, record.payload)
    names = run.optimizer.scalar_names
    found = {
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
    if by_block:
        tags = record.tags.tolist()
        found["blocks"] = [row | {"tag": f"{tag:04x}"} for row, tag in zip(blocks, tags, strict=True)]
    return found


def _show(result: dict[str, Any], run: Run) -> None:
    console = table_console(stderr=False)
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
        for row in result["snapshots"]:
            what = row.get("error") or f"digest {row['digest'][:16]}, {row['chunks']} chunks"
            console.print(f"{'snapshot':12} version {row['version']}: {what}", highlight=False, soft_wrap=True)
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
