"""`aerobee sim`: a whole cluster under faults in this process, on simulated time, network and disks, from a seed."""

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

from aerobee.errors import UsageError
from aerobee.ops.options.options import AsJson
from aerobee.ops.terminal.failure import ExitCode
from aerobee.ops.terminal.output import Output
from aerobee.simulation.campaign import Campaign
from aerobee.simulation.fleet import run_all, run_groups
from aerobee.simulation.outcome import Outcome
from aerobee.simulation.run import groups_of, run_group, run_seed
from aerobee.simulation.scenarios import SCENARIOS
from aerobee.simulation.shrink import shrink
from aerobee.words import plural

STORY_LINES = 60


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sim")(simulate)


def simulate(
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Of the first run; the same seed is the same run.")
    ] = 0,
    runs: Annotated[int, typer.Option("--runs", min=1, help="So many seeds from --seed on.")] = 1,
    minutes: Annotated[
        float, typer.Option("--minutes", min=0.02, max=600, help="Of simulated faults in each run.")
    ] = 1.0,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, max=256, help="So many runs at once, each in a process.")
    ] = 1,
    scenario: Annotated[
        str,
        typer.Option(
            "--scenario", help="Run this schedule of faults instead of random ones; --list names them."
        ),
    ] = "",
    list_: Annotated[
        bool, typer.Option("--list", help="Name the scenarios, and what happened in each.")
    ] = False,
    story: Annotated[
        bool, typer.Option("--story", help="Tell what happened, also when nothing was broken.")
    ] = False,
    shrink_: Annotated[
        bool,
        typer.Option("--shrink", help="Leave out faults of a run that broke a promise while it still does."),
    ] = False,
    record: Annotated[
        str,
        typer.Option(
            "--record",
            help="Append a line for each chunk of runs to this file, and skip the chunks that it has: a long campaign goes on.",
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Run two NameServers, three controllers and three replicas, with clients, while machines, ways and disks fail.

    All of it is the real code. Ends with 1 when an acknowledged message was lost, replicas differ, or the cluster does not get well.
    """
    out = Output(as_json)
    if list_:
        for each in SCENARIOS.values():
            out.line({"name": each.name, "history": each.history}, f"{each.name:26} {each.history}")
        return
    if scenario and scenario not in SCENARIOS:
        raise UsageError(f"there is no scenario {scenario!r}: the names are {', '.join(SCENARIOS)}")
    if record and scenario:
        raise UsageError("--record is for random runs: leave out --scenario")
    schedule = SCENARIOS.get(scenario)
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
            f"{plural(runs, 'run')}, {broken} broke a promise; {simulated_s:,.0f} simulated s in {core_s:,.0f} s of a core"
        )
    raise typer.Exit(int(ExitCode.REFUSED if broken else ExitCode.DONE))


def _campaign(out: Output, campaign: Campaign, seeds: range, minutes: float, jobs: int) -> NoReturn:
    """Run what the file does not have, and exit with 1 when one of these runs broke a promise."""
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
    """The version, and the commit when this is a checkout."""
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
    lines = [f"seed {outcome.seed}: {outcome.failure or 'every promise was kept'}"]
    lines.append(
        f"  {outcome.acknowledged} of {plural(outcome.sent, 'send')} acknowledged in {outcome.simulated_s:.0f} simulated s "
        f"({outcome.core_s:.1f} s); {faults}; digest {outcome.digest}"
    )
    if told:
        lines.extend(f"  {line}" for line in outcome.story[-STORY_LINES:])
    return "\n".join(lines)
