"""`aerobee cluster import`: what a file may not say is refused before any broker is changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee.errors import UsageError
from aerobee.ops.commands.cluster_copy import EVERY, read_tables


@pytest.mark.parametrize(
    "text",
    [
        '[{"topicName": "fine"}, {"topicName": "../../etc/x"}]',
        '[{"topicName": "a\\u001b[2Jb"}]',
        '[{"topicName": null}]',
        '[{"groupName": ""}]',
        '[{"topicName": "a"}, {"topicName": "a", "perm": 2}]',
        '[{"groupName": "g"}, {"groupName": "g"}]',
        '[{"topic": "a"}]',
        '[{"topicName": "a", "groupName": "g"}]',
        '{"brokers": {"b": {"topics": [{"topicName": "a b"}], "groups": []}}}',
        '{"topicConfigTable": {"a": {"topicName": "b"}}, "subscriptionGroupTable": {}}',
        '{"topicConfigTable": {}, "subscriptionGroupTable": {"g": {"groupName": "h"}}}',
    ],
)
def test_a_file_that_no_broker_would_take_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "file.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"file\.json"):
        read_tables(file)


def test_topics_and_groups_in_one_list(tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    file.write_text('[{"topicName": "%RETRY%g"}, {"topicName": "a|b"}, {"groupName": "g"}]')
    tables = read_tables(file)[EVERY]
    assert [each.topic_name for each in tables.topics] == ["%RETRY%g", "a|b"]
    assert [each.group_name for each in tables.groups] == ["g"]


def test_an_entry_without_a_name_has_that_of_its_key(tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    file.write_text('{"topicConfigTable": {"a": {"readQueueNums": 3}}, "subscriptionGroupTable": {"g": {}}}')
    tables = read_tables(file)[EVERY]
    assert [(each.topic_name, each.read_queue_nums) for each in tables.topics] == [("a", 3)]
    assert [each.group_name for each in tables.groups] == ["g"]
