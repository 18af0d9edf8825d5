"""A process that is libFuzzer for one decoder, with its own arguments: tests/fuzz/decoders.py starts it.

Coverage is counted in what is imported under instrument_imports only, so this is a separate module.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

with atheris.instrument_imports(include=["aerobee"]):
    from tests.fuzz.decoder_targets import TARGETS

if __name__ == "__main__":
    atheris.Setup([sys.argv[0], *sys.argv[2:]], TARGETS[sys.argv[1]])
    atheris.Fuzz()
