"""`aerobee doctor`: connect to every advertised address of the cluster, and report failures with their remedies.

The most common failure of a new cluster is a broker that advertises an address which clients cannot reach; the client
only sees a time-out. Each check is one Finding; a check that depends on a failed one is skipped.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from aerobee.client.base.results import BrokerInfo
from aerobee.clock import Clock, SystemClock
from aerobee.errors import AerobeeError, NoPermission, RemoteError, UsageError
from aerobee.host_port import NAMESERVER_DEFAULT, WILDCARDS, bare_host, is_loopback, split_address
from aerobee.ops.commands.cluster import first_rate
from aerobee.ops.commands.ha import opened
from aerobee.ops.diagnosis.finding import Finding
from aerobee.ops.diagnosis.grpc_findings import examine_grpc, examine_proxies
from aerobee.ops.diagnosis.lag_findings import examine_lag
from aerobee.ops.diagnosis.tls_probe import tls_advice
from aerobee.ops.options.clients import open_admin
from aerobee.ops.options.options import AsJson, NameServers
from aerobee.ops.options.shared_options import client_config
from aerobee.ops.terminal.ack_level import ack_sentence_of
from aerobee.ops.terminal.failure import ExitCode, explain
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run
from aerobee.words import plural

DIAL_TIMEOUT_S = 3.0
DLQ_GROUPS_MAX = 500  # groups whose dead-letter messages are counted
SKEW_MAX_S = 5.0  # brokers report their age in whole seconds, so a smaller skew is not measurable
# Percent, for a broker that does not report its settings: the defaults of RocketMQ and Aerobee.
DISK_DELETES_EARLY = 75  # diskMaxUsedSpaceRatio
DISK_REFUSES = 90  # diskSpaceWarningLevelRatio
REGISTRATION_AGE_MAX_S = 90.0  # a broker registers every 30 s; a NameServer removes it after 120 s
TROUBLE_LASTS_S = 5.0  # a slave reconnects every second
TROUBLE_LOOK_S = 0.5
_STUCK = "the broker retries every second; its log has the complete error"
_NO_INDEX = (
    "free disk space and restart the broker; messages stored until then are delivered, but not found by key"
)
_PORT_IN_USE = (
    "the broker tries again every 30 s; find the process that uses the port with `ss -tanp`, and stop it"
)
_SHARED_ID = (
    "set another instance name at one of these clients; `aerobee why --group GROUP` shows the members"
)
_AGE = re.compile(r"(\d+) days?, (\d+) hours?, (\d+) minutes?, (\d+) seconds?")
SYMBOLS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "bold red")}


@dataclass(frozen=True, slots=True)
class Dial:
    """One attempt to open a TCP connection. `problem` is empty after a success."""

    milliseconds: float
    problem: str = ""


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    nameserver: NameServers = NAMESERVER_DEFAULT,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the details of passed checks as well.")
    ] = False,
    proxies: Annotated[
        list[str] | None,
        typer.Option(
            "--proxy",
            metavar="HOST:PORT",
            help="Also check this gRPC proxy, or the balancer before it; may be repeated.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check from this machine that every part of the cluster is reachable and healthy."""
    out = Output(as_json)

    async def command(stop: Stop) -> list[Finding]:
        found = await examine(split_addresses(nameserver))
        return [*found, *await examine_proxies(proxies or ())]

    findings = run(command)
    failed = [finding for finding in findings if finding.level == "fail"]
    if as_json:
        out.document({"healthy": not failed, "findings": findings})
    else:
        for finding in findings:
            symbol, style = SYMBOLS[finding.level]
            out.say(f"{symbol} {finding.part}  {finding.check}: {finding.detail}", style=style)
            if finding.advice:
                out.say(f"    → {finding.advice}")
        warned = sum(finding.level == "warn" for finding in findings)
        out.say(
            f"{plural(len(findings), 'check')}, {len(failed)} failed, {plural(warned, 'warning')}"
            if failed or warned
            else f"{plural(len(findings), 'check')}, all passed",
            style="bold",
        )
    raise typer.Exit(int(ExitCode.REFUSED if failed else ExitCode.DONE))


