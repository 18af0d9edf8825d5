"""The words that the repository does not use, and the field's terms that replace them.

`findings(path, text)` reads identifiers, docstrings, comments, string literals (help, errors, log lines) and prose, and
returns each place where a term of the left column stands. Quoted names (between backticks or in code blocks) are
not read: they are names of the wire, of a file or of a setting.
"""

import ast
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

from tests.sources import walk

ID, UI, TEXT = "identifier", "message", "text"


@dataclass(frozen=True, slots=True)
class Rule:
    """Words as a pattern in lower case, where they are looked for, and what to write instead."""

    words: str
    pattern: re.Pattern[str]
    kinds: frozenset[str]
    instead: str
    only: str = ""  # a regular expression of paths; empty: everywhere


def _rule(pattern: str, instead: str, *kinds: str, only: str = "") -> Rule:
    return Rule(pattern, re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), frozenset(kinds), instead, only)


SIMULATED = r"simulation"
PROSE = (UI, TEXT)

RULES = (
    _rule("strangers?", "untrusted peer, unauthenticated client", ID, UI, TEXT),
    _rule(
        "nobody|somebody|everybody|anybody",
        "name the party: the client, the operator, no consumer",
        ID,
        UI,
        TEXT,
    ),
    _rule("(?:the |any)?one who|who asks", "name the party: the client, the operator", *PROSE),
    _rule("(?:is|are|was|were|be|been|being) told", "is notified, is called with, receives", *PROSE),
    _rule("told to clients", "advertised to clients", *PROSE),
    _rule("(?:is|are|was|were) asked|asked for", "requested, read, looked up", *PROSE),
    _rule("at once", "immediately; simultaneously (say which)", *PROSE),
    _rule("beside", "compared with; concurrently; off the event loop; next to", ID, UI, TEXT),
    _rule("of (?:its|their) own", "Aerobee-specific; separate; dedicated", *PROSE),
    _rule("of before|of then", "previous, former", *PROSE),
    _rule("what is there|what there is|that there are not", "existing; unknown", *PROSE),
    _rule("so many|so much", "state the quantity: maximum number of messages", UI),
    _rule("(?:is|are|was|were) over", "expired; ended", *PROSE),
    _rule("(?:is|are|was|were) out(?! of)", "expired; sent", *PROSE),
    _rule("go(?:es)? on|went on|going on", "continues, resumes", ID, UI, TEXT),
    _rule("let(?:s|ting)? go|let(?:s|ting)? \\w+ go", "released; removed", *PROSE),
    _rule("takes? the place of", "replaces", *PROSE),
    _rule("anew|made again", "recreates; again", *PROSE),
    _rule(
        "each (?:second|minute|hour|\\d+ m?s|\\d+ (?:seconds|minutes|hours))",
        "every second, every 60 s",
        *PROSE,
    ),
    _rule("the day's", "daily", *PROSE),
    _rule("held (?:pulls?|pops?|requests?|consumers?|calls?)", "pending (long-polling) requests", *PROSE),
    _rule("held (?:reply|replies|answers?)", "deferred replies", *PROSE),
    _rule("h(?:eld|old|olds|olding) the (?:event )?loop", "blocks the event loop", *PROSE),
    _rule("turns? of the (?:event )?loop|loop's turns?", "event loop iteration", *PROSE),
    _rule("in turns|by turns", "cooperatively, in slices; interleaved", *PROSE),
    _rule("famil(?:y|ies) of frames|frame famil(?:y|ies)", "frame handlers", *PROSE),
    _rule("the definition", "the reference implementation", *PROSE),
    _rule("faults? of ours", "internal error, bug", *PROSE),
    _rule(
        "put beside|to the end|dumps in turns|doomed|open twin|twins?",
        "put_async, shield, dump_sliced, expired, counterpart",
        ID,
    ),
    _rule("not ordinary|ordinary", "fast_path_eligible; FallBackToHandler", ID),
    _rule("later", "delayed", ID),
    _rule("bites?", "is detected, fails the check", *PROSE),
    _rule("lives|life", "runs, run", *PROSE, only=SIMULATED),
    _rule("worlds?", "simulated cluster", *PROSE),
    _rule("light queues?", "LMQ", ID, UI, TEXT),
    _rule(
        "(?<!in )(?<!take )(?<!takes )(?<!took )(?<!first )(?<!decimal )places?",
        "offset, position, path, location",
        ID,
        UI,
        TEXT,
    ),
    _rule("(?<!dead )(?<!dead-)letters?(?!,| or | and |s? (?:a|A) )", "dead-letter message", ID, UI, TEXT),
    _rule(
        "not consumed|late by|worked off in|furthest behind|nothing waits",
        "lag; lag time; time to drain; highest lag; no lag",
        UI,
    ),
    _rule("who copy|who copies|one who copies", "replica, follower", *PROSE),
    _rule("ways?", "links, network path", *PROSE, only=SIMULATED),
    _rule("wish|wishe[sd]|wished", "requested", ID),
    _rule("marks?(?! dirty)", "property, attribute, flag: the concrete one", ID),
    _rule("rooms?|neighbours?", "modules, packages; space", TEXT),
    _rule("floors?", "layer", ID, TEXT),
)
LETTERS = re.compile(
    r"letters, |letters and digits|[Cc]apital letters?|lower[- ]case letters?|letters?\b.{0,12}digits|of letters"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One term in one line."""

    path: str
    line: int
    kind: str
    words: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}: {self.words!r}; write: {self.instead}"


def findings(path: str, text: str) -> list[Finding]:
    """Each term of the left column in one file; the suffix of `path` says how the file is read."""
    if path.endswith(".md"):
        parts = _markdown(text)
    elif path.endswith((".rs", ".js", ".mjs")):
        parts = _commented(text)
    else:
        parts = _python(text)
    return [found for line, kind, part in parts for found in _looked_at(path, line, kind, part)]


@cache
def _any_term(kind: str) -> re.Pattern[str]:
    """All rules of a kind in one pattern, for text in lower case: most texts have no term, and one search says so.

    Without `re.IGNORECASE` an alternation skips each alternative whose first letter differs.
    """
    return re.compile(rf"\b(?:{'|'.join(rule.words for rule in RULES if kind in rule.kinds)})\b")


def _looked_at(path: str, line: int, kind: str, part: str) -> Iterator[Finding]:
    text = re.sub(r"(`+)[^`]*?\1", _blank, part, flags=re.DOTALL) if "`" in part else part
    text = LETTERS.sub(_blank, text)
    rows = [" ".join(row.split()) for row in text.split("\n")]
    flat = " ".join(rows)
    if not _any_term(kind).search(flat.lower()):
        return
    starts = list(accumulate((len(row) + 1 for row in rows), initial=0))
    for rule in RULES:
        if kind not in rule.kinds or (rule.only and not re.search(rule.only, path)):
            continue
        for match in rule.pattern.finditer(flat):
            row = bisect_right(starts, match.start()) - 1
            yield Finding(path, line + row, kind, match.group(), rule.instead)


def _blank(match: re.Match[str]) -> str:
    """As many lines as before, without their words, so that the words on both sides stay apart."""
    return " ; " + "\n" * match.group().count("\n")


@cache
def _words(name: str) -> str:
    """`NotOrdinary` and `not_ordinary` as `not ordinary`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ").strip().lower()


def _python(text: str) -> Iterator[tuple[int, str, str]]:
    nodes = walk(ast.parse(text))
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, ID, _words(node.name)
            case ast.arg():
                yield node.lineno, ID, _words(node.arg)
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, ID, _words(node.id)
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, ID, _words(node.attr)
            case ast.Constant(value=str(value)):
                yield node.lineno, TEXT if id(node) in prose else UI, value
    yield from _comments(text)


# Strings, and comments outside them in group 1. Python 3.12 allows quotes of the same kind inside an f-string; no file here has them.
STRING_OR_COMMENT = re.compile(
    r'''"""(?:[^"\\]|\\.|"(?!""))*"""|"(?:[^"\\\n]|\\.)*"'''
    r"""|'''(?:[^'\\]|\\.|'(?!''))*'''|'(?:[^'\\\n]|\\.)*'|\#([^\n]*)""",
    re.DOTALL,
)


def _comments(text: str) -> Iterator[tuple[int, str, str]]:
    """Comments, those in successive lines as one."""
    block: list[str] = []
    first = last = 0
    line, counted = 1, 0
    for match in STRING_OR_COMMENT.finditer(text):
        if match[1] is None:
            continue
        line += text.count("\n", counted, match.start())
        counted = match.start()
        if block and line != last + 1:
            yield first, TEXT, "\n".join(block)
            block = []
        if not block:
            first = line
        block.append(match[1].lstrip("#"))
        last = line
    if block:
        yield first, TEXT, "\n".join(block)


def _commented(text: str) -> Iterator[tuple[int, str, str]]:
    """Comments and quoted texts of Rust and JavaScript, line by line."""
    for number, line in enumerate(text.splitlines(), 1):
        comment = re.search(r"(?:^|\s)//+[!/]?(.*)$", line)
        if comment:
            yield number, TEXT, comment.group(1)
        for quoted in re.findall(r'"((?:[^"\\]|\\.)*)"', line if not comment else line[: comment.start()]):
            yield number, UI, quoted


def _markdown(text: str) -> Iterator[tuple[int, str, str]]:
    """Paragraphs without code blocks, comments, targets of links and tables' quoted cells."""
    for pattern in (r"^( *)(```|~~~).*?^\1\2\s*$", r"<!--.*?-->"):
        text = re.sub(
            pattern, lambda match: "\n" * match.group().count("\n"), text, flags=re.DOTALL | re.MULTILINE
        )
    text = re.sub(r"\]\([^)]*\)", "]", text)
    line = 1
    for paragraph in re.split(r"(\n\s*\n)", text):
        yield line, TEXT, paragraph
        line += paragraph.count("\n")
