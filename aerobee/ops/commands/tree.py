"""The `aerobee` command: loads the module of a command and reports every failure in one sentence.

failure.py lists the exit codes. A traceback appears with --debug only.
"""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperGroup

from aerobee.errors import AerobeeError, UsageError
from aerobee.log_lines import log_to
from aerobee.ops.commands import examples
from aerobee.ops.commands.other_names import own_command, own_option, own_subcommand
from aerobee.ops.commands.root_help import root_help
from aerobee.ops.options import completion, shared_options
from aerobee.ops.options.environment import unknown_variables
from aerobee.ops.terminal import watching
from aerobee.ops.terminal.failure import ExitCode, Failure, explain
from aerobee.ops.terminal.output import Output, to_json
from aerobee.ops.terminal.run import Interrupted

# Command -> module in aerobee.ops, in the order of the help text. A module defines `app`, a group of commands with
# this name, or register(app), which adds single commands. A module is imported when its command is run or completed:
# importing all of them takes half a second.
COMMANDS = {
    "up": "servers.up",
    "nameserver": "servers.nameserver",
    "broker": "servers.broker",
    "controller": "servers.controller",
    "proxy": "servers.proxy",
    "send": "commands.send",
    "consume": "commands.consume",
    "doctor": "diagnosis.doctor",
    "trace": "commands.trace",
    "why": "diagnosis.why",
    "top": "diagnosis.top",
    "console": "servers.console",
    "mcp": "servers.mcp",
    "topic": "commands.topic",
    "group": "commands.group",
    "offset": "commands.offset",
    "dlq": "commands.dlq",
    "filter": "commands.filter",
    "transaction": "commands.transaction",
    "cluster": "commands.cluster",
    "config": "commands.config",
    "kv": "commands.kv",
    "ha": "commands.ha",
    "message": "commands.message",
    "timer": "commands.timer",
    "schedule": "commands.schedule",
    "bench": "commands.bench",
    "store": "commands.store",
    "sim": "commands.sim",
    "spark": "commands.spark",
    "placement": "commands.placement",
    "user": "commands.user",
    "acl": "commands.acl",
    "context": "commands.context",
}
NO_COMMAND = re.compile(r"No such command '([^']*)'")
PLAIN_WORDS = (
    (re.compile(r"is not a valid (?:int|integer)(?: range)?$"), "is not a whole number"),
    (re.compile(r"is not a valid float(?: range)?$"), "is not a number"),
    (
        re.compile(r"^Got unexpected extra arguments?(?:\(s\))? \((.*)\)$"),
        r"Unexpected extra arguments: \1",
    ),
)
COMPLETING = "_AEROBEE_COMPLETE"
HELP_NAMES = {"help_option_names": ["-h", "--help"]}


class LazyGroup(TyperGroup):
    """The commands of COMMANDS, loaded one by one."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """One screen, without loading the commands."""
        formatter.write(root_help())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            self.commands[cmd_name] = _load(cmd_name)
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and (own := own_command(args[0])) and args[0] not in COMMANDS:
            raise UsageError(
                f"unknown command {args[0]!r}: the equivalent is `aerobee {own}`, see `aerobee {own} --help`"
            )
        if args and args[0] not in COMMANDS:
            for name in COMMANDS:  # a typing error: load all commands, so that click can suggest one
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)


@cache
def _load(name: str) -> Any:
    """The command of a noun, built once: a program or a test may run several command lines."""
    module = import_module(f"aerobee.ops.{COMMANDS[name]}")
    holder = typer.Typer(context_settings=HELP_NAMES)
    if hasattr(module, "register"):
        module.register(holder)
    else:
        holder.add_typer(module.app, name=name)
    command = typer.main.get_group(holder).commands[name]
    shared_options.add_to(command, name)
    examples.add_to(command, name)
    completion.add_to(command, name)
    return command


app = typer.Typer(
    name="aerobee",
    cls=LazyGroup,
    help="A distributed message queue, interchangeable with Apache RocketMQ part by part.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=HELP_NAMES,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata  # imports fifty modules that no other command needs

        from aerobee.broker.fastpath.choice import choose_backend, wanted_backend

        typer.echo(f"aerobee {metadata.version('aerobee')}")
        backend = choose_backend(wanted_backend(os.environ))
        typer.echo(f"fast path   {backend.name} ({backend.why})")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            callback=_show_version,
            is_eager=True,
            help="Print the version and the backend of the fast path.",
        ),
    ] = False,
) -> None:
    """Options before the command; shared_options.py adds more."""


def run_cli(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Raises only what the interpreter itself raises."""
    before_dashes = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    as_json = "--json" in before_dashes
    debug = "--debug" in before_dashes
    logging.basicConfig(level=logging.WARNING, handlers=[log_to(sys.stderr, time.monotonic)])
    # A program or a test may run several command lines: each starts with the same log levels, and the program's
    # level is restored afterwards.
    own, found = logging.getLogger("aerobee"), logging.getLogger("aerobee").level
    logging.getLogger().setLevel(logging.WARNING)
    shared_options.forget()
    for stream in (sys.stdout, sys.stderr):
        # An argument that is not UTF-8, or a terminal that shows ASCII only, must not raise UnicodeEncodeError.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # No notes while the shell requests completions: it would show them in the middle of the line.
    for sentence in () if COMPLETING in os.environ else unknown_variables(os.environ):
        sys.stderr.write(f"note: {sentence}\n")
    try:
        root: Any = typer.main.get_command(app)
        shared_options.add_own(root)
        return _run_watched(root, list(arguments), as_json)
    except typer.Exit as end:
        return end.exit_code
    except (Interrupted, KeyboardInterrupt, typer.Abort):
        Output(as_json=False).notes.print("interrupted", style="dim")
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output closed the pipe (`| head`). Without this, Python's flush at exit fails once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.DONE)
    except Exception as error:
        if debug:
            traceback.print_exc()
        if type(error).__name__ == "NoArgsIsHelpError" and not as_json:
            if text := str(getattr(error, "message", "")).rstrip(
                "\n"
            ):  # of a group of commands it has been printed
                sys.stdout.write(text + "\n")
            return int(ExitCode.USAGE)
        failure = _usage_failure(error) or explain(error)
        _show(failure, as_json)
        return int(failure.exit_code)
    finally:
        own.setLevel(found)


