"""The AEROBEE_ environment variables, so that a command warns of a misspelt one, which has no effect."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module

from aerobee.config import ENVIRONMENT_PREFIX

PREFIX_CHARS_MIN = 4  # shortest prefix of a variable's name that suggests the whole name
OTHERS = (
    "AEROBEE_DATA",
    "AEROBEE_NO_GRPC",
    "AEROBEE_FAST_PATH",
    "AEROBEE_LANE",
    "AEROBEE_CLIENT_CODEC",
    "AEROBEE_CONTROLLER_ADDR",
)
OF_CONTAINERS = (  # container.py; the image's health check
    "AEROBEE_CONFIG",
    "AEROBEE_ADVERTISED",
    "AEROBEE_ADVERTISED_FILE",
    "AEROBEE_ADVERTISED_INTERNAL",
    "AEROBEE_HEALTH_PORT",
)
# Tests, benches and scripts of the repository read these; commands ignore them without a warning.
OF_THE_REPOSITORY = frozenset(
    {
        "AEROBEE_BENCH_DIR",
        "AEROBEE_BUILD_NATIVE",
        "AEROBEE_CODEC_ROUNDS",
        "AEROBEE_CODEC_SEED",
        "AEROBEE_DELAYED_BURSTS",
        "AEROBEE_DELAYED_SEED",
        "AEROBEE_DELIVERY_SEEDS",
        "AEROBEE_DEPLOY_DIR",
        "AEROBEE_EXAMPLES",
        "AEROBEE_FAILOVER_KILLS",
        "AEROBEE_FAST_PATH_BURSTS",
        "AEROBEE_FAST_PATH_SEED",
        "AEROBEE_FRAMES",
        "AEROBEE_FUZZ_ROWS",
        "AEROBEE_INTEROP",
        "AEROBEE_INTEROP_CLI",
        "AEROBEE_INTEROP_DIR",
        "AEROBEE_INTEROP_TARGET",
        "AEROBEE_MEMBERS_MESSAGES",
        "AEROBEE_OUTBOX_KILLS",
        "AEROBEE_ROCKETMQ_LIB",
        "AEROBEE_SEED",
        "AEROBEE_SEND_BACK_BURSTS",
        "AEROBEE_SEND_BACK_SEED",
        "AEROBEE_PLACEMENT_KILL_STRIDE",
        "AEROBEE_POP_TAKES",
        "AEROBEE_QUICK",
        "AEROBEE_ROLLING_ROUNDS",
        "AEROBEE_SEEDS",
    }
)


def known_variables() -> frozenset[str]:
    """Variables that commands read, without the settings of servers."""
    contexts = import_module("aerobee.client.session.contexts")
    return frozenset({*contexts.VARIABLES, *OTHERS, *OF_CONTAINERS})


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """A warning for each AEROBEE_ variable that no command and no server setting uses."""
    ours = [name for name in environ if name.startswith(ENVIRONMENT_PREFIX)]
    if not ours:
        return []
    # Imported only here: most users set no such variable, and the import would slow down every command.
    named = known_variables()
    strange = sorted({*ours} - named - OF_THE_REPOSITORY)
    if not strange:
        return []
    settings = import_module("aerobee.ops.settings.settings")
    config = import_module("aerobee.config")
    kinds = (*settings.BROKER_KINDS, *settings.NAMESERVER_KINDS, *settings.controller_kinds())
    strange = [name for name in strange if not config.environment_settings({name: ""}, kinds)]
    # Compared without the common prefix, which would make any two names look alike.
    known = (*sorted(named), *(config.variable_name(key) for key in config.known_keys(kinds)))
    nearest = {
        name.removeprefix(ENVIRONMENT_PREFIX): name for name in known if name.startswith(ENVIRONMENT_PREFIX)
    }
    sentences = []
    for name in strange:
        bare = name.removeprefix(ENVIRONMENT_PREFIX)
        begun = [each for each in nearest if each.startswith(bare) or bare.startswith(each)]
        near = difflib.get_close_matches(bare, nearest, n=1, cutoff=0.75)
        if not near and begun and len(bare) >= PREFIX_CHARS_MIN:
            near = [min(begun, key=len)]
        sentences.append(
            f"{name} is not a variable of Aerobee and has no effect"
            + (f"; did you mean {nearest[near[0]]}?" if near else "")
        )
    return sentences
