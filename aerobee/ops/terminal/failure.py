"""Turn an exception into the output for the user: one sentence, advice, and the exit code.

Exit codes (documented in docs/operations.md; a test compares both):

    0    success; also a server, or a command that follows messages, stopped with Ctrl-C and drained
    1    a server refused the request, or doctor found a failure
    2    the command line or a configuration is invalid; no request was sent
    3    no reply: the address is unreachable, the connection was lost, or the request timed out
    4    the topic, group, message or offset does not exist
    5    not permitted, or an illegal message (too large, invalid name)
    6    an error of this machine: port in use, directory locked or not writable, disk full
    70   an internal error of Aerobee; --debug shows its origin
    130  Ctrl-C before the work was complete, or a second Ctrl-C that terminated a server
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from enum import IntEnum

from aerobee import errors
from aerobee.ops.terminal.terminal import visible


class ExitCode(IntEnum):
    """Exit code of the process; see the table above."""

    DONE = 0
    REFUSED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    FORBIDDEN = 5
    LOCAL = 6
    INTERNAL = 70
    INTERRUPTED = 130


class NotFound(errors.AerobeeError):
    """A lookup had no result; the text names the object and where it was searched."""


class PortTaken(errors.AerobeeError):
    """A server cannot listen because another process uses the port."""


class LocalRefused(errors.AerobeeError):
    """An error of this machine: a directory, a file, a limit."""


class UnhealthyError(errors.AerobeeError):
    """A started or checked part is not healthy."""


class NoController(errors.AerobeeError):
    """None of the given controllers is reachable."""


class NoEpochs(errors.AerobeeError):
    """A broker's log has no epochs."""


class WaitedTooLong(errors.AerobeeError):
    """A condition did not become true in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failure ready to be printed. `advice` may be empty."""

    exit_code: ExitCode
    kind: str
    sentence: str
    advice: str = ""
    address: str = ""
    code: int | None = None

    def as_document(self) -> dict[str, object]:
        """The JSON form, under the key `error`."""
        fields: dict[str, object] = {
            "kind": self.kind,
            "message": self.sentence,
            "advice": self.advice,
            "exit_code": int(self.exit_code),
        }
        if self.address:
            fields["address"] = self.address
        if self.code is not None:
            fields["code"] = self.code
        return {"error": fields}


DOUBT = "whether the request took effect is unknown; "
# Prefixes of the names of requests that change nothing.
READS = ("GET_", "QUERY_", "VIEW_", "SEARCH_", "PULL_", "LITE_PULL_", "CHECK_", "NOTIFICATION")

# The first match applies: subclasses precede their bases.
_TABLE: tuple[tuple[type[BaseException], ExitCode, str], ...] = (
    (NotFound, ExitCode.NOT_FOUND, ""),
    (PortTaken, ExitCode.LOCAL, ""),
    (LocalRefused, ExitCode.LOCAL, ""),
    (UnhealthyError, ExitCode.REFUSED, ""),
    (WaitedTooLong, ExitCode.UNREACHABLE, ""),
    (NoController, ExitCode.UNREACHABLE, ""),
    (
        NoEpochs,
        ExitCode.REFUSED,
        "a log has epochs only where controllers elect the master: brokers with enableControllerMode=true and "
        "controllerAddr=HOST:PORT of `aerobee controller`",
    ),
    (errors.ConfigError, ExitCode.USAGE, ""),
    (errors.UsageError, ExitCode.USAGE, ""),
    (
        errors.NoNameServer,
        ExitCode.UNREACHABLE,
        "`aerobee up` starts a cluster on this machine; -n or AEROBEE_NAMESRV_ADDR select another; `aerobee doctor` "
        "recognizes the port of a broker, a TLS-only port, and the port of another program",
    ),
    (
        errors.ConnectFailed,
        ExitCode.UNREACHABLE,
        "check that the server runs and is reachable from this machine; `aerobee doctor` connects to every part of a cluster",
    ),
    (
        errors.ConnectionLost,
        ExitCode.UNREACHABLE,
        DOUBT + "`aerobee doctor` shows which parts respond",
    ),
    (
        errors.NoReply,
        ExitCode.UNREACHABLE,
        "a consumer of the topic must reply with reply_to(); `aerobee why --group G --message ID` shows its progress",
    ),
    (
        errors.RequestTimeout,
        ExitCode.UNREACHABLE,
        DOUBT + "check with `aerobee doctor` that this is an Aerobee or RocketMQ port",
    ),
    (
        errors.NotWritable,
        ExitCode.FORBIDDEN,
        "`aerobee topic describe NAME` shows the topic's permission, `aerobee topic update NAME --perm rw` restores it; "
        "`aerobee cluster list` shows whether its master is up",
    ),
    (
        errors.RouteError,
        ExitCode.NOT_FOUND,
        "`aerobee topic list` shows the existing topics, `aerobee doctor` whether their brokers are registered",
    ),
    (
        errors.NoBroker,
        ExitCode.NOT_FOUND,
        "start one with `aerobee broker -n HOST:PORT`; `aerobee doctor` checks a running broker",
    ),
    (errors.TopicNotExist, ExitCode.NOT_FOUND, "see `aerobee topic list`, or `aerobee topic create NAME`"),
    (errors.SubscriptionGroupNotExist, ExitCode.NOT_FOUND, "see `aerobee group list`"),
    (errors.QueryNotFound, ExitCode.NOT_FOUND, "it was never stored there, or it has expired"),
    (errors.ConsumerNotOnline, ExitCode.NOT_FOUND, "no consumer of the group is connected now"),
    (
        errors.NoPermission,
        ExitCode.FORBIDDEN,
        "`aerobee topic describe NAME` shows the topic's permission; with access control, set AEROBEE_ACCESS_KEY and "
        "AEROBEE_SECRET_KEY, or a context (`aerobee context set`)",
    ),
    (
        errors.MessageIllegal,
        ExitCode.FORBIDDEN,
        "the broker's limits are maxMessageSize (default 4 MiB) and, for delays, timerMaxDelaySec (default 3 days); "
        "`aerobee topic describe` shows the topic's message type",
    ),
    (errors.SystemBusy, ExitCode.REFUSED, "the broker sheds load: retry, or send at a lower rate"),
    (
        errors.ServiceNotAvailable,
        ExitCode.REFUSED,
        "`aerobee doctor` shows the disk usage and state of each broker",
    ),
    (
        errors.RequestNotSupported,
        ExitCode.REFUSED,
        "the server is of another kind or version: -n takes the address of a NameServer, not of a broker",
    ),
    (
        errors.SubscriptionParseFailed,
        ExitCode.USAGE,
        "`aerobee filter test EXPRESSION` checks an expression",
    ),
    (errors.RemoteError, ExitCode.REFUSED, ""),
    (
        errors.MessageDamaged,
        ExitCode.REFUSED,
        "run `aerobee store verify` on the broker's machine to list the damage",
    ),
    (
        errors.WireError,
        ExitCode.UNREACHABLE,
        "the server at this address does not speak RocketMQ's remoting protocol",
    ),
    (errors.StoreError, ExitCode.LOCAL, ""),
    (errors.AerobeeError, ExitCode.REFUSED, ""),
)

