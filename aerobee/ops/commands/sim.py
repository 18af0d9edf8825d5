"""`aerobee sim`: run a whole cluster under faults in this process, on simulated time, network and disks, from a seed."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import logging
import os
import shutil
import subprocess
import time
from typing import Annotated, NoReturn

import typer

from aerobee.errors import ConfigError, UsageError
from aerobee.ops.options.options import AsJson
from aerobee.ops.terminal.failure import ExitCode
from aerobee.ops.terminal.output import Output
from aerobee.simulation.campaign import Campaign
from aerobee.simulation.drawn_settings import has_grpc_packages
from aerobee.simulation.fleet import run_all, run_groups
from aerobee.simulation.outcome import Outcome
from aerobee.simulation.run import groups_of, run_group, run_seed
from aerobee.simulation.scenarios import SCENARIOS, Scenario
from aerobee.simulation.shrink import shrink
from aerobee.words import plural

STORY_LINES = 60
GRPC_NEEDS = "gRPC clients need the packages h2 and protobuf: pip install 'aerobee[simulation]'"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sim")(simulate)


def simulate(
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Seed of the first run; equal seeds give identical runs.")
    ] = 0,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Number of runs, with consecutive seeds.")] = 1,
    minutes: Annotated[
        float,
        typer.Option("--minutes", min=0.02, max=600, help="Simulated minutes with faults in each run."),
    ] = 1.0,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, max=256, help="Number of concurrent runs, each in a process.")
    ] = 1,
    scenario: Annotated[
        str,
        typer.Option(
            "--scenario", help="Run this schedule of faults instead of random ones; --list names them."
        ),
    ] = "",
    list_: Annotated[
        bool, typer.Option("--list", help="List the scenarios and the history of each.")
    ] = False,
    story: Annotated[
        bool, typer.Option("--story", help="Print the events of every run, not only of failed runs.")
    ] = False,
    shrink_: Annotated[
        bool,
        typer.Option("--shrink", help="Remove faults from a failed run as long as it still fails."),
    ] = False,
    record: Annotated[
        str,
        typer.Option(
            "--record",
            help="Append the result of each chunk of runs to this file and skip chunks that it contains, to continue a campaign.",
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Run two NameServers, three controllers and three replicas, with clients, while hosts, links and disks fail.

    All servers and clients run the production code. Exit code 1 when an acknowledged message is lost, replicas differ,
    or the cluster does not recover.
    """
    out = Output(as_json)
    if list_:
        for each in SCENARIOS.values():
            out.line({"name": each.name, "history": each.history}, f"{each.name:26} {each.history}")
        return
    if scenario and scenario not in SCENARIOS:
        raise UsageError(f"unknown scenario {scenario!r}: use one of {', '.join(SCENARIOS)}")
    if record and scenario:
        raise UsageError("--record and --scenario are mutually exclusive")
    schedule = SCENARIOS.get(scenario)
    _check_grpc(out, schedule)
    out.note(f"seed {seed}" if runs == 1 else f"seeds {seed} to {seed + runs - 1}")
    logging.disable(logging.CRITICAL)
    if record:
        _campaign(out, Campaign(record), range(seed, seed + runs), minutes, jobs)
    broken = 0
    simulated_s = core_s = 0.0
    try:
        seeds = range(seed, seed + runs)
        for outcome in (
            run_groups(groups_of(seeds), lambda group: run_group(group, minutes=minutes), jobs=jobs)
            if schedule is None
            else run_all(seeds, lambda number: run_seed(number, scenario=schedule), jobs=jobs)
        ):
            broken += bool(outcome.failure)
            simulated_s += outcome.simulated_s
            core_s += outcome.core_s
            if outcome.failure and shrink_ and schedule is None:
                outcome = _shrunk(outcome, minutes)
            told = story or bool(outcome.failure)
            out.line(_document(outcome, told=told), _text(outcome, told=told))
    finally:
        logging.disable(logging.NOTSET)
    if runs > 1:
        out.note(
            f"{plural(runs, 'run')}, {broken} failed; {simulated_s:,.0f} simulated s in {core_s:,.0f} s of CPU time"
        )
    raise typer.Exit(int(ExitCode.REFUSED if broken else ExitCode.DONE))


def _check_grpc(out: Output, schedule: Scenario | None) -> None:
    """Without their packages, note that gRPC clients take no part. Raises ConfigError for a scenario that needs them."""
    if has_grpc_packages():
        return
    if schedule is None:
        out.note(f"no gRPC clients take part; seeds that draw them give other runs. {GRPC_NEEDS}")
    elif schedule.settings.has_grpc:
        raise ConfigError(f"the scenario {schedule.name} cannot run: {GRPC_NEEDS}")


def _campaign(out: Output, campaign: Campaign, seeds: range, minutes: float, jobs: int) -> NoReturn:
    """Run the chunks that the file does not contain, and exit with 1 when one of these runs failed."""
    broken = 0
    for chunk in campaign.left(seeds, minutes):
        began = time.monotonic()
        chunk.code = _code()
        members = range(chunk.first, chunk.first + chunk.runs)
        for outcome in run_groups(
            groups_of(members), lambda group: run_group(group, minutes=minutes), jobs=jobs
        ):
            chunk.add(outcome)
            if outcome.failure:
                out.line(_document(outcome, told=True), _text(outcome, told=True))
        chunk.seconds = time.monotonic() - began
        broken += len(chunk.broken)
        campaign.add(chunk)
    out.note(campaign.summary())
    raise typer.Exit(int(ExitCode.REFUSED if broken else ExitCode.DONE))


def _code() -> str:
    """The version, and the commit in a checkout."""
    version = importlib.metadata.version("aerobee")
    git = shutil.which("git")
    if git is None:
        return version
    where = os.path.dirname(os.path.abspath(__file__))
    found = subprocess.run(
        [git, "-C", where, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False
    )
    return f"{version} {found.stdout.strip()}".strip()


def _shrunk(outcome: Outcome, minutes: float) -> Outcome:
    def run(left_out: frozenset[int]) -> Outcome:
        (found,) = run_all([outcome.seed], lambda seed: run_seed(seed, minutes=minutes, left_out=left_out))
        return found

    shortest, left_out = shrink(outcome, run)
    shortest.story.append(f"{'':10}  {plural(len(left_out), 'fault')} of {outcome.fault_count} were left out")
    return shortest


def _document(outcome: Outcome, *, told: bool) -> dict[str, object]:
    document = dataclasses.asdict(outcome)
    if not told:
        del document["story"]
    return document


def _text(outcome: Outcome, *, told: bool) -> str:
    faults = ", ".join(f"{count} x {name}" for name, count in sorted(outcome.faults.items()))
    lines = [f"seed {outcome.seed}: {outcome.failure or 'passed'}"]
    lines.append(
        f"  {outcome.acknowledged} of {plural(outcome.sent, 'send')} acknowledged in {outcome.simulated_s:.0f} simulated s "
        f"({outcome.core_s:.1f} s); {faults}; digest {outcome.digest}"
    )
    if told:
        lines.extend(f"  {line}" for line in outcome.story[-STORY_LINES:])
    return "\n".join(lines)
