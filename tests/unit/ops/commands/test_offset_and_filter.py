import json

import pytest

from aerobee.client import OffsetTarget
from aerobee.errors import UsageError
from aerobee.ops.commands.offset import parse_target
from aerobee.ops.commands.tree import run_cli

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("earliest", OffsetTarget.earliest()),
        ("first", OffsetTarget.earliest()),
        ("latest", OffsetTarget.latest()),
        ("offset:12", OffsetTarget.offset(12)),
        ("12", OffsetTarget.offset(12)),
        ("+5", OffsetTarget.relative(5)),
        ("-5", OffsetTarget.relative(-5)),
        ("1700000000000", OffsetTarget.time(1_700_000_000_000)),
        ("15m", OffsetTarget.time(NOW_MS - 900_000)),
        ("2026-11-21T10:00:00.500+00:00", OffsetTarget.time(1_795_255_200_500)),
    ],
)
def test_targets_of_a_reset(text, target):
    assert parse_target(text, NOW_MS) == target


@pytest.mark.parametrize("text", ["", "offset:", "offset:-1", "+", "yesterday", "+1.5"])
def test_a_target_that_is_none_is_refused_with_the_forms_that_are(text):
    with pytest.raises(UsageError, match="write"):
        parse_target(text, NOW_MS)


@pytest.mark.parametrize(
    ("arguments", "matches"), [(["-p", "price=7"], True), (["-p", "price=5"], False), ([], False)]
)
def test_filter_test_tells_whether_a_message_comes_through(arguments, matches, capsys):
    assert run_cli(["filter", "test", "price > 5", *arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["matches"] is matches
    assert document["missing"] == ([] if arguments else ["price"])


def test_filter_test_names_the_column_of_a_fault(capsys):
    assert run_cli(["filter", "test", "price > ", "--json"]) == 2
    assert "column 9" in capsys.readouterr().out


def test_filter_test_takes_properties_as_name_and_value(capsys):
    assert run_cli(["filter", "test", "a = 1", "-p", "a"]) == 2
    assert "NAME=VALUE" in capsys.readouterr().err
