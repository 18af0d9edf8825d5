"""`aerobee store`: verify every record and queue entry of a store directory, and repair damage."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from aerobee.client.session.contexts import Context, cluster
from aerobee.client.session.stored_records import StoredRecords
from aerobee.errors import StoreError, UsageError
from aerobee.ops.options.options import AsJson
from aerobee.ops.servers.serving import Assignments, ConfigPath, flags_of
from aerobee.ops.settings.settings import broker_settings
from aerobee.ops.terminal.failure import ExitCode
from aerobee.ops.terminal.output import Output
from aerobee.store.files.config import StoreConfig
from aerobee.store.verify.checker import StoreReport, verify
from aerobee.store.verify.repair import repair
from aerobee.store.verify.restore import Restored, records_of_directory, restore
from aerobee.words import plural

app = typer.Typer(help="Verify and repair a broker's files.", no_args_is_help=True)
Data = Annotated[Path | None, typer.Option("--data", metavar="DIRECTORY", help="The store's directory.")]
SHOWN_MAX = 20


def _config(config: str | None, data: Path | None, assignments: list[str] | None, out: Output) -> StoreConfig:
    flags = flags_of(("storePathRootDir", str(data.absolute()) if data else None, "--data"))
    settings = broker_settings(path=config, assignments=assignments or (), flags=flags, note=out.note).store
    if not Path(settings.commit_log_dir).is_dir():
        root = settings.store_path_root_dir
        inside = sorted(str(each.parent) for each in Path(root).glob("*/commitlog"))
        advice = f": name one of {', '.join(inside)}" if inside else ""
        raise StoreError(
            f"{root} has no store: {settings.commit_log_dir} is not a directory{advice}", path=root
        )
    return settings


@app.command("verify")
def verify_store(
    config: ConfigPath = None,
    data: Data = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Read every record and compare it with its queue entry. Changes nothing; the broker may be running."""
    out = Output(as_json)
    report = verify(_config(config, data, assignments, out))
    out.document({"whole": report.is_whole, **dataclasses.asdict(report)}, "\n".join(_lines(report)))
    raise typer.Exit(int(ExitCode.DONE if report.is_whole else ExitCode.REFUSED))


@app.command("repair")
def repair_store(
    config: ConfigPath = None,
    data: Data = None,
    assignments: Assignments = None,
    replica: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="HOST:PORT",
            help="Restore damaged records from this running broker, a replica.",
        ),
    ] = None,
    replica_store: Annotated[
        Path | None,
        typer.Option(
            "--from-store",
            metavar="DIRECTORY",
            help="Restore damaged records from a copy of a replica's store.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild queues and indexes from the log, without its damaged records. The broker must be stopped."""
    out = Output(as_json)
    if replica is not None and replica_store is not None:
        raise UsageError("--from and --from-store are mutually exclusive")
    store = _config(config, data, assignments, out)
    notes: list[str] = []
    if replica is not None or replica_store is not None:
        if replica is not None:
            done, source = _restore_from_broker(store, replica), replica
        else:
            assert replica_store is not None
            done, source = restore(store, records_of_directory(replica_store)), str(replica_store)
        notes = _restored_lines(done, source)
        if done.refused:
            # A repair would overwrite these ranges and drop their queue entries: the operator has to decide that.
            notes.append(
                "not repaired: use the right replica, or run again without --from and --from-store to drop these records"
            )
            out.document({"done": notes}, "\n".join(notes))
            raise typer.Exit(int(ExitCode.REFUSED))
    notes += repair(store)
    out.document({"done": notes}, "\n".join(notes))


def _restore_from_broker(config: StoreConfig, address: str) -> Restored:
    """Restore with the keys and TLS options of the context or the environment."""
    found = cluster(given=Context(nameserver=address))
    with asyncio.Runner() as runner:
        source = StoredRecords(address, found.client)

        def record_at(offset: int) -> bytes | None:
            return runner.run(source.record_at(offset))

        try:
            return restore(config, record_at)
        finally:
            runner.run(source.close())


def _restored_lines(done: Restored, source: str) -> list[str]:
    return [
        f"restored {plural(done.records, 'record')}, {plural(done.bytes, 'byte')}, from {source}; "
        "the damaged bytes are in damaged/",
        *(f"not restored: {each}" for each in done.refused),
    ]


def _lines(report: StoreReport) -> list[str]:
    """The report as text."""
    lines = [
        f"{plural(report.records, 'record')} in log bytes {report.log_min} to {report.log_end}, {plural(report.queues, 'queue')}",
        f"{plural(report.damaged_count, 'damaged range')} of the log, {plural(report.damaged_bytes, 'byte')}",
    ]
    lines += [
        f"  log bytes {damage.start} to {damage.stop}, in {damage.path}: {damage.reason}"
        for damage in report.damaged[:SHOWN_MAX]
    ]
    lines.append(f"{plural(report.wrong_count, 'record')} without a correct queue entry")
    lines += [
        f"  message {each.queue_offset} of queue {each.queue_id} of {each.topic}, at log byte {each.physical_offset}"
        for each in report.wrong[:SHOWN_MAX]
    ]
    lines += report.faults
    if not report.is_whole:
        lines.append(
            "stop the broker and run `aerobee store repair`, which rebuilds queues and indexes from the log"
            + ("; --from HOST:PORT restores damaged records from a replica" if report.damaged_count else "")
        )
    return lines
