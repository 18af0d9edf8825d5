"""Each of the mutations of consumer_mutations.py is noticed by the runs of order and redelivery."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable

import pytest

from tests.simulation.consumer_mutations import MUTATIONS, Mutation, first_to_notice

SEEDS = 40  # after the one that is known to notice


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: str(mutation.__name__))
def test_lives_notice(mutation: Callable[[], Mutation]) -> None:
    live, known = MUTATIONS[mutation]
    logging.disable(logging.CRITICAL)
    try:
        live(known)
        noticed = first_to_notice(mutation, live, itertools.chain((known,), range(SEEDS)))
    finally:
        logging.disable(logging.NOTSET)
    assert noticed is not None, f"no run notices that {mutation.__name__}"
