"""`aerobee --help` on one screen: each command in one line, by what a user wants; connection options once."""

from __future__ import annotations

from collections.abc import Mapping

GROUPS: Mapping[str, Mapping[str, str]] = {
    "Use": {
        "up": "start a NameServer and brokers on this machine",
        "send": "send messages",
        "consume": "print the messages of a topic as they arrive",
        "topic": "topics: list, create, update, delete, describe",
        "group": "consumer groups: list, create, describe, lag, delete",
        "offset": "committed offsets of a group: show, reset, skip, clone",
        "message": "stored messages: by id, key, offset or time",
        "dlq": "dead-letter messages: list, show, redrive",
        "why": "why a message or a group is late",
        "trace": "when and by which client a message was sent and consumed",
        "filter": "SQL92 filters: try an expression",
        "timer": "timer messages: list, recall, reschedule, stats",
        "schedule": "recurring schedules: create, list, next, pause, resume, delete",
        "transaction": "open transactions: list, commit, rollback, check",
        "context": "named clusters, with addresses and connection options",
    },
    "Operate": {
        "nameserver": "run a NameServer in this process",
        "broker": "run a broker in this process",
        "controller": "run a controller, which elects the masters of broker groups",
        "proxy": "serve gRPC clients in front of any cluster",
        "console": "serve the web console",
        "mcp": "serve an assistant: look at the cluster, plan changes (MCP)",
        "doctor": "check that every part of the cluster is reachable and healthy",
        "top": "watch rates and lag of brokers, topics and groups",
        "cluster": "clusters: list, describe, drain, export, import",
        "ha": "controllers and broker groups: state, elections, members",
        "placement": "move queues to other brokers by a plan",
        "store": "verify and repair the files of a broker",
    },
    "Administer": {
        "config": "settings of running servers: show, set",
        "kv": "key-value configuration of the NameServers",
        "user": "users of access control",
        "acl": "permissions of users: list, allow, deny, delete, copy",
    },
    "Measure": {
        "bench": "measure rates and latencies",
        "sim": "simulate a cluster while hosts, links and disks fail",
        "spark": "Spark jobs: lag with its history, placement plans",
    },
}

HEAD = """\
Usage: aerobee COMMAND [OPTIONS] [ARGUMENTS]

A distributed message queue, interchangeable with Apache RocketMQ part by part.
"""
FOOT = """
`aerobee COMMAND --help` shows its options. Connections, after a command:
  -n HOST:PORT[;…], --context NAME   NameServers, or a saved connection
  --tls, --tls-insecure, --tls-ca-file, --tls-cert-file, --tls-key-file
Others: --json, --watch SPAN, --debug; alone: --version, --install-completion"""


def root_help() -> str:
    """The text of `aerobee --help`."""
    lines = [HEAD.rstrip("\n")]
    for title, commands in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {name:<12} {does}" for name, does in commands.items())]
    return "\n".join(lines) + "\n" + FOOT
