"""`aerobee placement`: apply, revert and show a plan that `aerobee spark placement` created."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from aerobee.clock import SystemClock
from aerobee.errors import AerobeeError, UsageError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.ops.options.options import AsJson, NameServers, Yes, ask
from aerobee.ops.options.shared_options import client_config
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run
from aerobee.ops.terminal.terminal import visible
from aerobee.ops.terminal.times import above_zero
from aerobee.placement.apply import Applier
from aerobee.placement.apply_config import ApplyConfig
from aerobee.placement.cluster import PlacementAdmin
from aerobee.placement.journal import Journal
from aerobee.placement.measure import measured_imbalance
from aerobee.placement.plan import Plan, parse_plan
from aerobee.placement.steps import Step
from aerobee.words import plural

app = typer.Typer(
    name="placement",
    help="Move queues to other brokers by a plan of `aerobee spark placement`: apply, revert, show.",
    no_args_is_help=True,
)
PLAN_BYTES_MAX = 256 * 1024 * 1024
DEFAULT = ApplyConfig()

PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="The plan, a JSON file.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the remaining steps without executing them.")]
Parallel = Annotated[int, typer.Option("--parallel", min=1, help="Maximum number of concurrent topics.")]
ChangesPerMinute = Annotated[
    float,
    typer.Option(
        "--changes-per-minute", min=0.1, help="Maximum number of topic changes per minute in total."
    ),
]
RouteWait = Annotated[
    float,
    typer.Option(
        "--route-wait",
        parser=above_zero,
        metavar="SPAN",
        help="Time after which every producer has refreshed its routes.",
    ),
]
Grace = Annotated[
    float,
    typer.Option(
        "--grace",
        min=0,
        metavar="SECONDS",
        help="Time for which a fully consumed queue stays readable, for consumers that commit no offsets to brokers.",
    ),
]
PopWait = Annotated[
    float,
    typer.Option(
        "--pop-wait",
        min=0,
        metavar="SECONDS",
        help="Maximum time for which a broker that does not report invisible POP messages (RocketMQ's) keeps a topic "
        "that moves away.",
    ),
]
Moved = Annotated[
    bool,
    typer.Option(
        "--moved",
        help="Accept a cluster whose addresses all differ from the journal's: it is the same cluster.",
    ),
]
DrainTimeout = Annotated[
    float,
    typer.Option(
        "--drain-timeout", parser=above_zero, metavar="SPAN", help="Maximum time to wait for one queue."
    ),
]
IgnoreGroup = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore-group", metavar="GROUP", help="A consumer group that is no longer used; may be repeated."
    ),
]
MaxAge = Annotated[
    float,
    typer.Option("--max-age", min=0, metavar="HOURS", help="Refuse to start a plan that is older than this."),
]
Measure = Annotated[
    float,
    typer.Option(
        "--measure",
        min=0,
        metavar="SECONDS",
        help="Duration of the imbalance measurements before and after; 0: do not measure.",
    ),
]


def _command(*, back: bool) -> Callable[..., None]:
    """The command that applies or reverts a plan. Both have the same options, except --max-age for apply only."""

    def carry_out(
        plan: PlanFile,
        nameserver: NameServers = NAMESERVER_DEFAULT,
        dry_run: DryRun = False,
        parallel: Parallel = DEFAULT.parallel,
        changes_per_minute: ChangesPerMinute = DEFAULT.changes_per_minute,
        route_wait: RouteWait = DEFAULT.routes_s,
        grace: Grace = DEFAULT.grace_s,
        pop_wait: PopWait = DEFAULT.pop_s,
        drain_timeout: DrainTimeout = DEFAULT.drain_s,
        ignore_group: IgnoreGroup = None,
        max_age: MaxAge = DEFAULT.plan_age_max_h,
        moved: Moved = False,
        measure: Measure = 10.0,
        yes: Yes = False,
        as_json: AsJson = False,
    ) -> None:
        config = ApplyConfig(
            parallel=parallel,
            changes_per_minute=changes_per_minute,
            routes_s=route_wait,
            grace_s=grace,
            pop_s=pop_wait,
            drain_s=drain_timeout,
            plan_age_max_h=max_age,
            ignored_groups=frozenset(ignore_group or ()),
            moved=moved,
        )
        if not 0 <= measure < math.inf:
            raise UsageError(f"--measure {measure} must be a finite number of seconds, 0 or more")
        _carry_out(plan, nameserver, config, dry_run, measure, yes, Output(as_json), back=back)

    if back:
        signature = inspect.signature(carry_out, eval_str=True)
        taken = [each for name, each in signature.parameters.items() if name != "max_age"]
        carry_out.__signature__ = signature.replace(parameters=taken)  # type: ignore[attr-defined]
    return carry_out


app.command("apply", help="Apply a plan, or continue an interrupted one.")(_command(back=False))
app.command(
    "revert",
    help="Revert all changes of a plan, also of one that was applied in part, in the same gradual steps.",
)(_command(back=True))


@app.command("show")
def show(plan: PlanFile, as_json: AsJson = False) -> None:
    """Show the changes of a plan, its forecast, and its warnings."""
    out = Output(as_json)
    document = _read(plan)
    if as_json:
        out.document(document)
        return
    rows = [
        {
            "resource": name,
            "before": document.before.imbalance.get(name),
            "after": document.after.imbalance.get(name),
        }
        for name in sorted({*document.before.imbalance, *document.after.imbalance})
    ]
    out.table(
        rows,
        {"resource": "imbalance of", "before": "before", "after": "after"},
        empty="no brokers",
        title="Forecast (1 = even)",
    )
    changes = [
        {
            "topic": each.topic,
            "before": each.before,
            "after": each.after,
            "keys": f"{each.moved_keys:.0%}" if each.keeps_keys else "",
        }
        for each in document.changes
    ]
    out.table(
        changes,
        {"topic": "topic", "before": "queues now", "after": "queues then", "keys": "moved keys"},
        empty="the plan changes nothing",
    )
    for warning in document.warnings:
        out.note(warning, style="yellow")


def _read(path: Path) -> Plan:
    try:
        if path.stat().st_size > PLAN_BYTES_MAX:
            raise UsageError(f"{path} is not a plan: it is larger than {PLAN_BYTES_MAX} bytes")
        return parse_plan(path.read_bytes())
    except OSError as error:
        raise UsageError(f"the plan {path} cannot be read: {error.strerror}") from error


def _carry_out(
    path: Path,
    nameserver: str,
    config: ApplyConfig,
    dry_run: bool,
    measure: float,
    yes: bool,
    out: Output,
    *,
    back: bool,
) -> None:
    plan = _read(path)
    journal = Journal(path.with_name(path.name + ".journal"))
    clock = SystemClock()

    async def command(stop: Stop) -> None:
        async with PlacementAdmin(nameserver, client=client_config()) as admin:
            seen = _Steps(out)
            applier = Applier(admin, plan, journal, clock=clock, config=config, watch=seen.watch)
            left = await applier.left(back=back)
            if dry_run:
                out.table(
                    [{"step": str(step), "kind": step.kind.value} for step in left],
                    {"step": "step"},
                    empty="no steps are left",
                )
                return
            for warning in plan.warnings if left else ():
                out.note(warning, style="yellow")
            if left:
                ask(f"{'Revert' if back else 'Execute'} {plural(len(left), 'step')}?", yes)
            before = (
                await measured_imbalance(admin, clock=clock, seconds=measure) if measure and left else None
            )
            if left and journal.was_cut_off():
                out.note(
                    f"the last run was interrupted and its last request may be in flight: continuing in {config.routes_s:g} s",
                    style="yellow",
                )
            with seen.bar(len(left)):
                try:
                    done = await applier.run(back=back)
                except BaseExceptionGroup as group:
                    first, *others = _leaves(group)
                    for other in others:
                        out.note(str(other), style="yellow")
                    raise first from group
            after = (
                await measured_imbalance(admin, clock=clock, seconds=measure) if measure and left else None
            )
        forecast = (plan.before if back else plan.after).imbalance
        out.document(
            {"steps": done, "measured_before": before, "measured_after": after, "forecast": forecast},
            _sentence(done, before, after, forecast.get("bytes_in")),
        )

    run(command)


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The exceptions of all topics, AerobeeErrors first."""
    leaves: list[BaseException] = []
    pending: list[BaseException] = [group]
    while pending:
        each = pending.pop(0)
        if isinstance(each, BaseExceptionGroup):
            pending += each.exceptions
        else:
            leaves.append(each)
    return sorted(leaves, key=lambda each: not isinstance(each, AerobeeError))


def _sentence(
    done: int, before: dict[str, float] | None, after: dict[str, float] | None, forecast: float | None
) -> str:
    text = f"done in {plural(done, 'step')}" if done else "no steps were left"
    if before and after:
        text += (
            f"; imbalance of bytes written: {before['bytes_in']:.2f} before, {after['bytes_in']:.2f} after"
        )
        if forecast is not None:
            text += f", {forecast:.2f} expected"
    return text


class _Steps:
    """The progress bar; without a terminal, one line for each step."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._said = ""

    def bar(self, total: int) -> Progress:
        """A progress bar that is visible inside its context."""
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._out.notes,
            transient=True,
        )
        self._task = self._progress.add_task("", total=total)
        return self._progress

    def watch(self, event: str, step: Step, reason: str) -> None:
        """The applier's callback: show one event of a step."""
        if self._progress is None or self._task is None:
            return
        text = f"{step}: {reason}" if reason else str(step)
        self._progress.update(self._task, description=visible(text), advance=1 if event == "done" else 0)
        if not self._out.notes.is_terminal and event != "begin" and text != self._said:
            self._said = text
            self._out.note(f"{event}: {text}")
