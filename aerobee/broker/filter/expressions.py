"""Compiled SQL92 expressions, each compiled once and kept while it is in use."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from aerobee.broker.filter.record_test import CompiledTest, compile_test
from aerobee.broker.filter.sql92 import FilterSyntaxError, Sql92Filter, compile_filter

EXPRESSIONS_MAX = 1_024  # RocketMQ keeps 100; one takes about 10 KiB
FAULTS_MAX = 100


@dataclass(frozen=True, slots=True)
class Expression:
    """`test.record` tells whether a whole stored record matches."""

    compiled: Sql92Filter
    test: CompiledTest


class Expressions:
    """A bounded table of compiled expressions; the one that was not asked for the longest goes first.

    Texts that do not compile are remembered too: a client asks with the same one again and again.
    """

    def __init__(self) -> None:
        self._compiled: OrderedDict[str, Expression] = OrderedDict()
        self._faults: OrderedDict[str, FilterSyntaxError] = OrderedDict()

    def get(self, text: str) -> Expression:
        """Return the compiled expression. Raises FilterSyntaxError with the column of the fault."""
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
            self._faults[text] = error
            if len(self._faults) > FAULTS_MAX:
                self._faults.popitem(last=False)
            raise
        found = self._compiled[text] = Expression(compiled, compile_test(compiled))
        if len(self._compiled) > EXPRESSIONS_MAX:
            self._compiled.popitem(last=False)
        return found

    def __len__(self) -> int:
        return len(self._compiled)
