"""Metrics as a page of the Prometheus text format, version 0.0.4. Core.

`label_text` renders labels once for all families that share them. A family of many samples consists of
slices, whose text page.py reuses for the next page.

Source: Exposition formats (Prometheus documentation).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import inf, isfinite, isnan

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
_VALUE_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_HELP_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n"})

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")

Sample = tuple[str, float]  # the text of the labels and the value


@dataclass(frozen=True, slots=True)
class Histogram:
    """Durations or sizes: (upper bound, number of values up to it) in ascending order, number of all values,
    and their sum.
    """

    buckets: tuple[tuple[float, int], ...]
    count: int
    sum: float


Value = float | Histogram


@dataclass(frozen=True, slots=True)
class Slice:
    """Some samples of a family. Slices with equal tokens at the same position have equal samples.

    `common`: labels that precede the own labels of all samples; every sample must have own labels then.
    """

    token: Hashable
    samples: Callable[[], Iterable[tuple[str, Value]]]
    common: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric name with its samples and slices. Both may be iterators, which are read once.

    The text of a sample's labels comes from label_text(). The value of a histogram is a Histogram. The caller
    omits unknown values: absent is not zero.
    """

    name: str
    kind: str
    help: str
    samples: Iterable[tuple[str, Value]] = ()
    slices: Iterable[Slice] = ()


def label_text(labels: Mapping[str, str]) -> str:
    """`name="value",…` with the values escaped; empty for no labels."""
    return ",".join(f'{name}="{value.translate(_VALUE_ESCAPES)}"' for name, value in labels.items())


def label_values(labels: str) -> dict[str, str]:
    """Names and values of the text of label_text()."""
    return {
        name: _ESCAPE.sub(_unescaped, value) if "\\" in value else value
        for name, value in _LABEL.findall(labels)
    }


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def joined(*texts: str) -> str:
    """Several label texts joined into one."""
    return ",".join(text for text in texts if text)


def heading(family: Family) -> str:
    """The two lines before a family's samples."""
    return (
        f"# HELP {family.name} {family.help.translate(_HELP_ESCAPES)}\n# TYPE {family.name} {family.kind}\n"
    )


def sample_text(name: str, samples: Iterable[tuple[str, Value]], common: str = "") -> str:
    """A line for each sample, several for a histogram."""
    begin = f"{common}," if common else ""
    head = f"{name}{{{begin}"
    return "".join(
        [
            # number_text(), inlined (80 ns a sample, 126 ns with the call): a page may have a million
            # samples.
            f"{head}{labels}}} {value}\n"
            if type(value) is int or (isinstance(value, float) and isfinite(value))
            else _lines(name, f"{begin}{labels}", value)
            for labels, value in samples
        ]
    )


def number_text(value: float) -> str:
    """A value as Prometheus reads it."""
    if isinstance(value, int):
        return str(int(value))
    if isnan(value):
        return "NaN"
    if value in (inf, -inf):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


_end_text = lru_cache(maxsize=1_024, typed=True)(number_text)  # bucket bounds are few, so cached


def _lines(name: str, labels: str, value: Value) -> str:
    if not isinstance(value, Histogram):
        return f"{name}{{{labels}}} {number_text(value)}\n"
    begin = f"{name}_bucket{{{labels}," if labels else f"{name}_bucket{{"
    lines = [f'{begin}le="{_end_text(end)}"}} {count}\n' for end, count in value.buckets]
    lines.append(f'{begin}le="+Inf"}} {value.count}\n')
    lines.append(f"{name}_count{{{labels}}} {value.count}\n")
    lines.append(f"{name}_sum{{{labels}}} {number_text(value.sum)}\n")
    return "".join(lines)