def _run_watched(root: Any, arguments: list[str], as_json: bool) -> int:
    """Run the command. With --watch repeat it until Ctrl-C; every failure but a UsageError is shown and the watch continues."""
    number = 0
    while True:
        shared_options.forget()
        try:
            result: Any = root.main(args=list(arguments), prog_name="aerobee", standalone_mode=False)
        except SystemExit as end:
            # click turns a BrokenPipeError of our output into SystemExit.
            if isinstance(end.__context__, BrokenPipeError):
                raise end.__context__ from None
            raise
        except AerobeeError as error:
            if shared_options.watch_s() is None or isinstance(error, UsageError):
                raise
            _show(explain(error), as_json)
            result = None
        every_s = shared_options.watch_s()
        if every_s is None:
            return result if isinstance(result, int) else int(ExitCode.DONE)
        number += 1
        watching.pause(every_s)
        watching.begin_look(" ".join(arguments), every_s, as_json=as_json, number=number)


def _usage_failure(error: Exception) -> Failure | None:
    """A failure that click found: unknown option, missing argument, bad value, missing command. None for others."""
    exit_code = getattr(error, "exit_code", None)
    format_message = getattr(error, "format_message", None)
    if exit_code is None or format_message is None:
        return None
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        # A group was named without a command; the message of this error is the help text itself.
        return Failure(
            exit_code=ExitCode.USAGE,
            kind="UsageError",
            sentence="a command is missing",
            advice=f"`{context.command_path if context else 'aerobee'} --help` lists them",
        )
    option = getattr(error, "option_name", "")
    if option and context is not None:
        taken = frozenset(name for parameter in context.command.params for name in parameter.opts)
        advice = own_option(str(option), taken, before_command=context.parent is None)
        if advice:
            sentence = f"No such option: {option}"
            return Failure(exit_code=ExitCode.USAGE, kind="UsageError", sentence=sentence, advice=advice)
    sentence = _plain_words(" ".join(str(format_message()).split()).rstrip("."))
    advice = f"`{context.command_path if context else 'aerobee'} --help` shows the accepted arguments"
    unknown = NO_COMMAND.match(sentence)
    if unknown and context is not None and context.parent is not None:
        advice = own_subcommand(context.info_name or "", unknown[1], context.command.commands) or advice
    return Failure(exit_code=ExitCode.USAGE, kind="UsageError", sentence=sentence, advice=advice)


def _plain_words(sentence: str) -> str:
    """click's message in plain words."""
    for pattern, words in PLAIN_WORDS:
        sentence = pattern.sub(words, sentence)
    return sentence


def _show(failure: Failure, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(to_json(failure.as_document()) + "\n")
        sys.stdout.flush()
        return
    console = Output(as_json=False).notes
    console.print("[bold red]error:[/] ", end="")
    console.print(failure.sentence, markup=False)
    if failure.advice:
        console.print("[dim]hint:[/]  ", end="")
        console.print(failure.advice, markup=False)
