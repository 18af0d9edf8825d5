"""Runs the steps of a page against a cluster, each command by bash as a reader would.

A line of nothing but words, as most are, goes straight to the fork server: what bash and a stub would do for it is known.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.integration.pages.compare import difference, renamed, wrong_plurals
from tests.integration.pages.page import Command, Python, Step, steps

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
WITHIN_S = 120  # more than any command of a page takes on a slow machine
PARTS = ("docs", "LICENSE", "README.md", "tests", "scripts", "bench")
# What a page may use besides `aerobee` and `python`: nothing that changes the machine. Anything else is not found, and has to be
# marked as not run.
TOOLS = ("bash", "cat", "cmp", "date", "find", "grep", "head", "printf", "sleep", "sort", "sqlite3", "true")
FORKED = ("aerobee", "python")  # what stub.py is called by
NOT_PLAIN = re.compile(r"[|&;<>()$`\\*?~{}\[\]!\n]")  # what means something to a shell, in quotes or not
ADDRESS = '"127.0.0.1:9876"'
TOP_LEVEL_AWAIT = """
import ast, asyncio, inspect
code = compile(open({path!r}).read(), {name!r}, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
names = {{"__name__": "__main__"}}
if code.co_flags & inspect.CO_COROUTINE:
    asyncio.run(eval(code, names))
else:
    exec(code, names)
"""


class Desk:
    """A reader's terminal: a directory with the repository's files, a home, and the cluster's address in the environment."""

    def __init__(self, directory: Path, nameserver: str, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self._nameserver = nameserver
        self.directory = directory / "aerobee"
        self.home = directory / "home"
        commands = directory / "bin"
        for path in (self.directory, self.home, commands):
            path.mkdir(parents=True)
        for name in PARTS:
            (self.directory / name).symlink_to(ROOT / name)
        stub = f"#!/bin/sh\nexec {sys.executable} -S -E {HERE / 'stub.py'} "
        # The stub's own argv[0] is its file: the name that it was called by goes in front.
        for name in FORKED:
            (commands / name).write_text(f'{stub}{name} "$@"\n')
            (commands / name).chmod(0o755)
        for name in TOOLS:
            if found := shutil.which(name, path="/usr/local/bin:/usr/bin:/bin"):
                (commands / name).symlink_to(found)
        self.socket = str(directory / "s")
        self.environment = {
            "PATH": str(commands),
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "AEROBEE_NAMESRV_ADDR": nameserver,
            "PAGES_SOCKET": self.socket,
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",  # docs/ is the repository's, and examples may be imported
        }
        self._server: subprocess.Popen[str] | None = None

    def __enter__(self) -> Desk:
        self._server = subprocess.Popen(
            [sys.executable, str(HERE / "fork_server.py"), self.socket],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=self.environment,
        )
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.terminate()
        self._server.wait()
        assert self._server.stdout is not None
        self._server.stdout.close()

    def page_failures(self, name: str, text: str) -> list[str]:
        """Run a page; returns what went otherwise than it shows, with the line."""
        failures: list[str] = []
        names: dict[str, str] = {}
        behind: list[subprocess.Popen[str]] = []
        try:
            for step in steps(text):
                for failure in self._step_failures(step, text, names, behind):
                    failures.append(f"{name}:{step.line}: {failure}")
        finally:
            for process in behind:
                os.killpg(process.pid, signal.SIGTERM)
                process.communicate(timeout=WITHIN_S)
        return failures

    def _step_failures(
        self, step: Step, text: str, names: dict[str, str], behind: list[subprocess.Popen[str]]
    ) -> Iterator[str]:
        if step.not_run:
            return
        if isinstance(step, Python):
            yield from self._python_failures(step, text)
            return
        if step.text.startswith("aerobee up"):
            yield from self._absent_settings(step.text)
            return
        command = renamed(step.text, names)
        if command.endswith(" &"):
            behind.append(self._shell(command.removesuffix(" &")))
            return
        output, code = self._run(command)
        printed = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line) for line in output.splitlines()]
        for line in wrong_plurals(printed):
            yield f"$ {command}\na plural of one: {line}"
        if step.hidden:
            if code:
                yield f"$ {command}\nended with {code}: {output}"
            return
        # A command without output on the page may print what it likes, when it works.
        found = difference(step.shown, printed if step.shown or code else [], step.kinds, names)
        if found:
            yield f"$ {command}\n{found}"

    def _absent_settings(self, line: str) -> Iterator[str]:
        """The options of `aerobee up` on the page hold for the cluster that the page runs against."""
        words = shlex.split(line)
        for option, value in itertools.pairwise(words):
            key, _, wanted = value.partition("=")
            if option == "--set" and self._settings.get(key) != wanted:
                yield f"$ {line}\nthe cluster of this test has {key}={self._settings.get(key)}"

    def _python_failures(self, step: Python, text: str) -> Iterator[str]:
        """An excerpt of an example stands there word for word; anything else runs."""
        examples = [
            ROOT / "docs" / "examples" / name for name in re.findall(r"examples/([a-z_0-9]+\.py)", text)
        ]
        lines = [line.strip() for line in step.text.splitlines() if line.strip() not in ("", "...")]
        for example in examples:
            if set(lines) <= {line.strip() for line in example.read_text(encoding="utf-8").splitlines()}:
                return
        path = self.directory / "block.py"
        path.write_text(step.text.replace(ADDRESS, f'"{self._nameserver}"'), encoding="utf-8")
        starter = self.directory / "start_block.py"
        starter.write_text(TOP_LEVEL_AWAIT.format(path=str(path), name="the block"), encoding="utf-8")
        output, code = self._run("python start_block.py")
        if code:
            yield f"the block of Python ended with {code}: {output}"

    def _run(self, command: str) -> tuple[str, int]:
        """Output, both streams together, and exit code; 124 as `timeout` has it when it does not end."""
        if words := plain_words(command):
            return self._fork(words)
        process = self._shell(command)
        with ended(process):
            try:
                output, _ = process.communicate(timeout=WITHIN_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
                return f"{output}\nnot done after {WITHIN_S} s", 124
            return output, process.returncode

    def _fork(self, words: list[str]) -> tuple[str, int]:
        """As _run(), without a shell."""
        call = {"arguments": words, "directory": str(self.directory), "environment": self.environment}
        read, write = os.pipe()
        with (
            open(read, "rb", buffering=0) as output,
            open(os.devnull, "rb") as nothing,
            socket.socket(socket.AF_UNIX) as server,
        ):
            server.connect(self.socket)
            socket.send_fds(server, [json.dumps(call).encode()], [nothing.fileno(), write, write])
            os.close(write)
            parts: list[bytes] = []
            deadline = time.monotonic() + WITHIN_S
            ready = select.poll()  # select() takes no descriptor above 1,023, and a long test run has more
            ready.register(output, select.POLLIN)
            while ready.poll(max(0.0, deadline - time.monotonic()) * 1_000):
                if not (part := output.read(65_536)):
                    code = server.recv(1)
                    return b"".join(parts).decode(), code[0] if code else 70
                parts.append(part)
            return f"{b''.join(parts).decode()}\nnot done after {WITHIN_S} s", 124

    def _shell(self, command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            # A test run that is killed leaves no shell behind: some lines of the pages are loops that wait for a cluster.
            ["/usr/bin/setpriv", "--pdeathsig", "KILL", "/bin/bash", "-c", command],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def plain_words(command: str) -> list[str]:
    """The words of a line that a shell has nothing to do with; [] for another one."""
    if NOT_PLAIN.search(command):
        return []
    words = shlex.split(command, comments=True)
    return words if words and words[0] in FORKED else []


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """The process and what it started are gone afterwards."""
    try:
        yield
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def commands(text: str) -> list[Command]:
    return [step for step in steps(text) if isinstance(step, Command)]
