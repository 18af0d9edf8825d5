"""From an exception to what a user sees: one sentence, what to do, and the exit code.

Exit codes (documented in docs/operations.md, held to it by a test):

    0    done; a server or a follower that was stopped with Ctrl-C and drained
    1    a peer answered no, or doctor found a fault
    2    the command line or a configuration is wrong; nothing was tried
    3    no answer: nothing listens there, the connection was lost, or time ran out
    4    what was asked for does not exist: topic, group, message, offset
    5    not allowed: permission, or the message is illegal (too large, bad name)
    6    this machine refuses: port taken, directory locked or not writable, disk full
    70   a fault in Aerobee itself; --debug shows where
    130  Ctrl-C before the work was done, or a second Ctrl-C that forced an end
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import IntEnum

from aerobee import errors
from aerobee.ops.terminal.terminal import visible


class ExitCode(IntEnum):
    """What the process ends with; see the table above."""

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
    """A lookup had no result; the text names what was looked for and where."""


class PortTaken(errors.AerobeeError):
    """A server cannot listen because another process does."""


class LocalRefused(errors.AerobeeError):
    """This machine refuses: a directory, a file, a limit."""


class UnhealthyError(errors.AerobeeError):
    """Something was started or checked and is not well."""


class NoController(errors.AerobeeError):
    """None of the controllers that were named can be reached."""


class NoEpochs(errors.AerobeeError):
    """A broker was asked for the epochs of its log and keeps none."""


class WaitedTooLong(errors.AerobeeError):
    """A condition did not come true in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failure ready to be printed. `advice` may be empty when the sentence says it all."""

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
# How the names of requests begin that change nothing.
READS = ("GET_", "QUERY_", "VIEW_", "SEARCH_", "PULL_", "LITE_PULL_", "CHECK_", "NOTIFICATION")

# First match wins: subclasses stand before their bases.
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
        "a log has epochs where controllers choose the master: brokers with enableControllerMode=true and controllerAddr=HOST:PORT "
        "of `aerobee controller`",
    ),
    (errors.ConfigError, ExitCode.USAGE, ""),
    (errors.UsageError, ExitCode.USAGE, ""),
    (
        errors.NoNameServer,
        ExitCode.UNREACHABLE,
        "`aerobee up` starts a cluster here; -n or AEROBEE_NAMESRV_ADDR name another; `aerobee doctor` tells a broker's "
        "port, one that takes TLS only, and one of another program",
    ),
    (
        errors.ConnectFailed,
        ExitCode.UNREACHABLE,
        "does a server run there, and can it be reached from this machine? `aerobee doctor` dials every part of a cluster",
    ),
    (
        errors.ConnectionLost,
        ExitCode.UNREACHABLE,
        DOUBT + "`aerobee doctor` shows which parts answer",
    ),
    (
        errors.NoReply,
        ExitCode.UNREACHABLE,
        "a consumer of the topic has to answer with reply_to(); `aerobee why --group G --message ID` tells what it does",
    ),
    (
        errors.RequestTimeout,
        ExitCode.UNREACHABLE,
        DOUBT + "is this an Aerobee or RocketMQ port? Try `aerobee doctor`",
    ),
    (
        errors.NotWritable,
        ExitCode.FORBIDDEN,
        "`aerobee topic describe NAME` shows its permission, `aerobee topic update NAME --perm rw` gives it back; "
        "`aerobee cluster list` shows whether its master is up",
    ),
    (
        errors.RouteError,
        ExitCode.NOT_FOUND,
        "`aerobee topic list` shows which topics there are, `aerobee doctor` whether their brokers are registered",
    ),
    (
        errors.NoBroker,
        ExitCode.NOT_FOUND,
        "start one with `aerobee broker -n HOST:PORT`; `aerobee doctor` says what is wrong with one that runs",
    ),
    (errors.TopicNotExist, ExitCode.NOT_FOUND, "see `aerobee topic list`, or `aerobee topic create NAME`"),
    (errors.SubscriptionGroupNotExist, ExitCode.NOT_FOUND, "see `aerobee group list`"),
    (errors.QueryNotFound, ExitCode.NOT_FOUND, "it was never stored there, or retention has removed it"),
    (errors.ConsumerNotOnline, ExitCode.NOT_FOUND, "no consumer of the group is connected now"),
    (
        errors.NoPermission,
        ExitCode.FORBIDDEN,
        "`aerobee topic describe NAME` shows what the topic permits; where there is access control, AEROBEE_ACCESS_KEY and "
        "AEROBEE_SECRET_KEY, or a context (`aerobee context set`), say who asks",
    ),
    (
        errors.MessageIllegal,
        ExitCode.FORBIDDEN,
        "the broker's limits are maxMessageSize, 4 MiB unless changed, and for delays timerMaxDelaySec, 3 days; "
        "`aerobee topic describe` shows the topic's kind",
    ),
    (errors.SystemBusy, ExitCode.REFUSED, "the broker sheds load; try again, or send slower"),
    (
        errors.ServiceNotAvailable,
        ExitCode.REFUSED,
        "`aerobee doctor` shows disk and write state of each broker",
    ),
    (
        errors.RequestNotSupported,
        ExitCode.REFUSED,
        "the peer is of another kind or version: -n takes a NameServer's address, not a broker's",
    ),
    (
        errors.SubscriptionParseFailed,
        ExitCode.USAGE,
        "`aerobee filter test EXPRESSION` tries an expression",
    ),
    (errors.RemoteError, ExitCode.REFUSED, ""),
    (
        errors.MessageDamaged,
        ExitCode.REFUSED,
        "`aerobee store verify`, where the broker is, shows what is damaged",
    ),
    (
        errors.WireError,
        ExitCode.UNREACHABLE,
        "what listens there does not speak RocketMQ's remoting protocol",
    ),
    (errors.StoreError, ExitCode.LOCAL, ""),
    (errors.AerobeeError, ExitCode.REFUSED, ""),
)

GRANT = "`aerobee acl allow "  # in the remark of a broker that names the command


def explain(error: BaseException) -> Failure:
    """Turn an exception into a Failure; one that nobody foresaw becomes INTERNAL."""
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
        sentence=f"this is a fault in Aerobee: {type(error).__name__}: {one_sentence(str(error))}",
        advice="run again with `aerobee --debug …` and report what it prints",
    )


def _fitting(error: BaseException, advice: str) -> str:
    """The advice of the error's class, without what this error rules out.

    A request that only reads has no effect, whether or not it was answered. A refusal that names the command that grants
    the permission needs no advice about keys.
    """
    if isinstance(error, errors.NoPermission) and GRANT in error.remark:
        return ""
    if str(getattr(error, "request", "")).startswith(READS):
        return advice.removeprefix(DOUBT)
    return advice


def one_sentence(text: str) -> str:
    """Collapse a text to one line without the full stop."""
    return visible(" ".join(text.split())).rstrip(".") or "no reason given"


def _send_failed(error: errors.SendFailed) -> Failure:
    """The last try says why; its class says what to do."""
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
    place = f"{error.filename}: " if error.filename else ""
    advice = {
        errno.EACCES: "check owner and permissions, or choose another path",
        errno.ENOENT: "check the path",
        errno.ENOSPC: "free space, or choose a directory on another disk",
        errno.EADDRINUSE: "another process listens there; choose another port",
        errno.EADDRNOTAVAIL: "this machine has no such address",
        errno.EMFILE: "raise the limit of open files (ulimit -n)",
    }.get(error.errno or 0, "")
    return Failure(
        exit_code=ExitCode.LOCAL,
        kind=type(error).__name__,
        sentence=one_sentence(f"{place}{error.strerror or error}"),
        advice=advice,
    )


def _first_leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    leaf: BaseException = group
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    return leaf
