"""Private PostgreSQL, MariaDB, MySQL and Redis servers for the tests of deduplication and of the outbox: free ports, temporary directories, loopback only."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from tests.ports import free_port

START_TIMEOUT_S = 120.0
ROOT = Path(__file__).resolve().parents[2]
MYSQL = Path(os.environ.get("AEROBEE_INTEROP_DIR") or ROOT / ".interop") / "mysql"
SETUP = "run scripts/setup-databases first"


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > end:
                text = log.read_text(errors="replace")[-2000:]
                raise AssertionError(f"the server did not come up:\n{text}") from None
        time.sleep(0.02)


@contextmanager
def _running(command: list[str], port: int, directory: Path, stop: int) -> Iterator[None]:
    log = directory / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=directory)
    try:
        _wait_for(process, port, log)
        yield
    finally:
        process.send_signal(stop)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)


@contextmanager
def _directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="aerobee-db-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _find(name: str) -> str | None:
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(versions[-1]) if versions else None)


def _as_postgres() -> list[str]:
    """PostgreSQL refuses to run as root: then it runs as the user that Debian's package made."""
    if os.getuid() != 0:
        return []
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]


def _lacks(database: str) -> NoReturn:
    (pytest.fail if "CI" in os.environ else pytest.skip)(f"{database} is not installed: {SETUP}")


@contextmanager
def postgresql() -> Iterator[str]:
    """A fresh PostgreSQL; yields its SQLAlchemy URL. Skips the test when it is not installed, and fails it in CI."""
    initdb, server = _find("initdb"), _find("postgres")
    if initdb is None or server is None:
        _lacks("PostgreSQL")
    with _directory() as directory:
        prefix, port, data = _as_postgres(), free_port(), directory / "data"
        if prefix:
            shutil.chown(directory, "postgres", "postgres")
        subprocess.run(
            [*prefix, initdb, "-D", str(data), "-U", "aerobee", "--auth=trust", "--no-sync", "-E", "UTF8"],
            check=True,
            capture_output=True,
            cwd=directory,
        )
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            "unix_socket_directories": "",
            "fsync": "off",
        }
        command = [*prefix, server, "-D", str(data)]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        with _running(command, port, directory, signal.SIGINT):
            url = f"postgresql+psycopg://aerobee@127.0.0.1:{port}/postgres"
            _until_it_answers(url)
            yield url


@contextmanager
def mariadb() -> Iterator[str]:
    """A fresh MariaDB; yields the URL of a database with a character set of one byte, mysql://. Skips the test when it is not
    installed, and fails it in CI."""
    install, server = shutil.which("mariadb-install-db"), shutil.which("mariadbd")
    if install is None or server is None:
        _lacks("MariaDB")
    with _directory() as directory:
        port, data = free_port(), directory / "data"
        as_root = ["--user=root"] if os.getuid() == 0 else []
        subprocess.run(
            [
                install,
                "--no-defaults",
                f"--datadir={data}",
                "--auth-root-authentication-method=normal",
                *as_root,
            ],
            check=True,
            capture_output=True,
            cwd=directory,
        )
        prepare = directory / "prepare.sql"
        prepare.write_text("CREATE DATABASE IF NOT EXISTS app CHARACTER SET latin1;\n")
        command = [
            server,
            "--no-defaults",
            f"--datadir={data}",
            f"--port={port}",
            "--bind-address=127.0.0.1",
            f"--socket={directory}/s",
            f"--init-file={prepare}",
            "--innodb-flush-log-at-trx-commit=0",
            *as_root,
        ]
        with _running(command, port, directory, signal.SIGTERM):
            yield f"mysql://root@127.0.0.1:{port}/app"


def has_mysql() -> bool:
    """Whether scripts/setup-mysql was run. Its server comes from a suite of Debian that changes every day."""
    return (MYSQL / ".complete").exists()


@contextmanager
def mysql() -> Iterator[str]:
    """A fresh MySQL of scripts/setup-mysql; yields the URL of a database with a character set of one byte, mysql://."""
    root = MYSQL / "root"
    # Its own loader and libraries: it is built for a newer C library.
    loader = next(
        path for folder in ("lib64", "lib") for path in (root / "usr" / folder).glob("ld-linux-*.so.*")
    )
    libraries = next((root / "usr" / "lib").glob("*-linux-gnu"))
    with _directory() as directory:
        port, data = free_port(), directory / "data"
        server = [
            str(loader),
            "--library-path",
            str(libraries),
            str(root / "usr/sbin/mysqld"),
            "--no-defaults",
            f"--basedir={root / 'usr'}",
            f"--datadir={data}",
            *(["--user=root"] if os.getuid() == 0 else []),
        ]
        subprocess.run([*server, "--initialize-insecure"], check=True, capture_output=True, cwd=directory)
        prepare = directory / "prepare.sql"
        prepare.write_text("CREATE DATABASE app CHARACTER SET latin1;\n")
        options = {
            "port": port,
            "bind-address": "127.0.0.1",
            "socket": directory / "s",
            "init-file": prepare,
            "secure-file-priv": "NULL",
            "mysqlx": "OFF",
            "innodb-flush-log-at-trx-commit": 0,
        }
        command = [*server, "--skip-log-bin", *(f"--{name}={value}" for name, value in options.items())]
        with _running(command, port, directory, signal.SIGTERM):
            yield f"mysql://root@127.0.0.1:{port}/app"


def _until_it_answers(url: str) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    engine = sqlalchemy.create_engine(url)
    end = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            engine.connect().close()
            engine.dispose()
            return
        except sqlalchemy.exc.OperationalError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


@contextmanager
def redis_server() -> Iterator[str]:
    """A fresh Redis; yields its URL. Skips the test when it is not installed, and fails it in CI."""
    server = shutil.which("redis-server")
    if server is None:
        _lacks("Redis")
    with _directory() as directory:
        port = free_port()
        command = [server, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(directory)]
        with _running(command, port, directory, signal.SIGTERM):
            yield f"redis://127.0.0.1:{port}/0"
