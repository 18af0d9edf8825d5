"""Which AEROBEE_ variables there are, so that a misspelt one is named instead of being without effect."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module

from aerobee.client.contexts import VARIABLES

PREFIX = "AEROBEE_"
OTHERS = ("AEROBEE_DATA", "AEROBEE_FAST_PATH", "AEROBEE_LANE", "AEROBEE_CLIENT_CODEC")
KNOWN = frozenset({*VARIABLES, *OTHERS})


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each AEROBEE_ variable that means nothing to any command. Settings of servers are variables, too."""
    strange = sorted(name for name in environ if name.startswith(PREFIX) and name not in KNOWN)
    if not strange:
        return []
    # Loaded only now: most users set none of the servers' keys here, and every command would pay for it.
    settings = import_module("aerobee.ops.settings")
    config = import_module("aerobee.config")
    kinds = (*settings.BROKER_KINDS, *settings.NAMESERVER_KINDS)
    strange = [name for name in strange if not config.environment_settings({name: ""}, kinds)]
    sentences = []
    for name in strange:
        near = difflib.get_close_matches(name, KNOWN, n=1)
        sentences.append(
            f"{name} is no variable of Aerobee and has no effect"
            + (f"; did you mean {near[0]}?" if near else "")
        )
    return sentences
