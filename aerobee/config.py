"""Configuration: RocketMQ's properties files, the environment and flags become frozen dataclasses.

A field's key in a file is its name in camelCase (`flush_interval_commit_log` is `flushIntervalCommitLog`), or the
`key` in its metadata where RocketMQ spells it otherwise (`brokerIP1`). One file may fill several dataclasses, as
broker.conf fills broker, store and remoting settings. Values are checked where the dataclass is made; whatever is
wrong raises ConfigError with file and line, key, value and reason.

Source of the file dialect: java.util.Properties.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from aerobee.errors import ConfigError

T = TypeVar("T")
PATH_KEY_BEGINNINGS, PATH_KEY_ENDINGS = (
    ("storepath",),
    ("path", "dir", "home"),
)  # of keys that say where files lie
# Of keys that say who may do what, and how it is proved.
ACCESS_KEY_BEGINNINGS = (
    "authentication", "authorization", "initauthentication", "innerclientauthentication", "acl", "access", "adminopen",
    "auditlog", "auth", "tls.",
)  # fmt: skip
ENVIRONMENT_PREFIX = "AEROBEE_"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
_TRUE, _FALSE = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off"})


@dataclass(frozen=True, slots=True)
class Setting:
    """One value and where it came from: "broker.conf:12", "environment AEROBEE_LISTEN_PORT", "--port"."""

    value: str
    source: str


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """A key that no dataclass has, with the nearest one that exists, or None when nothing is near."""

    key: str
    source: str
    nearest: str | None

    def __str__(self) -> str:
        hint = f"; did you mean {self.nearest}?" if self.nearest else ""
        return f"{self.source}: unknown key {self.key}{hint}"


def parse_properties(text: str, source: str) -> dict[str, Setting]:
    """Parse a properties text: `key=value`, `#` and `!` comments, continuation lines, escapes. Later wins."""
    settings: dict[str, Setting] = {}
    lines = iter(enumerate(re.split(r"\r\n|\r|\n", text), 1))
    for number, line in lines:
        logical = line.lstrip(" \t\f")
        if not logical or logical[0] in "#!":
            continue
        while _continues(logical):
            following = next(lines, None)
            if following is None:
                logical = logical[:-1]
                break
            logical = logical[:-1] + following[1].lstrip(" \t\f")
        key, value = _split_line(logical)
        settings[_unescape(key)] = Setting(_unescape(value).rstrip(), f"{source}:{number}")
    return settings


def read_properties(path: str | Path) -> dict[str, Setting]:
    """Read a properties file. Raises ConfigError when it cannot be read or is not UTF-8."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); check the path given with -c"
        ) from error
    return parse_properties(text, str(path))


def merge_properties(text: str, changes: Mapping[str, str]) -> str:
    """Return a properties text with other values for these keys; comments and all other lines stay as they are.

    Of a repeated key the last line is changed, because it takes precedence. New keys are appended.
    """
    lines = re.split(r"(?<=\n)", text.replace("\r\n", "\n").replace("\r", "\n"))
    entries: list[tuple[str | None, str]] = []  # key or None, and the lines as they are
    pending = iter(lines)
    for line in pending:
        logical = line.strip(" \t\f\n")
        if not logical or logical[0] in "#!":
            entries.append((None, line))
            continue
        whole = line
        while _continues(whole.rstrip("\n")) and (following := next(pending, None)) is not None:
            whole += following
        entries.append((_unescape(_split_line(logical)[0]), whole))
    line_of = {key: number for number, (key, _) in enumerate(entries) if key in changes}
    for key, number in line_of.items():
        entries[number] = (key, _property_line(str(key), changes[str(key)]))
    kept = [
        whole for number, (key, whole) in enumerate(entries) if key not in changes or line_of[key] == number
    ]
    merged = "".join(kept)
    if merged and not merged.endswith("\n"):
        merged += "\n"
    return merged + "".join(_property_line(k, v) for k, v in changes.items() if k not in line_of)


def properties_text(settings: Mapping[str, str]) -> str:
    """Return `key=value` lines, sorted by key as RocketMQ's are; parse_properties gives `settings` back.

    Whatever a key or a value holds stays in its line.
    """
    return "".join(_property_line(key, settings[key]) for key in sorted(settings))


def _property_line(key: str, value: str) -> str:
    return f"{_escape(key, '=: #!')}={_escape(value)}\n"


