"""Runs `aerobee …` and `python …` for a shell, each in a fork of a process that has everything loaded.

A page runs some ten commands, and starting an interpreter takes longer than most of them. `stub.py` is what the shell finds
under both names: it hands its arguments, directory, environment and standard streams over and ends as the fork does. A
stub that is killed takes its fork with it.

    python fork_server.py SOCKET
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from typing import Any

LOADED = (
    *(
        f"aerobee.ops.commands.{name}"
        for name in ("send", "consume", "topic", "group", "offset", "dlq", "message", "trace")
    ),
    "aerobee.ops.diagnosis.why",
    "aerobee.client",
    "aerobee.client.dedup.sql",
    "opentelemetry.sdk.trace.export",
    "sqlalchemy",
)


def main(path: str) -> None:
    for name in LOADED:
        importlib.import_module(name)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        print("ready", flush=True)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                serve(connection)
            connection.close()


def serve(connection: socket.socket) -> None:
    """Run what one stub asks for and tell it the exit code; never returns."""
    data, streams, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    wanted = json.loads(data)
    child = os.fork()
    if child == 0:
        connection.close()
        code = 70
        try:
            code = run(wanted, streams)
        except BaseException:
            traceback.print_exc()
        finally:
            flush()
            os._exit(code)
    for stream in streams:
        os.close(stream)
    watched = os.pidfd_open(child)
    awaited: list[Any] = [watched, connection]
    if watched not in select.select(awaited, [], [])[0]:
        os.kill(child, signal.SIGTERM)  # the stub is gone
        if not select.select([watched], [], [], 5)[0]:
            os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(OSError):  # no caller waits for it any more
        connection.sendall(bytes([code & 0xFF]))
    os._exit(0)


def run(wanted: dict[str, Any], streams: list[int]) -> int:
    """Become what the stub was called as."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(wanted["directory"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    # The streams live as long as the fork does.
    sys.stdout = open(1, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    arguments = wanted["arguments"]
    if os.path.basename(arguments[0]) == "aerobee":
        return int(importlib.import_module("aerobee.ops.commands.tree").run_cli(arguments[1:]))
    return run_python(arguments[1:])


def run_python(arguments: list[str]) -> int:
    """`python SCRIPT …` or `python -m MODULE …`, as the interpreter does it."""
    is_module = arguments[0] == "-m"
    sys.argv = arguments[is_module:]
    sys.path.insert(0, os.getcwd() if is_module else os.path.dirname(os.path.abspath(arguments[0])))
    try:
        if is_module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # who read it is gone
            stream.flush()


if __name__ == "__main__":
    main(sys.argv[1])
