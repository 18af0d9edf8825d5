import enum
from dataclasses import dataclass, field

import pytest

from aerobee import config
from aerobee.errors import ConfigError


class Flush(enum.Enum):
    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    listen_port: int = 10911
    broker_ip1: str | None = field(default=None, metadata={"key": "brokerIP1"})
    slave_read_enable: bool = False
    flush_disk_type: Flush = Flush.ASYNC_FLUSH
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.listen_port < 65536:
            raise ConfigError(f"listenPort is {self.listen_port}, must be 0 to 65535")


def build(text: str) -> Part:
    return config.build(Part, config.parse_properties(text, "broker.conf"))


def test_properties_file_fills_fields_by_camel_case_and_by_explicit_key():
    part = build(
        "# note\nlistenPort = 11\nbrokerIP1:10.0.0.1\nslaveReadEnable TRUE\nflushDiskType=SYNC_FLUSH\nnames=a;b\n"
    )
    assert part == Part(
        listen_port=11,
        broker_ip1="10.0.0.1",
        slave_read_enable=True,
        flush_disk_type=Flush.SYNC_FLUSH,
        names=("a", "b"),
    )


def test_continuation_lines_and_escapes_are_read_as_java_reads_them():
    settings = config.parse_properties("a=one\\\n   two\nb=tab\\there \\u0041\n! c=1\nd\\=e=f\n", "f")
    assert {key: setting.value for key, setting in settings.items()} == {
        "a": "onetwo",
        "b": "tab\there A",
        "d=e": "f",
    }


def test_wrong_value_names_file_line_key_value_and_reason():
    with pytest.raises(ConfigError, match=r"broker.conf:2: listenPort is 'x', must be a whole number"):
        build("\nlistenPort=x")
    with pytest.raises(ConfigError, match=r"broker.conf:1: listenPort is 99999, must be 0 to 65535"):
        build("listenPort=99999")
    with pytest.raises(ConfigError, match="one of ASYNC_FLUSH, SYNC_FLUSH"):
        build("flushDiskType=NONE")
    with pytest.raises(ConfigError, match="true or false"):
        build("slaveReadEnable=maybe")


def test_unknown_key_is_named_with_the_nearest_known_one():
    unknown = config.unknown_keys(config.parse_properties("listenPrt=1\nzzz=2", "b.conf"), [Part])
    assert [(u.key, u.nearest) for u in unknown] == [("listenPrt", "listenPort"), ("zzz", None)]
    assert str(unknown[0]) == "b.conf:1: unknown key listenPrt; did you mean listenPort?"


def test_environment_sets_keys_in_either_spelling():
    settings = config.environment_settings(
        {"AEROBEE_LISTEN_PORT": "1", "AEROBEE_BROKERIP1": "h", "X": "y"}, [Part]
    )
    assert {key: setting.value for key, setting in settings.items()} == {"listenPort": "1", "brokerIP1": "h"}


def test_text_form_reads_back_to_the_same_dataclass():
    part = Part(listen_port=5, names=("x", "y"), flush_disk_type=Flush.SYNC_FLUSH)
    text = "\n".join(f"{key}={value}" for key, value in config.to_properties(part).items())
    assert build(text) == part


def test_changed_copies_and_checks():
    part = Part()
    assert config.changed(part, {"listenPort": "7", "other": "1"}).listen_port == 7
    assert part.listen_port == 10911
    with pytest.raises(ConfigError, match="listenPort"):
        config.changed(part, {"listenPort": "-1"})


def test_unreadable_file_says_so(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        config.read_properties(tmp_path / "absent.conf")
    bad = tmp_path / "bad.conf"
    bad.write_bytes(b"a=\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        config.read_properties(bad)


def test_merging_keeps_comments_and_other_lines_and_changes_the_entry_that_counts() -> None:
    text = "# ours\nbrokerName = b1\nfileReservedTime=72\n! old\nfileReservedTime = 24\nlong=a\\\n  b\n"
    merged = config.merge_properties(text, {"fileReservedTime": "12", "long": "c", "note": "C:\\x\ny"})
    assert merged == ("# ours\nbrokerName = b1\n! old\nfileReservedTime=12\nlong=c\nnote=C:\\\\x\\ny\n")
    values = {key: setting.value for key, setting in config.parse_properties(merged, "file").items()}
    assert values == {"brokerName": "b1", "fileReservedTime": "12", "long": "c", "note": "C:\\x\ny"}


def test_merging_into_nothing_writes_the_changes() -> None:
    assert config.merge_properties("", {"a": "1"}) == "a=1\n"
    assert config.merge_properties("b=2", {"a": "1"}) == "b=2\na=1\n"


@pytest.mark.parametrize("text", ["inf", "-Infinity", "nan", "1e999"])
def test_a_number_without_an_end_is_refused(text: str) -> None:
    @dataclass(frozen=True)
    class Waits:
        wait_s: float = 1.0

    with pytest.raises(ConfigError, match="a finite number"):
        config.build(Waits, config.parse_properties(f"waitS={text}", "broker.conf"))