def _escape(text: str, separators: str = "") -> str:
    """Escape what would end the line, the key, or be taken for an escape; control characters as \\uXXXX."""
    return "".join(
        _ESCAPED.get(char)
        or (f"\\{char}" if char in separators or (char == " " and at == 0) else None)
        or (f"\\u{ord(char):04x}" if ord(char) < 0x20 or ord(char) in (0x7F, 0x85, 0x2028, 0x2029) else char)
        for at, char in enumerate(text)
    )


def check_wire_settings(changes: Mapping[str, str]) -> None:
    """Raise ConfigError for what no peer may set: where files lie, who may do what, values of more than one line, or no text.

    Source: the fix of CVE-2023-33246 and CVE-2023-37582 in RocketMQ (configBlackList); here no list can be emptied.
    """
    for key, value in changes.items():
        if key.lower().startswith(PATH_KEY_BEGINNINGS) or key.lower().endswith(PATH_KEY_ENDINGS):
            raise ConfigError(f"{key} says where files lie: set it in the configuration file and restart")
        if key.lower().startswith(ACCESS_KEY_BEGINNINGS):
            raise ConfigError(f"{key} says who may do what: set it in the configuration file and restart")
        if any(ord(char) < 0x20 and char != "\t" for char in key + value):
            raise ConfigError(f"{key[:80]!r} or its value holds a line break or a control character")
        if any(0xD800 <= ord(char) <= 0xDFFF for char in key + value):
            raise ConfigError(f"{key[:80]!r} or its value holds half of a character, which no file can")


def environment_settings(environ: Mapping[str, str], kinds: Iterable[type[Any]]) -> dict[str, Setting]:
    """Return the settings that AEROBEE_* variables give: AEROBEE_LISTEN_PORT and AEROBEE_LISTENPORT set listenPort.

    Variables that name no key are left out; they may belong to other programs.
    """
    by_folded = {_fold(key): key for key in known_keys(kinds)}
    settings: dict[str, Setting] = {}
    for name, value in environ.items():
        if name.startswith(ENVIRONMENT_PREFIX):
            key = by_folded.get(_fold(name[len(ENVIRONMENT_PREFIX) :]))
            if key is not None:
                settings[key] = Setting(value, f"environment {name}")
    return settings


# Asked at each change of a setting, and milliseconds each time; a class never changes.
_fields: dict[type[Any], Mapping[str, dataclasses.Field[Any]]] = {}
_hints_of: dict[type[Any], dict[str, Any]] = {}


def property_key(field: dataclasses.Field[Any]) -> str:
    """The key of a dataclass field in files and on the wire."""
    explicit = field.metadata.get("key")
    if explicit is not None:
        return str(explicit)
    head, *rest = field.name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest)


def fields_by_key(kind: type[Any]) -> Mapping[str, dataclasses.Field[Any]]:
    """Key -> field, for the fields that a file may set (all but those with `init=False` or key None)."""
    found = _fields.get(kind)
    if found is None:
        found = _fields[kind] = types.MappingProxyType(
            {property_key(f): f for f in dataclasses.fields(kind) if f.init}
        )
    return found


def known_keys(kinds: Iterable[type[Any]]) -> list[str]:
    """All keys that the dataclasses take, in their order."""
    return [key for kind in kinds for key in fields_by_key(kind)]


def secret_keys(kinds: Iterable[type[Any]]) -> frozenset[str]:
    """The keys whose values are never shown: fields that repr() leaves out."""
    return frozenset(key for kind in kinds for key, field in fields_by_key(kind).items() if not field.repr)


