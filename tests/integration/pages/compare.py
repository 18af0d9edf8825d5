"""Whether a command printed what its page shows, apart from what differs from run to run. Core.

Times, ids, handles, addresses, durations and measured numbers are wildcards; counts, offsets and words are not. Which queue
a message went to is chance, and so a wildcard, too. What a wildcard of the page stood for is remembered, so that a later
command of the page that names an id finds the one of this run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, MutableMapping, Sequence

ANY_LINES = "…"
# The first that fits at a position wins.
WILDCARDS: tuple[tuple[str, str], ...] = (
    ("time", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?"),
    ("handle", r"djE[A-Za-z0-9_-]{20,}=*"),
    ("key id", r"\b[0-9A-F]{32}\b"),
    ("trace", r"\b[0-9a-f]{32}\b"),
    ("span", r"\b[0-9a-f]{16}\b"),
    ("client", r"\b127\.0\.0\.1@(?:\d+#\d+|\w+)"),
    ("address", r"\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b"),
    ("queue", r"\bbroker-a/\d+(?:@\d+| at offset \d+)?|\bqueue \d+(?: offset \d+)?(?=\b)"),
    ("epoch", r"\b1[0-9]{12}\b"),
    ("path", r"(?:/[\w.@#-]+){2,}"),
    ("duration", r"[+-]?\b\d+(?:\.\d+)? (?:ms|s|min|h|d|us)(?: \d+ (?:ms|s|min|h|d))?\b|\b\d+(?:\.\d+)? ?%"),
    ("measure", r"\b\d[\d,]*\.\d+\b"),
)
FIGURE = ("figure", r"\b\d[\d,]*\b")
COUNTED = (
    "message queue topic group broker member letter line byte record offset transaction second minute hour day check time "
    "file client slave handle key segment entrie trie retrie replica process"
)
ONES = re.compile(rf"(?<![\d.,/:#@-])1 (?:{'|'.join(COUNTED.split())})e?s\b")


Line = tuple[str, list[str]]  # masked, and what the wildcards stood for


def pattern(figures_differ: bool) -> re.Pattern[str]:
    kinds = (*WILDCARDS, FIGURE) if figures_differ else WILDCARDS
    return re.compile("|".join(f"({text})" for _, text in kinds))


def masked(line: str, wildcards: re.Pattern[str]) -> tuple[str, list[str]]:
    """The line with one mark for each wildcard and single spaces, and what the wildcards stood for."""
    found: list[str] = []

    def placeholder(match: re.Match[str]) -> str:
        found.append(match[0])
        return f"<{match.lastindex}>"

    return re.sub(r"[ \t]+", " ", wildcards.sub(placeholder, line)).strip(), found


HELD = "blocked the event loop for"  # a busy machine's warning, which may come with any output


def difference(
    shown: Sequence[str], printed: Sequence[str], kinds: frozenset[str], names: MutableMapping[str, str]
) -> str:
    """What is wrong with an output; "" when it is what the page shows. `names` gets shown -> printed of the wildcards."""
    wildcards = pattern("figures differ" in kinds)
    expected = [masked(line, wildcards) for line in shown]
    actual = [masked(line, wildcards) for line in printed if line.strip() and HELD not in line]
    if "any order" in kinds:
        expected, actual, kinds = *side_by_side(expected, actual), kinds - {"any order"}
    pairs = matched(expected, actual, "among others" in kinds)
    if pairs is None:
        return _report(expected, actual)
    for (_, ours), (_, theirs) in pairs:
        for name, value in zip(ours, theirs, strict=True):
            if len(name) > 8:
                names[name] = value
    return ""


def side_by_side(expected: list[Line], actual: list[Line]) -> tuple[list[Line], list[Line]]:
    """Both with the lines they share in front, in one order, and then the others; `…` of the page last."""
    left, shared = list(actual), []
    rest: list[Line] = []
    for line in expected:
        found = next((each for each in left if each[0] == line[0]), None)
        if found is None:
            rest.append(line)
        else:
            left.remove(found)
            shared.append((line, found))
    rest.sort(key=lambda line: line[0] == ANY_LINES)
    return [line for line, _ in shared] + rest, [found for _, found in shared] + left


def matched(expected: list[Line], actual: list[Line], among_others: bool) -> list[tuple[Line, Line]] | None:
    """The lines side by side; None when they differ. A line `…` is any lines, none included."""
    pairs, at, free = [], 0, among_others
    for line in expected:
        if line[0] == ANY_LINES:
            free = True
            continue
        while free and at < len(actual) and actual[at][0] != line[0]:
            at += 1
        if at == len(actual) or actual[at][0] != line[0]:
            return None
        pairs.append((line, actual[at]))
        at, free = at + 1, among_others
    return pairs if free or at == len(actual) else None


def renamed(text: str, names: Mapping[str, str]) -> str:
    """A command with the ids of this run in place of the page's."""
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, names[name])
    return text


def wrong_plurals(printed: Sequence[str]) -> list[str]:
    """Lines that count one of many, "1 messages"."""
    return [line for line in printed if ONES.search(line)]


def _report(expected: list[Line], actual: list[Line]) -> str:
    missing = Counter(text for text, _ in expected if text != ANY_LINES) - Counter(text for text, _ in actual)
    more = Counter(text for text, _ in actual) - Counter(text for text, _ in expected)
    parts = [f"- {text}" for text in missing.elements()] + [f"+ {text}" for text in more.elements()]
    return "\n".join(parts) or "the lines stand in another order"
