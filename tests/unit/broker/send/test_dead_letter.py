"""The properties of a dead-letter message, from brokers and peers: bounded, and never overwriting the user's."""

from __future__ import annotations

from aerobee.broker.send.dead_letter import CAUSE_CHARS_MAX, note_death, note_error, tries_failed
from aerobee.message import PROPERTIES_BYTES_MAX, encode_properties


def dead(
    properties: dict[str, str], *, lastError: str = "", deliveryTries: str = "", deadLetterReason: str = ""
) -> dict[str, str]:
    note_error(properties, lastError)
    note_death(
        properties,
        topic="T",
        message_id="U",
        tries=3,
        reason="3 tries failed",
        told_tries=deliveryTries,
        told_reason=deadLetterReason,
    )
    return properties


def test_a_dead_letter_message_carries_broker_facts() -> None:
    assert dead({"KEYS": "k"}) == {
        "KEYS": "k",
        "DLQ_ORIGIN_TOPIC": "T",
        "DLQ_ORIGIN_MESSAGE_ID": "U",
        "DLQ_TRIES": "3",
        "DLQ_REASON": "3 tries failed",
    }


def test_what_the_consumer_says_goes_before_what_the_broker_knows() -> None:
    dead_letter = dead({}, deadLetterReason="no stock", lastError="ValueError: x", deliveryTries="7")
    assert (dead_letter["DLQ_REASON"], dead_letter["LAST_ERROR"], dead_letter["DLQ_TRIES"]) == (
        "no stock",
        "ValueError: x",
        "7",
    )


def test_one_try_is_not_tries() -> None:
    assert (tries_failed(1), tries_failed(17)) == ("1 try failed", "17 tries failed")


def test_text_of_a_peer_is_bounded_and_cannot_make_properties_of_its_own() -> None:
    dead_letter = dead(
        {}, lastError="a\x02TAGS\x01evil" + "x" * 5000, deadLetterReason="\x01\x02 ", deliveryTries="99x"
    )
    assert len(dead_letter["LAST_ERROR"]) == CAUSE_CHARS_MAX
    assert dead_letter["LAST_ERROR"].startswith("a TAGS evil")
    assert "TAGS" not in dead_letter
    assert dead_letter["DLQ_REASON"] == "3 tries failed"
    assert dead_letter["DLQ_TRIES"] == "3"
    assert int(dead({}, deliveryTries="9" * 30)["DLQ_TRIES"]) == 1 << 31


def test_properties_of_the_user_are_not_pushed_out() -> None:
    own = {"big": "x" * (PROPERTIES_BYTES_MAX - 60)}
    dead_letter = dead(dict(own), lastError="y" * 500, deadLetterReason="z" * 500)
    assert dead_letter["big"] == own["big"]
    assert "LAST_ERROR" not in dead_letter
    assert len(encode_properties(dead_letter).encode()) <= PROPERTIES_BYTES_MAX
