"""Each page of docs/ runs as a reader would run it: all of them on one cluster, in two orders, with the outputs they show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aerobee.testing import ThreadedCluster
from tests.integration.pages.compare import difference, renamed, wrong_plurals
from tests.integration.pages.page import PageError, steps
from tests.integration.pages.runner import ROOT, Desk, commands, plain_words

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# What the pages tell `aerobee up` to set, together.
SETTINGS = {
    "recallMessageEnable": "true",
    "enableLmq": "true",
    "enableMultiDispatch": "true",
    "dedupWindowMillis": "600000",
    "transactionCheckMax": "2",
    "enablePropertyFilter": "true",
}


def test_all_pages_run_with_the_outputs_they_show_in_two_orders(tmp_path: Path) -> None:
    """Concurrently, each on a separate cluster: most of a page's time is waiting."""
    with ThreadPoolExecutor(2) as threads:
        orders = {"forward": PAGES, "backward": PAGES[::-1]}
        runs = {name: threads.submit(failures_of, pages, tmp_path / name) for name, pages in orders.items()}
        failures = [f"{name}: {text}" for name, run in runs.items() for text in run.result()]
    assert not failures, "\n\n".join(failures)


def failures_of(pages: Sequence[Path], directory: Path) -> list[str]:
    """What went otherwise than the pages show, one after the other on one cluster."""
    failures: list[str] = []
    with (
        ThreadedCluster(broker_config=SETTINGS) as cluster,
        Desk(directory, cluster.nameserver_address, SETTINGS) as desk,
    ):
        for page in pages:
            failures += desk.page_failures(page.name, page.read_text(encoding="utf-8"))
    return failures


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("aerobee send hello 'my first'  # a comment", ["aerobee", "send", "hello", "my first"]),
        ("python docs/examples/first.py", ["python", "docs/examples/first.py"]),
        ("aerobee consume x | sort", []),
        ("for n in 1 2; do aerobee topic list; done", []),
        ('aerobee send x "$HOME"', []),
        ("cat LICENSE", []),
    ],
)
def test_a_line_of_words_needs_no_shell(line: str, words: list[str]) -> None:
    assert plain_words(line) == words


@pytest.mark.parametrize(
    ("shown", "printed", "kinds", "wrong"),
    [
        (["sent 7F000001393829B5127867ACC77CC9D7"], ["sent 7F000001393829B5127867ACC77CC9D8"], "", ""),
        (["2 messages"], ["3 messages"], "", "- 2 messages\n+ 3 messages"),
        (["2 messages"], ["3 messages"], "figures differ", ""),
        (["a", "b"], ["b", "a"], "", "the lines stand in another order"),
        (["a", "b"], ["b", "a"], "any order", ""),
        (["a", "b"], ["b", "a", "c"], "any order", "+ c"),
        (["a", "b"], ["a", "b", "c"], "among others", ""),
        (["a", "b"], ["x", "a", "b"], "", "+ x"),
        (["a", "…"], ["a", "b", "c"], "", ""),
        (["a", "…", "c"], ["a", "b"], "", "- c\n+ b"),
        (["…", "b", "a"], ["x", "a", "b"], "any order", ""),
        (["in 3.0 s"], ["in 12 ms"], "", ""),
        (["127.0.0.1:9876 answered"], ["10.0.0.7:1 answered"], "", ""),
        (["a"], [], "", "- a"),
    ],
)
def test_what_may_differ_and_what_may_not(
    shown: list[str], printed: list[str], kinds: str, wrong: str
) -> None:
    assert difference(shown, printed, frozenset(kinds.split(", ")) - {""}, {}) == wrong


def test_an_id_of_the_page_is_the_one_of_this_run() -> None:
    names: dict[str, str] = {}
    old, new = "7F000001393829B5127867ACC77CC9D7", "0A000001393829B5127867ACC77CC9D8"
    assert difference([f"sent {old} to a"], [f"sent {new} to a"], frozenset(), names) == ""
    assert renamed(f"aerobee message id {old}", names) == f"aerobee message id {new}"


def test_comments_of_a_page_are_obeyed_and_unknown_ones_refused() -> None:
    text = "<!-- not run: a reason -->\n\n    $ one\n    x\n    $ two\n\nBetween.\n\n    $ three\n"
    found = list(steps(text))
    assert [(step.text, step.not_run) for step in found] == [
        ("one", "a reason"),
        ("two", "a reason"),
        ("three", ""),
    ]
    with pytest.raises(PageError, match="line 1"):
        list(steps("<!-- output: whatever -->\n"))


def test_a_plural_of_one_is_found() -> None:
    assert wrong_plurals(
        ["1 messages", "1 message", "21 messages", "1 ms", "in 1 queues", "check 1 was sent"]
    ) == [
        "1 messages",
        "in 1 queues",
    ]


def test_most_of_what_the_pages_show_is_run() -> None:
    """Here, or by the test that the page's comment names, which has to be there."""
    every = [command for page in PAGES for command in commands(page.read_text(encoding="utf-8"))]
    run = [command for command in every if not command.not_run]
    named = [path for command in every for path in re.findall(r"tests/[\w/]+\w(?:\.py)?", command.not_run)]
    assert [path for path in named if not (ROOT / path).exists()] == []
    elsewhere = [command for command in every if "tests/" in command.not_run]
    assert len(run) > 120
    assert len(run) + len(elsewhere) > 0.9 * len(every)
    assert sum(len(command.shown) for command in run) > 250
