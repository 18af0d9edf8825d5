"""What the command line takes and refuses, before anything is reached."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from aerobee.ops.commands import tree as commands
from aerobee.ops.commands.tree import app, run_cli

GROUPS = ("topic", "group", "cluster", "message", "bench")
COMMANDS = [
    ["up"], ["nameserver"], ["broker"], ["send"], ["consume"], ["doctor"], ["trace"], ["why"],
    *(["topic", name] for name in ("list", "create", "delete", "describe", "stats")),
    *(["group", name] for name in ("list", "describe", "lag", "reset", "delete")),
    *(["cluster", name] for name in ("list", "describe")),
    *(["message", name] for name in ("id", "unique-key", "key", "offset", "time")),
    *(["transaction", name] for name in ("list", "commit", "rollback", "check")),
    *(["bench", name] for name in ("produce", "consume")),
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_and_json(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "--json" in result.output


def test_benchmark_takes_rocketmqs_short_options() -> None:
    result = CliRunner().invoke(app, ["bench", "produce", "--help"], env={"COLUMNS": "200"})
    for option in ("-w", "-s", "-t", "-n"):
        assert option in result.output


@pytest.mark.parametrize("group", GROUPS)
def test_group_without_a_command_shows_its_commands(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli([group]) == 2
    assert "Commands" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["bogus"], "No such command 'bogus'"),
        (["sned", "t", "x"], "Did you mean 'send'?"),
        (["topic", "lst"], "Did you mean 'list'?"),
        (["send"], "Missing argument 'TOPIC'"),
        (["send", "t", "x", "--tga", "y"], "--tag"),
        (["send", "bad topic!", "x"], "topic name 'bad topic!'"),
        (["send", "t", "x", "--property", "novalue"], "NAME=VALUE"),
        (["send", "t", "x", "--tag", "a || b"], "--tag 'a || b' contains ||"),
        (["send", "t", "x", "--tag", "a "], "--tag 'a ' begins or ends with a space"),
        (["send", "t", "x", "--file", "f"], "TEXT excludes --file"),
        (["consume", "t", "--from", "whenever"], "--from 'whenever'"),
        (["consume", "t", "--group", "g", "--queue", "broker-a/0"], "exclude --group"),
        (["consume", "t", "-n", "nonsense"], "must look like host:port"),
        (["topic", "create", "t", "--perm", "x"], "rw, r, w"),
        (["up", "--ephemeral", "--data", "/tmp/x"], "mutually exclusive"),
        (["broker", "--set", "flushDiskTyp=x"], "did you mean flushDiskType?"),
        (["broker", "-c", "/nonexist"], "/nonexist: cannot be read"),
        (["nameserver", "--set", "listenPort=x"], "must be a whole number"),
    ],
)
def test_wrong_command_line_is_one_sentence_and_exit_code_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert sentence in captured.err
    assert "Traceback" not in captured.err


def test_errors_are_json_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["topic", "lst", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["exit_code"] == 2
    assert error["kind"] == "UsageError"


def test_print_config_prints_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["broker", "-p", "--set", "flushDiskType=SYNC_FLUSH"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "flushDiskType=SYNC_FLUSH" in lines
    assert len(lines) > 80
    assert run_cli(["nameserver", "-p", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["listenPort"] == "9876"


@pytest.mark.parametrize("module", ["aerobee.ops", "aerobee.ops.cli", "aerobee"])
def test_each_way_to_start_it_runs_the_command_line(module: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", module, "topic", "lst"], capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 2
    assert "Did you mean 'list'?" in ended.stderr


def test_one_command_loads_its_own_module_only() -> None:
    code = (
        "import sys\nfrom aerobee.ops.commands.tree import run_cli\nrun_cli(['topic'])\n"
        "print([n for n in sys.modules if n.startswith(('aerobee.ops.', 'aerobee.broker'))], file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert "aerobee.ops.commands.topic" in ended.stderr
    for other in ("aerobee.ops.commands.bench", "aerobee.ops.servers.serving", "aerobee.broker"):
        assert other not in ended.stderr


def test_a_broker_starts_without_what_only_errors_need() -> None:
    names = "('importlib.metadata', 'email', 'zipfile', 'tempfile', 'aiohttp', 'yaml', 'rocksdict', 'aerobee.simulation')"
    code = f"import sys\nimport aerobee.ops.servers.broker\nprint([n for n in {names} if n in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ended.stdout.strip() == "[]", ended.stderr


def test_every_command_of_the_table_exists_in_its_module() -> None:
    group = commands.typer.main.get_group(app)
    for name in commands.COMMANDS:
        assert group.get_command(None, name) is not None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--advertise", "bad:host:1"],
            "--advertise 'bad:host:1': write an address or a host name without a port",
        ),
        (["--port", "9876"], "port 9876 is used by the NameServer (--nameserver-port)"),
        (["--nameserver-port", "10921", "--brokers", "2"], "port 10921 is used by"),
        (["--port", "64999", "--brokers", "64"], "is too high for 64 brokers"),
        (["--set", "nope=1"], "`aerobee broker -p` prints every key"),
        (
            ["--set", "bindAddress=0.0.0.0"],
            "--set bindAddress: `aerobee up` sets this key for its brokers; use --host",
        ),
        (["--set", "brokerIP1=10.0.0.1"], "use --advertise"),
        (
            ["--set", "brokerName=mine"],
            "--set brokerName: `aerobee up` sets this key for its brokers; `aerobee broker`",
        ),
    ],
)
def test_up_refuses_what_cannot_be_before_anything_starts(
    capfd: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert run_cli(["up", "--ephemeral", *arguments]) == 2
    assert said in capfd.readouterr().err
