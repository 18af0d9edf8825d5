"""Variables: each that is read anywhere is known, and what is called misspelt is."""

from __future__ import annotations

import re
from pathlib import Path

from aerobee.config import ENVIRONMENT_PREFIX, environment_settings, known_keys, variable_name
from aerobee.ops.options.environment import OF_THE_REPOSITORY, known_variables, unknown_variables
from aerobee.ops.settings.settings import BROKER_KINDS, NAMESERVER_KINDS, controller_kinds

ROOT = Path(__file__).parents[4]
# How a variable is read: in Python by name or as an option's variable, in the shell, in a Makefile's recipe.
READ = re.compile(
    r'(?:environ(?:\.get\(|\[)|getenv\(|envvar=\[?)\s*f?"(AEROBEE_[A-Z0-9_]+)"|\$\{(AEROBEE_[A-Z0-9_]+)|^\t(AEROBEE_[A-Z0-9_]+)=',
    re.MULTILINE,
)


def read_in(*directories: str) -> set[str]:
    found: set[str] = set()
    for directory in directories:
        path = ROOT / directory
        for file in [path] if path.is_file() else path.rglob("*"):
            if file.is_file() and file.suffix in (".py", "", ".sh") and "__pycache__" not in file.parts:
                text = file.read_text(encoding="utf-8", errors="replace")
                found |= {next(name for name in match if name) for match in READ.findall(text)}
    return found


def test_what_the_repository_reads_for_itself_is_never_called_misspelt() -> None:
    read = read_in("tests", "bench", "scripts", "Makefile")
    assert len(read) > 15
    assert read - known_variables() == OF_THE_REPOSITORY
    assert unknown_variables(dict.fromkeys(read, "1")) == []


def test_what_the_commands_read_is_never_called_misspelt() -> None:
    read = read_in("aerobee")
    assert "AEROBEE_CONTROLLER_ADDR" in read
    assert unknown_variables(dict.fromkeys(read, "1")) == []


def test_every_key_of_a_server_has_a_variable_that_sets_it() -> None:
    kinds = (*BROKER_KINDS, *NAMESERVER_KINDS, *controller_kinds())
    for key in known_keys(kinds):
        assert environment_settings({variable_name(key): "1"}, kinds), key
        assert unknown_variables({variable_name(key): "1"}) == []


def test_the_nearest_variable_is_named() -> None:
    said = unknown_variables(
        {
            "AEROBEE_NAMESERV_ADDR": "x",
            "AEROBEE_LISTN_PORT": "1",
            "AEROBEE_XYZZY": "1",
            "OTHER": "1",
            "AEROBEE_NAMESRV": "x",
        }
    )
    assert ENVIRONMENT_PREFIX == "AEROBEE_"
    assert said == [
        "AEROBEE_LISTN_PORT is not a variable of Aerobee and has no effect; did you mean AEROBEE_LISTEN_PORT?",
        "AEROBEE_NAMESERV_ADDR is not a variable of Aerobee and has no effect; did you mean AEROBEE_NAMESRV_ADDR?",
        "AEROBEE_NAMESRV is not a variable of Aerobee and has no effect; did you mean AEROBEE_NAMESRV_ADDR?",
        "AEROBEE_XYZZY is not a variable of Aerobee and has no effect",
    ]
