"""Runs command lines inside a test, and lets a test that fails show what the commands said."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, overload

import pytest

from aerobee.ops.commands.tree import run_cli
from tests.json_keys import check_output


class Ran(tuple[int, str, str]):
    """(exit code, standard output, standard error) of a command; equal to that tuple.

    `ran[1]`, the output alone, is for commands that have to succeed: it fails with the error text when one did not.
    Where the output of a failure is wanted, take all three apart.
    """

    arguments: tuple[str, ...] = ()

    @overload  # type: ignore[override]
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Any, ...]: ...
    def __getitem__(self, index: int | slice) -> Any:
        code, output, error = self
        if index == 1:
            # With --json the error is a document on standard output.
            assert code == 0, f"aerobee {' '.join(self.arguments)} ended with {code}: {error or output}"
        return super().__getitem__(index)


Run = Callable[..., Ran]


def make_run(capture: pytest.CaptureFixture[bytes], request: pytest.FixtureRequest) -> Run:
    """Return what runs one command line, with --json in snake_case. The report of a test that fails shows each command that ended with an error."""

    def run(*arguments: str, stdin: bytes | None = None) -> Ran:
        if stdin is not None:
            read, write = os.pipe()
            os.write(write, stdin)
            os.close(write)
            saved = os.dup(0)
            os.dup2(read, 0)
        try:
            code = run_cli(arguments)
        finally:
            if stdin is not None:
                os.dup2(saved, 0)
                os.close(read)
                os.close(saved)
        captured = capture.readouterr()
        ran = Ran((code, captured.out.decode(), captured.err.decode()))
        ran.arguments = arguments
        check_output(arguments, captured.out.decode())
        if code:
            text = f"$ aerobee {' '.join(arguments)}\nended with {code}\n{captured.out.decode()}{captured.err.decode()}"
            request.node.add_report_section("call", "of a command", text)
        return ran

    return run
