"""Everything a person reads uses the field's terms (tests/language.py)."""

from pathlib import Path

import pytest

from tests.language import findings

ROOT = Path(__file__).parents[2]
READ = (
    "aerobee/**/*.py",
    "tests/**/*.py",
    "bench/**/*.py",
    "docs/**/*.md",
    "docs/**/*.py",
    "native/src/**/*.rs",
    "aerobee/**/*.js",
    "*.md",
)

# Files that still hold terms of the left column: a shrinking list of path prefixes.
UNFINISHED: tuple[str, ...] = (
    "CHANGELOG.md",
    # Generated from texts of the code.
    "docs/files.md",
    "docs/security.md",
    "docs/settings.md",
    # Show outputs of commands.
    "docs/install.md",
    "docs/pop.md",
    "docs/request-reply.md",
    "docs/retry.md",
    "docs/transactions.md",
    # Quote messages or names of the code.
    "tests/integration/pages/compare.py",
    "tests/simulation",
    "tests/unit/test_message.py",
)

# Words that a name of the wire, of another project or of the alphabet needs: path and word, with the reason.
ALLOWED: dict[tuple[str, str], str] = {
    ("tests/language.py", "*"): "the list itself",
    ("tests/unit/test_language.py", "*"): "examples of findings",
    ("tests/unit/broker/metrics/test_stats.py", "later"): "call_later() of asyncio",
    ("aerobee/clock.py", "later"): "call_later() of asyncio",
    ("aerobee/simulation/host.py", "later"): "call_later() of asyncio",
    ("aerobee/simulation/simulated_loop.py", "later"): "call_later() of asyncio",
    ("aerobee/client/base/verdict.py", "later"): "RocketMQ's RECONSUME_LATER",
    ("aerobee/client/consumer/allocation.py", "room"): "RocketMQ's strategy MACHINE_ROOM",
}


def read_files() -> list[str]:
    files = {path.relative_to(ROOT).as_posix() for pattern in READ for path in ROOT.glob(pattern)}
    return sorted(name for name in files if not name.startswith(UNFINISHED))


def read_folders() -> dict[str, list[str]]:
    folders: dict[str, list[str]] = {}
    for name in read_files():
        folders.setdefault(name.rpartition("/")[0], []).append(name)
    return folders


@pytest.mark.parametrize("names", read_folders().values(), ids=read_folders().keys())
def test_the_files_of_a_folder_use_the_terms_of_the_field(names: list[str]) -> None:
    refused = [
        each
        for name in names
        for each in findings(name, (ROOT / name).read_text(encoding="utf-8"))
        if (name, "*") not in ALLOWED and (name, each.words.lower()) not in ALLOWED
    ]
    assert not refused, "\n".join(map(str, refused))


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        ("a.py", "def put_beside(): ...", "put beside"),
        ("a.py", '"""Nobody asks."""', "Nobody"),
        ("a.py", "# It is\n# told to go.", "is told"),
        ("a.py", 'raise ValueError(f"{x} is over")', "is over"),
        ("a.rs", "// one stranger", "stranger"),
        ("a.md", "A world.\n```\nnobody\n```\n", "world"),
    ],
)
def test_a_term_of_the_left_column_is_found(path: str, text: str, words: str) -> None:
    assert words in [each.words for each in findings(path, text)]


def test_names_in_backticks_are_not_read() -> None:
    assert not findings("a.md", "The property `nobody` and `at once`.")