def variable_name(key: str) -> str:
    """The variable that sets a key, words apart: AEROBEE_FLUSH_DISK_TYPE for flushDiskType."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|\.", "_", key)
    return ENVIRONMENT_PREFIX + words.upper()


def build(kind: type[T], settings: Mapping[str, Setting], **overrides: Any) -> T:
    """Make `kind` from the settings whose keys it has; `overrides` are field values that win.

    Raises ConfigError naming source, key, value and reason.
    """
    hints = _hints(kind)
    values: dict[str, Any] = {}
    sources: dict[str, Setting] = {}
    for key, field in fields_by_key(kind).items():
        setting = settings.get(key)
        if setting is not None:
            values[field.name] = _convert(setting.value, hints[field.name], key, setting.source)
            sources[field.name] = setting
    values.update(overrides)
    try:
        return kind(**values)
    except ConfigError as error:
        named = sorted({s.source for n, s in sources.items() if _mentions(str(error), n, kind)})
        if not named:
            raise
        raise ConfigError(f"{', '.join(named)}: {error}") from error


def changed(config: T, changes: Mapping[str, str], source: str = "update") -> T:
    """Return a copy of a dataclass with the keys in `changes` that it has set to new values."""
    kind = type(config)
    hints = _hints(kind)
    fields = fields_by_key(kind)
    values = {
        fields[key].name: _convert(text, hints[fields[key].name], key, source)
        for key, text in changes.items()
        if key in fields
    }
    return dataclasses.replace(config, **values) if values else config  # type: ignore[type-var]


def unknown_keys(settings: Mapping[str, Setting], kinds: Iterable[type[Any]]) -> list[UnknownKey]:
    """Return what the file sets and no dataclass knows, with the nearest known key of each."""
    known = known_keys(kinds)
    folded = {key.lower(): key for key in known}
    unknown = []
    for key, setting in settings.items():
        if key in known:
            continue
        cutoff = 0.6 if len(key) > 5 else 0.75  # any long key contains a few given characters
        near = difflib.get_close_matches(key.lower(), folded, n=1, cutoff=cutoff)
        unknown.append(UnknownKey(key, setting.source, folded[near[0]] if near else None))
    return unknown


def to_properties(*configs: Any) -> dict[str, str]:
    """Return key -> text for each field of the dataclasses, in their order; None is the empty text.

    Secrets (fields that repr() leaves out) are left out.
    """
    texts: dict[str, str] = {}
    for config in configs:
        for key, field in fields_by_key(type(config)).items():
            if field.repr:
                texts[key] = value_text(getattr(config, field.name))
    return texts


def value_text(value: object) -> str:
    """The text form of one value, as to_properties writes and build reads it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return ";".join(value_text(part) for part in value)
    return str(value)


def _continues(line: str) -> bool:
    backslashes = len(line) - len(line.rstrip("\\"))
    return backslashes % 2 == 1


def _split_line(line: str) -> tuple[str, str]:
    escaped = False
    for at, char in enumerate(line):
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char in "=: \t\f":
            rest = line[at:].lstrip(" \t\f")
            if rest[:1] in ("=", ":"):
                rest = rest[1:].lstrip(" \t\f")
            return line[:at], rest
    return line, ""


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text

    def replace(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPES.get(code, code)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", replace, text)


def _fold(name: str) -> str:
    return name.replace("_", "").replace(".", "").lower()


def _mentions(text: str, field_name: str, kind: type[Any]) -> bool:
    key = next(key for key, field in fields_by_key(kind).items() if field.name == field_name)
    return re.search(rf"\b({re.escape(field_name)}|{re.escape(key)})\b", text) is not None


def _hints(kind: type[Any]) -> dict[str, Any]:
    found = _hints_of.get(kind)
    if found is None:
        found = _hints_of[kind] = typing.get_type_hints(kind)
    return found


def _convert(text: str, hint: Any, key: str, source: str) -> Any:
    """Turn text into the field's type: str, int, float, bool, an Enum, `X | None`, or tuple[X, ...] split at `;`."""
    try:
        return _value(text.strip(), hint)
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{source}: {key} is {text!r}, must be {_expected(hint)}") from error


def _value(text: str, hint: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        inner = [part for part in typing.get_args(hint) if part is not type(None)]
        return None if text == "" else _value(text, inner[0])
    if origin is tuple:
        part = typing.get_args(hint)[0]
        return tuple(_value(piece.strip(), part) for piece in text.split(";") if piece.strip())
    if hint is bool:
        lowered = text.lower()
        if lowered in _TRUE or lowered in _FALSE:
            return lowered in _TRUE
        raise ValueError(text)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        for member in hint:
            if text.lower() in (str(member.value).lower(), member.name.lower()):
                return member
        raise ValueError(text)
    value = hint(text)
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(text)
    return value


def _expected(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _expected(next(part for part in typing.get_args(hint) if part is not type(None)))
    if origin is tuple:
        return f"a list separated by ';', each {_expected(typing.get_args(hint)[0])}"
    if hint is bool:
        return "true or false"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "one of " + ", ".join(str(member.value) for member in hint)
    return {int: "a whole number", float: "a finite number"}.get(hint, "text")