# Requests that only controllers serve.
OF_CONTROLLERS = ("CONTROLLER_", "AEROBEE_QUORUM", "AEROBEE_CHANGE_QUORUM")
SET_KEY = re.compile(r"\bset [a-z]+[A-Z]\w*=")  # in a remark that names the setting to change
GRANT = "`aerobee acl allow "  # in the remark of a broker that names the command


def explain(error: BaseException) -> Failure:
    """Turn an exception into a Failure; an unexpected one becomes INTERNAL."""
    if isinstance(error, BaseExceptionGroup):
        return explain(_first_leaf(error))
    if isinstance(error, errors.SendFailed):
        return _send_failed(error)
    for kind, exit_code, advice in _TABLE:
        if isinstance(error, kind):
            return Failure(
                exit_code=exit_code,
                kind=type(error).__name__,
                sentence=one_sentence(error.plain if isinstance(error, errors.AerobeeError) else str(error)),
                advice=_fitting(error, advice),
                address=str(getattr(error, "address", "")),
                code=error.code if isinstance(error, errors.RemoteError) else None,
            )
    if isinstance(error, OSError):
        return _os_failure(error)
    return Failure(
        exit_code=ExitCode.INTERNAL,
        kind=type(error).__name__,
        sentence=f"internal error in Aerobee: {type(error).__name__}: {one_sentence(str(error))}",
        advice="run again with `aerobee --debug …` and report the output",
    )


def _fitting(error: BaseException, advice: str) -> str:
    """The advice of the error's class, without what this error rules out.

    A request that only reads has no effect, whether or not it was answered. A refusal that names the command that grants
    the permission, or the setting of the broker, needs no advice about keys.
    """
    if isinstance(error, errors.NoPermission) and (GRANT in error.remark or SET_KEY.search(error.remark)):
        return ""
    if isinstance(error, errors.RequestNotSupported) and str(error.request).startswith(OF_CONTROLLERS):
        return "the server is no controller: --controller takes the addresses of controllers, not of a NameServer"
    if str(getattr(error, "request", "")).startswith(READS):
        return advice.removeprefix(DOUBT)
    return advice


def one_sentence(text: str) -> str:
    """Collapse a text to one line without the full stop."""
    return visible(" ".join(text.split())).rstrip(".") or "no reason given"


def _send_failed(error: errors.SendFailed) -> Failure:
    """The Failure of a send, with the advice for the error of the last try."""
    causes = [cause for _, cause in error.attempts]
    if not causes:
        return Failure(exit_code=ExitCode.REFUSED, kind="SendFailed", sentence=one_sentence(str(error)))
    inner = explain(causes[-1])
    return Failure(
        exit_code=inner.exit_code,
        kind="SendFailed",
        sentence=one_sentence(error.plain),
        advice=inner.advice,
        address=inner.address,
        code=inner.code,
    )


def _os_failure(error: OSError) -> Failure:
    path = f"{error.filename}: " if error.filename else ""
    advice = {
        errno.EACCES: "check owner and permissions, or choose another path",
        errno.ENOENT: "check the path",
        errno.ENOSPC: "free space, or choose a directory on another disk",
        errno.EADDRINUSE: "another process uses the port; choose another one",
        errno.EADDRNOTAVAIL: "this machine has no such address",
        errno.EMFILE: "raise the limit of open files (ulimit -n)",
    }.get(error.errno or 0, "")
    return Failure(
        exit_code=ExitCode.LOCAL,
        kind=type(error).__name__,
        sentence=one_sentence(f"{path}{error.strerror or error}"),
        advice=advice,
    )


def _first_leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    leaf: BaseException = group
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    return leaf