def split_addresses(text: str) -> list[str]:
    """Split "host:port;host:port" into a list."""
    return [piece.strip() for piece in text.replace(",", ";").split(";") if piece.strip()]


async def examine(nameservers: list[str]) -> list[Finding]:
    """Run all checks."""
    findings: list[Finding] = []
    known: dict[str, tuple[BrokerInfo, ...]] = {}
    for address in nameservers:
        found, brokers = await _examine_nameserver(address)
        findings += found
        if brokers is not None:
            known[address] = brokers
    if not known:
        return findings
    everything = sorted({info for brokers in known.values() for info in brokers}, key=_order)
    if not everything:
        findings.append(
            Finding(
                part="cluster",
                check="brokers",
                level="fail",
                detail="no broker is registered",
                advice="start one with `aerobee broker -n "
                + ";".join(nameservers)
                + "`; if a broker is running, its namesrvAddr "
                "names other NameServers",
            )
        )
    for info in everything:
        absent = [address for address, brokers in known.items() if info not in brokers]
        if absent:
            findings.append(
                Finding(
                    part=_name(info),
                    check="registration",
                    level="fail",
                    detail=f"{info.address} is not registered at {', '.join(absent)}",
                    advice="clients of that NameServer do not find the broker: list every NameServer in the broker's "
                    "namesrvAddr, and check that the broker's machine can reach each of them",
                )
            )
    controllers: set[str] = set()
    for found in await asyncio.gather(
        *(_examine_broker(info, list(known), controllers) for info in everything)
    ):
        findings += found
    for addresses in sorted(controllers):
        findings += await _examine_controllers(addresses)
    findings += await _examine_dead_letters(list(known))
    findings += await examine_lag(list(known), time.time_ns() // 1_000_000)
    return findings


async def _examine_controllers(addresses: str) -> list[Finding]:
    """Check for replicas that no longer send heartbeats to the controllers."""
    part = f"controllers {addresses}"
    try:
        async with opened(addresses) as quorum:
            status = await quorum.status()
    except RemoteError:
        return []  # RocketMQ's controllers do not answer this request
    except AerobeeError as error:
        advice = "start the controllers that the brokers' controllerAddr names, or check that this machine can reach them"
        detail = explain(error).sentence
        return [Finding(part=part, check="request", level="warn", detail=detail, advice=advice)]
    return absent_replicas(part, status)


def absent_replicas(part: str, status: Mapping[str, Any]) -> list[Finding]:
    """One warning for each replica without heartbeats, from the answer of AEROBEE_QUORUM_STATUS."""
    findings = []
    for group in status.get("brokerGroups", ()):
        for replica in group["brokers"]:
            if replica["isAlive"]:
                continue
            name = f"broker {group['brokerName']} (id {replica['brokerId']}) at {replica['address']}"
            if replica["isDiskSound"]:
                detail = f"{name} is gone: the controllers receive no heartbeats"
                advice = f"start it, or run `aerobee ha forget {group['brokerName']} {replica['brokerId']}` if it will not come back"
            else:
                detail = f"{name} cannot write to its disk"
                advice = (
                    "free disk space or replace the disk: the replica cannot become master, and its lag grows"
                )
            findings.append(Finding(part=part, check="replica", level="warn", detail=detail, advice=advice))
    return findings or [Finding(part=part, check="replicas", level="ok", detail="all send heartbeats")]


async def _examine_dead_letters(nameservers: list[str]) -> list[Finding]:
    """Check for consumer groups with dead-letter messages that are not redriven."""
    try:
        async with open_admin(nameservers) as admin:
            groups = await admin.dead_letter_groups()
            counts = {
                group: sum(queue.waiting for queue in await admin.dead_letter_queues(group))
                for group in groups[:DLQ_GROUPS_MAX]
            }
    except AerobeeError as error:
        detail = explain(error).sentence
        return [Finding(part="cluster", check="dead letters", level="warn", detail=detail)]
    return dead_letter_findings(counts, left_out=len(groups) - len(counts))


def dead_letter_findings(counts: Mapping[str, int], *, left_out: int = 0) -> list[Finding]:
    """One warning for each group with dead-letter messages. `left_out`: number of groups that were not checked."""
    findings = [
        Finding(
            part=f"group {group}",
            check="dead letters",
            level="warn",
            detail=f"{plural(count, 'dead-letter message')} not redriven",
            advice=f"`aerobee dlq show {group}` shows them, `aerobee dlq redrive {group}` redrives them",
        )
        for group, count in counts.items()
        if count
    ]
    if left_out:
        detail = f"{plural(left_out, 'group')} not checked: the limit is {DLQ_GROUPS_MAX} groups"
        findings.append(Finding(part="cluster", check="dead letters", level="warn", detail=detail))
    return findings or [Finding(part="cluster", check="dead letters", level="ok", detail="none to redrive")]


async def dial(address: str) -> Dial:
    """Open a TCP connection and close it."""
    began = time.perf_counter()
    try:
        host, port = split_address(address)
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return Dial(DIAL_TIMEOUT_S * 1000, f"no answer within {DIAL_TIMEOUT_S:.0f} s")
    except (OSError, UsageError) as error:
        return Dial((time.perf_counter() - began) * 1000, str(getattr(error, "strerror", None) or error))
    milliseconds = (time.perf_counter() - began) * 1000
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:
        return Dial(milliseconds, "the peer closes the connection immediately")
    return Dial(milliseconds)


async def _examine_nameserver(address: str) -> tuple[list[Finding], tuple[BrokerInfo, ...] | None]:
    part = f"nameserver {address}"
    dialled = await dial(address)
    if dialled.problem:
        return [
            Finding(
                part=part,
                check="dial",
                level="fail",
                detail=dialled.problem,
                advice="the address is unreachable: start the NameServer (`aerobee up` or `aerobee nameserver`), or "
                "correct the address (-n, AEROBEE_NAMESRV_ADDR)",
            )
        ], None
    try:
        async with open_admin(address) as admin:
            brokers = await admin.brokers()
    except AerobeeError as error:
        advice = await connection_advice(address, error)
        return [
            Finding(
                part=part,
                check="request",
                level="fail",
                detail=explain(error).sentence,
                advice=advice
                or "the port is open but no NameServer answers: it may be the port of a broker or of another program",
            )
        ], None
    detail = f"answers in {dialled.milliseconds:.1f} ms, registered: {plural(len(brokers), 'broker')}"
    return [Finding(part=part, check="dial", level="ok", detail=detail)], brokers


async def connection_advice(address: str, error: AerobeeError) -> str:
    """Advice after a failed request to an open port; "" if neither TLS nor a permission is the cause."""
    if isinstance(error, NoPermission):
        return explain(error).advice
    if isinstance(error, RemoteError):
        return ""  # the peer replied, so the connection works
    return await tls_advice(address, with_tls=client_config().tls)


async def _examine_broker(info: BrokerInfo, nameservers: list[str], controllers: set[str]) -> list[Finding]:
    """Check one broker, and add the controllers of its settings to `controllers`."""
    part = _name(info)
    dialled = await dial(info.address)
    if dialled.problem:
        return [_unreachable(part, "advertised address", info.address, dialled)]
    findings = [
        Finding(
            part=part,
            check="advertised address",
            level="ok",
            detail=f"{info.address} answers in {dialled.milliseconds:.1f} ms",
        )
    ]
    try:
        async with open_admin(nameservers) as admin:
            runtime = await lasting_runtime(lambda: admin.broker_runtime(info.address))
            config = await admin.broker_config(info.address)
    except AerobeeError as error:
        advice = await connection_advice(info.address, error)
        return [
            *findings,
            Finding(
                part=part,
                check="request",
                level="fail",
                detail=explain(error).sentence,
                advice=advice
                or "the port is open but no broker answers: the broker hangs, or another program listens on the port",
            ),
        ]
    findings += runtime_findings(part, runtime, config, time.time())
    if config.get("enableControllerMode", "").lower() == "true" and config.get("controllerAddr"):
        controllers.add(config["controllerAddr"])
    findings += await _examine_listeners(part, info, config)
    findings += await examine_grpc(part, info.address, runtime, config)
    findings += await _examine_routes(part, info, nameservers)
    return findings


async def lasting_runtime(
    ask: Callable[[], Awaitable[Mapping[str, str]]], *, clock: Clock | None = None
) -> Mapping[str, str]:
    """A broker's runtime values. While they report trouble, they are read again for up to 5 s, so that only lasting trouble
    is reported: a slave reconnects by itself after its own or its master's start, and a new master starts all services.
    """
    clock = clock or SystemClock()
    until_s = clock.monotonic() + TROUBLE_LASTS_S
    while (runtime := await ask()) and _has_trouble(runtime) and clock.monotonic() < until_s:
        await clock.sleep(TROUBLE_LOOK_S)
    return runtime


def _has_trouble(runtime: Mapping[str, str]) -> bool:
    return bool(runtime.get("haTrouble") or runtime.get("unservedKinds"))


def runtime_findings(
    part: str, runtime: Mapping[str, str], config: Mapping[str, str], now_s: float
) -> list[Finding]:
    """Findings from a broker's runtime values: version, clock, disk, registration. No I/O."""
    findings = [
        Finding(
            part=part,
            check="version",
            level="ok",
            detail=f"{runtime.get('brokerVersionDesc', 'unknown')}; {ack_sentence_of(config)}",
        )
    ]
    skew_s = clock_skew_s(runtime, now_s)
    if skew_s is not None:
        off = abs(skew_s) > SKEW_MAX_S
        findings.append(
            Finding(
                part=part,
                check="clock",
                level="warn" if off else "ok",
                detail=f"{abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} this machine"
                if off
                else "agrees with this machine",
                advice="delays, retention and `--from` times follow the broker's clock: run NTP on both"
                if off
                else "",
            )
        )
    findings += _waiting_findings(part, runtime)
    findings += _disk_findings(part, runtime, config)
    findings += replication_findings(part, runtime)
    if unserved := runtime.get("unservedKinds"):
        findings.append(
            Finding(
                part=part,
                check="message types",
                level="fail",
                detail=f"the master refuses messages that it cannot serve: {unserved}",
                advice="the master retries every second; fix the stated cause, or elect another master (aerobee ha elect)",
            )
        )
    if runtime.get("brokerActive", "true").lower() == "false":
        findings.append(
            Finding(
                part=part,
                check="state",
                level="fail",
                detail="the broker is not active: it refuses client requests",
                advice="the broker is starting, stopping, or isolated; see its log",
            )
        )
    findings += [
        Finding(part=part, check=check, level="warn", detail=before + text, advice=advice)
        for key, check, before, advice in (
            ("portsNotBound", "ports", "the broker cannot bind port ", _PORT_IN_USE),
            ("clientIdsShared", "client ids", "", _SHARED_ID),
        )
        for text in filter(None, runtime.get(key, "").split("\n"))
    ]
    for key, value in sorted(runtime.items()):
        if key.startswith("registeredAt_"):
            findings.append(
                _registration_finding(part, key.removeprefix("registeredAt_"), value, now_s + (skew_s or 0))
            )
    return findings


def _waiting_findings(part: str, runtime: Mapping[str, str]) -> list[Finding]:
    """Findings about timers, key index, pop and store times; none for brokers that do not report them (RocketMQ's)."""
    findings = [
        Finding(part=part, check=check, level="fail", detail=f"{what}: {runtime[key]}", advice=advice)
        for key, check, what, advice in (
            ("timerTrouble", "timers", "timer messages are not delivered", _STUCK),
            ("indexTrouble", "key index", "messages are stored without index entries", _NO_INDEX),
            ("popTrouble", "pop", "unacknowledged popped messages are not redelivered", _STUCK),
        )
        if runtime.get(key)
    ]
    ahead = runtime.get("storeTimeAheadMs", "")
    if ahead.isdecimal() and int(ahead) > SKEW_MAX_S * 1000:
        findings.append(
            Finding(
                part=part,
                check="store times",
                level="warn",
                detail=f"the newest store time is {int(ahead) // 1000} s ahead of the clock, which was set back",
                advice="until the clock has caught up, new messages get this store time: do not rely on store times or on "
                "offset lookups by time; delays, timers and retention follow the clock",
            )
        )
    return findings


def _bytes_behind(runtime: Mapping[str, str]) -> str:
    behind = runtime.get("haBehind", "")
    return plural(int(behind), "byte") if behind.isdecimal() else "an unknown number of bytes"


def replication_findings(part: str, runtime: Mapping[str, str]) -> list[Finding]:
    """A broker's role, its lagging replicas and the causes. No I/O. None for brokers that do not report them (RocketMQ's)."""
    role = runtime.get("haRole")
    if not role:
        return []
    epoch = f" in epoch {runtime['haEpoch']}" if runtime.get("haEpoch", "0") != "0" else ""
    trouble = runtime.get("haTrouble", "")
    if trouble:
        return [
            Finding(
                part=part,
                check="replication",
                level="fail",
                detail=f"{role}{epoch}, {_bytes_behind(runtime)} behind: {trouble}",
                advice="a loss of the master now loses all later messages; see the replica's log and docs/replication.md",
            )
        ]
    if "haMaster" in runtime:
        detail = (
            f"{role}{epoch}: follows {runtime['haMaster'] or 'no master'}, {_bytes_behind(runtime)} behind"
        )
        return [Finding(part=part, check="replication", level="ok", detail=detail)]
    replicas = [each for each in runtime.get("haReplicas", "").split(";") if each]
    lagging = [each for each in replicas if "not in sync: " in each and "asyncLearner" not in each]
    missing = runtime.get("haMissing", "")
    in_set = f", the sync state set is {runtime['haSyncStateSet']}" if "haSyncStateSet" in runtime else ""
    findings = [
        Finding(
            part=part,
            check="replication",
            level="ok",
            detail=f"{role}{epoch} ({runtime.get('haRoleReason', '')}), {plural(len(replicas), 'replica')}{in_set}",
        )
    ]
    for each in lagging:
        findings.append(
            Finding(
                part=part,
                check="replica",
                level="warn",
                detail=each,
                advice="acknowledgements do not wait for this replica, and it cannot become master: check its log, its disk "
                "and its link to the master",
            )
        )
    if missing:
        findings.append(
            Finding(
                part=part,
                check="replica",
                level="warn",
                detail=f"broker {missing} is in the sync state set but not connected",
                advice="acknowledgements wait for it until it leaves the set: start it, or run `aerobee ha forget` if it "
                "will not come back",
            )
        )
    return findings


def _disk_findings(part: str, runtime: Mapping[str, str], config: Mapping[str, str]) -> list[Finding]:
    """Compare the disk usage with this broker's settings, not with the defaults."""
    early = first_rate(config.get("diskMaxUsedSpaceRatio")) or DISK_DELETES_EARLY
    full = first_rate(config.get("diskSpaceWarningLevelRatio")) or DISK_REFUSES
    findings = []
    for key, what in (("commitLogDiskRatio", "commit log"), ("consumeQueueDiskRatio", "consume queues")):
        ratio = first_rate(runtime.get(key))
        if ratio is None or ratio < 0:
            continue
        level = "fail" if ratio * 100 > full else "warn" if ratio * 100 > early else "ok"
        advice = {
            "fail": f"the broker refuses messages above {full:g} %: free disk space, or lower fileReservedTime",
            "warn": f"above {early:g} % the broker deletes old messages early; above {full:g} % it refuses new ones",
            "ok": "",
        }[level]
        findings.append(
            Finding(
                part=part, check=f"disk of the {what}", level=level, detail=f"{ratio:.0%} used", advice=advice
            )
        )
    return findings


def _registration_finding(part: str, nameserver: str, value: str, now_s: float) -> Finding:
    registered_ms = int(value) if value.isdecimal() else 0
    age_s = now_s - registered_ms / 1000
    good = registered_ms > 0 and age_s <= REGISTRATION_AGE_MAX_S
    return Finding(
        part=part,
        check=f"registration at {nameserver}",
        level="ok" if good else "fail",
        detail=f"{max(age_s, 0):.0f} s ago" if registered_ms else "it never succeeded",
        advice="" if good else "the broker cannot reach that NameServer, which removes it after 120 s",
    )


def clock_skew_s(runtime: Mapping[str, str], now_s: float) -> float | None:
    """Seconds by which the broker's clock is ahead of ours, from its boot time and age; None when it does not report both."""
    boot = runtime.get("bootTimestamp", "")
    age = _AGE.search(runtime.get("runtime", ""))
    if not boot.isdecimal() or age is None:
        return None
    days, hours, minutes, seconds = (int(part) for part in age.groups())
    its_now_s = int(boot) / 1000 + ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return its_now_s - now_s


def advertised_listeners(config: Mapping[str, str]) -> dict[str, str]:
    """Listener name -> "host:port" that a broker advertises; empty without named listeners."""
    listeners = dict(_named(config.get("listeners", "")))
    listeners.update(_named(config.get("advertisedListeners", "")))
    return {
        name: address
        for name, address in listeners.items()
        if bare_host(address.rpartition(":")[0]) not in WILDCARDS
    }


def _named(text: str) -> list[tuple[str, str]]:
    pieces = [piece.strip().partition("://") for piece in text.replace(";", ",").split(",") if "://" in piece]
    return [(name, address) for name, _, address in pieces]


async def _examine_listeners(part: str, info: BrokerInfo, config: Mapping[str, str]) -> list[Finding]:
    findings = []
    for name, address in advertised_listeners(config).items():
        if address == info.address:
            continue
        dialled = await dial(address)
        if dialled.problem:
            finding = _unreachable(part, f"listener {name}", address, dialled)
            # A broker advertises to a client only addresses of the listener that the client uses: others may be unreachable.
            findings.append(
                Finding(
                    part=part, check=finding.check, level="warn", detail=finding.detail, advice=finding.advice
                )
            )
        else:
            findings.append(
                Finding(
                    part=part,
                    check=f"listener {name}",
                    level="ok",
                    detail=f"{address} answers in {dialled.milliseconds:.1f} ms",
                )
            )
    return findings


async def _examine_routes(part: str, info: BrokerInfo, nameservers: list[str]) -> list[Finding]:
    """Check at each NameServer that the route of the topic named like the broker is readable; it always exists."""
    findings = []
    for address in nameservers:
        try:
            async with open_admin(address) as admin:
                await admin.topic_route(info.broker_name)
        except AerobeeError as error:
            findings.append(
                Finding(
                    part=part,
                    check=f"route at {address}",
                    level="fail",
                    detail=explain(error).sentence,
                    advice="the broker registered without its topics: restart it, and see its log",
                )
            )
        else:
            findings.append(Finding(part=part, check=f"route at {address}", level="ok", detail="readable"))
    return findings


def _unreachable(part: str, check: str, address: str, dialled: Dial) -> Finding:
    if is_loopback(address.rpartition(":")[0]):
        why = "the broker is down, or advertises a loopback address, which only clients on its machine can reach"
    else:
        why = "the broker is down, a firewall blocks it, or it advertises an address of another network"
    return Finding(
        part=part,
        check=check,
        level="fail",
        detail=f"{address}: {dialled.problem}",
        advice=f"{why}; clients connect to exactly this address: set brokerIP1, or listeners and advertisedListeners, "
        "to an address that clients can reach",
    )


def _name(info: BrokerInfo) -> str:
    return f"broker {info.broker_name}" + (f" (id {info.broker_id})" if info.broker_id else "")


def _order(info: BrokerInfo) -> tuple[str, str, int, str]:
    return info.cluster, info.broker_name, info.broker_id, info.address
