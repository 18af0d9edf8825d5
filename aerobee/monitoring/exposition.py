"""Numbers as a page of the Prometheus text format, version 0.0.4. Core.

A broker of 5,000 topics and 20 groups has half a million lines. So labels are made into text once for all families that
share them (`label_text`), and `render` gives pieces of some lines each, between which its caller lets others run.

Source: Exposition formats (Prometheus documentation).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf, isnan

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LINES_A_PIECE = 256
COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
_VALUE_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_HELP_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n"})

Sample = tuple[str, float]  # the text of the labels and the value


@dataclass(frozen=True, slots=True)
class Histogram:
    """Durations or sizes: (upper end, how many up to it) from the smallest end on, how many in all, and their sum."""

    buckets: tuple[tuple[float, int], ...]
    count: int
    sum: float


@dataclass(frozen=True, slots=True)
class Family:
    """One name with all that it has values for. `samples` may be an iterator: it is read once, piece by piece.

    The text of a sample's labels comes from label_text(). A histogram's value is a Histogram. A number that is not known
    is left out by whoever makes the samples: absent is not zero.
    """

    name: str
    kind: str
    help: str
    samples: Iterable[tuple[str, float | Histogram]]


def label_text(labels: Mapping[str, str]) -> str:
    """`name="value",…` with the values escaped; empty for no labels."""
    return ",".join(f'{name}="{value.translate(_VALUE_ESCAPES)}"' for name, value in labels.items())


def joined(*texts: str) -> str:
    """Several label texts as one."""
    return ",".join(text for text in texts if text)


def render(families: Iterable[Family]) -> Iterator[str]:
    """The page, in pieces of at most LINES_A_PIECE lines. A family without samples is left out."""
    lines: list[str] = []
    for family in families:
        heading = f"# HELP {family.name} {family.help.translate(_HELP_ESCAPES)}\n# TYPE {family.name} {family.kind}\n"
        for labels, value in family.samples:
            if heading:
                lines.append(heading)
                heading = ""
            if isinstance(value, Histogram):
                lines.extend(_histogram_lines(family.name, labels, value))
            else:
                lines.append(f"{family.name}{{{labels}}} {number_text(value)}\n")
            if len(lines) >= LINES_A_PIECE:
                yield "".join(lines)
                lines.clear()
    yield "".join(lines)


def number_text(value: float) -> str:
    """A value as Prometheus reads it."""
    if isinstance(value, int):
        return str(int(value))
    if isnan(value):
        return "NaN"
    if value in (inf, -inf):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


def _histogram_lines(name: str, labels: str, histogram: Histogram) -> Iterator[str]:
    for end, count in (*histogram.buckets, (inf, histogram.count)):
        bucket = joined(labels, label_text({"le": number_text(end)}))
        yield f"{name}_bucket{{{bucket}}} {count}\n"
    yield f"{name}_count{{{labels}}} {histogram.count}\n"
    yield f"{name}_sum{{{labels}}} {number_text(histogram.sum)}\n"
