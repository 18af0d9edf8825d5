"""The layers of aerobee/, lowest first."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "aerobee"
LAYERS: dict[str, int] = {
    "errors": 0,
    "clock": 0,
    "caller": 0,
    "thread_pool": 0,
    "message": 0,
    "property_names": 0,
    "lite_topic": 0,
    "queue_choice": 0,
    "record_head": 0,
    "system_names": 0,
    "network": 0,
    "host_port": 0,
    "peer_hosts": 0,
    "ordered_set": 0,
    "shared_task": 0,
    "config": 0,
    "metrics_config": 0,
    "quick_init": 0,
    "log_throttle": 0,
    "log_lines": 0,
    "visible_text": 0,
    "collector": 0,
    "words": 0,
    "recurrence": 0,
    "system": 0,
    "remoting": 1,
    "store": 1,
    "monitoring": 1,
    "grpc": 1,
    "client": 2,
    "ha": 2,
    "access": 2,
    "broker": 3,
    "nameserver": 3,
    "placement": 3,
    "ops": 4,
    "spark": 4,
    "testing": 4,
    "simulation": 4,
    "console": 4,
    "proxy": 4,
    "contrib": 4,
}
# The command line shows what the in-process cluster starts and runs simulations, and a simulation is made of what tests use.
# The console shows what commands find out: traces, `why`, offsets. The MCP server offers what both of them do.
ALLOWED_SIDEWAYS = {
    ("console", "ops"),
    ("contrib", "console"),
    ("contrib", "ops"),
    ("ops", "proxy"),
    ("ops", "testing"),
    ("ops", "simulation"),
    ("simulation", "testing"),
}
