"""SendMessage of gRPC by both backends: the short form of tests/fuzz/grpc_differential.py."""

from __future__ import annotations

from typing import Any

import pytest

from aerobee.broker.grpc import send_message
from tests.fuzz.grpc_differential import Disagreement, run

pytest.importorskip("aerobee_native")


def test_both_backends_answer_and_store_requests_alike() -> None:
    done, messages = run(1_500, 7)
    assert done >= 1_500
    assert 200 < messages < done


def test_a_lost_property_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    form = send_message.stored_properties

    def without_tags(*arguments: Any) -> tuple[dict[str, str], int]:
        properties, sys_flag = form(*arguments)
        return {name: value for name, value in properties.items() if name != "TAGS"}, sys_flag

    monkeypatch.setattr(send_message, "stored_properties", without_tags)
    with pytest.raises(Disagreement, match="plain has other messages"):
        run(1_500, 8)
