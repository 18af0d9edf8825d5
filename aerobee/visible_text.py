"""Characters that may steer a terminal or forge a line of a log, and how they are shown instead. Core."""

from __future__ import annotations

import re

# Control characters: C0 without line feed and tab, DEL, C1. Characters that change how the text around them looks: direction marks,
# embeddings, overrides and isolates (U+202E shows `gpj.exe` as `exe.jpg`), line and paragraph separators. Invisible characters:
# zero-width spaces (joiners stay, scripts need them), unused format characters, tags. Surrogates, which cannot be
# sent to a terminal.
STEERING = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\xad"
    r"\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
)
_STEERING = re.compile(f"[{STEERING}]")


def visible(text: str) -> str:
    """Text as it is, but what could steer a terminal or hide in it as \\xHH, \\uHHHH or \\UHHHHHHHH."""
    return _STEERING.sub(lambda match: _escaped(ord(match[0])), text)


def one_line(text: str) -> str:
    """The same, and line feeds and tabs escaped, too: text that cannot begin a line."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def _escaped(code: int) -> str:
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return f"\\u{code:04x}" if code > 0xFF else f"\\x{code:02x}"
