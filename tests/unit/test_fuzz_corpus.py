"""What guided runs over the decoders found worth keeping (tests/data/fuzz), once more for each decoder."""

from __future__ import annotations

import pytest

from tests.fuzz.decoder_targets import TARGETS
from tests.fuzz.decoders import corpus_of, well_formed


@pytest.mark.parametrize("name", TARGETS)
def test_decoders_hold_for_every_input_of_the_corpus(name: str) -> None:
    inputs = corpus_of(name)
    assert inputs, f"tests/data/fuzz/{name}.hex is missing: run tests/fuzz/decoders.py --keep"
    for data in (*inputs, *well_formed(name)):
        TARGETS[name](data)
        TARGETS[name](data[: len(data) // 2])
