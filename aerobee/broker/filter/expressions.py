"""Compiled SQL92 expressions, each compiled once and kept while it is in use."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from aerobee.broker.filter.program import Program, program_of
from aerobee.broker.filter.record_test import CompiledTest, compile_test
from aerobee.broker.filter.sql92 import FilterSyntaxError, Node, Sql92Filter, compile_filter
from aerobee.message import tags_code
from aerobee.remoting.body.subscription import EXPRESSION_CHARS_MAX

EXPRESSIONS_MAX = 1_024  # RocketMQ keeps 100; one takes about 10 KiB
FAULTS_MAX = 1_024  # as many as a group may subscribe with
TAGS = "TAGS"


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled expression. `test.record` evaluates it on a whole stored record.

    `tag_codes`: hashes of the tags that the expression requires, as in queue entries, so that records with other tags
    need not be read. None: it requires no tag. `program`: the same for the native backend, None where it has none.
    """

    compiled: Sql92Filter
    test: CompiledTest
    tag_codes: frozenset[int] | None
    program: Program | None


class Expressions:
    """A bounded table of compiled expressions that evicts the least recently used one.

    Invalid texts are cached too, because a client repeats them.
    """

    def __init__(self) -> None:
        self._compiled: OrderedDict[str, Expression] = OrderedDict()
        self._faults: OrderedDict[str, FilterSyntaxError] = OrderedDict()

    def get(self, text: str) -> Expression:
        """Return the compiled expression. Raises FilterSyntaxError with the column of the fault."""
        if len(text) > EXPRESSION_CHARS_MAX:
            raise FilterSyntaxError(
                text[:100], EXPRESSION_CHARS_MAX, f"at most {EXPRESSION_CHARS_MAX} characters are read"
            )
        found = self._compiled.get(text)
        if found is not None:
            self._compiled.move_to_end(text)
            return found
        fault = self._faults.get(text)
        if fault is not None:
            raise FilterSyntaxError(fault.expression, fault.column, fault.reason)
        try:
            compiled = compile_filter(text)
        except FilterSyntaxError as error:
            # Without the traceback, which would keep the request.
            self._faults[text] = FilterSyntaxError(error.expression, error.column, error.reason)
            if len(self._faults) > FAULTS_MAX:
                self._faults.popitem(last=False)
            raise
        found = self._compiled[text] = Expression(
            compiled, compile_test(compiled), _tag_codes(compiled.root), program_of(compiled)
        )
        if len(self._compiled) > EXPRESSIONS_MAX:
            self._compiled.popitem(last=False)
        return found

    def knows(self, text: str) -> bool:
        """Whether get() answers without compiling; the text counts as used."""
        for table in (self._compiled, self._faults):
            if text in table:
                table.move_to_end(text)
                return True
        return len(text) > EXPRESSION_CHARS_MAX

    def __len__(self) -> int:
        return len(self._compiled)


def _tag_codes(root: Node) -> frozenset[int] | None:
    """Hashes of the tags without which the expression cannot be TRUE; None when it does not depend on the tag.

    `TAGS = 'A'` and `TAGS IN ('A', 'B')`, alone or as a side of the outermost AND.
    """
    form = root.form
    if not form:
        return None
    if form[0] == "and":
        known = [codes for side in form[1] if (codes := _tag_codes(side)) is not None]
        return frozenset.intersection(*known) if known else None
    if form[0] == "in" and form[1].value == TAGS and not form[3]:
        return frozenset(tags_code(text) for text in form[2])
    if form[0] == "=" and not form[3]:
        for side, other in ((form[1], form[2]), (form[2], form[1])):
            if side.kind == "property" and side.value == TAGS and other.kind == "literal":
                return frozenset({tags_code(other.value)}) if isinstance(other.value, str) else None
    return None
