"""SQL92 filter expressions over message properties, compiled once and evaluated for each message.

Follows RocketMQ's filter module (SelectorParser and its expressions). Grammar, keywords in any case:

    or          and ("OR" and)*
    and         equality ("AND" equality)*
    equality    comparison (("=" | "<>") comparison | "IS" ["NOT"] "NULL")*
    comparison  unary ( ("<" | "<=" | ">" | ">=") unary
                      | ["NOT"] "BETWEEN" unary "AND" unary
                      | ["NOT"] "IN" "(" 'text' ("," 'text')* ")"
                      | ["NOT"] ("CONTAINS" | "STARTSWITH" | "ENDSWITH") unary )*
    unary       ("NOT" | "+" | "-") unary | primary
    primary     literal | property | "(" or ")"

Every property is text. Against an integer literal the property is read as an integer, against a floating literal as a
floating number, against TRUE and FALSE as a boolean; other texts never match. Two texts compare with `=` and `<>` as
text, with `<` and `>` as numbers. A missing property is NULL, and logic is three-valued: a message matches only if the
expression is TRUE.

Difference from RocketMQ: the literal 0.0 is accepted (RocketMQ's range check refuses it).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aerobee.errors import AerobeeError

EXPRESSION_CHARS_MAX = 64 * 1024
DEPTH_MAX = 60  # of parentheses, NOT, signs and chained comparisons; bounds the recursion

Value = str | int | float | bool | None
Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Value]

_TOKEN = re.compile(
    r"""(?P<blank>\s+|--[^\r\n]*|/\*.*?\*/)
      | (?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?[lL]?)
      | (?P<text>'(?:[^']|'')*')
      | (?P<word>[A-Za-z_$][A-Za-z0-9_$]*)
      | (?P<operator><>|<=|>=|=|<|>|\(|\)|,|\+|-)""",
    re.VERBOSE | re.DOTALL,
)
_KEYWORDS = frozenset(
    ["NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH"]
)
_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 63) - 1
_LONG_DIGITS = 19
_INTEGER = re.compile(r"[+-]?[0-9]+\Z")
_FLOATING = re.compile(r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?\s*\Z")


class FilterSyntaxError(AerobeeError):
    """The expression does not parse. `column` counts characters from 1 to the fault."""

    def __init__(self, expression: str, column: int, reason: str) -> None:
        self.expression = expression
        self.column = column
        self.reason = reason
        super().__init__(f"column {column}: {reason}, in {expression[:200]!r}")


@dataclass(frozen=True, slots=True)
class Sql92Filter:
    """A compiled expression. `properties` are the names of the properties that it reads."""

    expression: str
    properties: frozenset[str]
    root: Node
    _evaluate: Evaluate

    def matches(self, properties: Properties) -> bool:
        """True when the expression is TRUE for a message with these properties; NULL and FALSE are no match."""
        return self._evaluate(properties) is True


def compile_filter(expression: str) -> Sql92Filter:
    """Compile an expression. Raises FilterSyntaxError with the column of the fault."""
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise FilterSyntaxError(
            expression, EXPRESSION_CHARS_MAX, f"longer than {EXPRESSION_CHARS_MAX} characters"
        )
    parser = _Parser(expression)
    node = parser.parse()
    return Sql92Filter(expression, frozenset(parser.properties), node, node.evaluate)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # number, text, word, keyword, operator, end
    text: str
    column: int


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the syntax tree. `kind`: literal, property, boolean. `value` is a literal's value, a property's name.

    `form` of a boolean says what it is made of, for who compiles it further (record_test.py): ("or", nodes),
    ("and", nodes), ("not", node), ("=", left, right, negate), ("order", left, operator, right), ("null", node, negate),
    ("in", node, texts, negate), ("text", left, word, right, negate), ("lone", property).
    """

    kind: str
    evaluate: Evaluate
    column: int
    value: Value = None
    form: tuple[Any, ...] = ()

    @property
    def is_number(self) -> bool:
        """Whether it is a number literal, not true or false."""
        return (
            self.kind == "literal"
            and isinstance(self.value, (int, float))
            and not isinstance(self.value, bool)
        )


def _tokens(expression: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        if match is None:
            reason = (
                "this text literal is not closed"
                if expression[at] == "'"
                else f"{expression[at]!r} is not allowed"
            )
            raise FilterSyntaxError(expression, at + 1, reason)
        kind = match.lastgroup or ""
        text = match.group()
        if kind == "word" and text.upper() in _KEYWORDS:
            found.append(_Token("keyword", text.upper(), at + 1))
        elif kind != "blank":
            found.append(_Token(kind, text, at + 1))
        at = match.end()
    found.append(_Token("end", "the end", len(expression) + 1))
    return found


class _Parser:
    """Recursive-descent parser with one method per grammar rule."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = _tokens(expression)
        self._at = 0
        self._depth = 0
        self.properties: set[str] = set()

    def parse(self) -> Node:
        node = self._condition(self._or())
        if self._next.kind != "end":
            raise self._fault(f"{self._next.text} is not expected here")
        return node

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _fault(self, reason: str, column: int = 0) -> FilterSyntaxError:
        return FilterSyntaxError(self._expression, column or self._next.column, reason)

    def _take(self, *texts: str) -> str | None:
        """Consume the next token when it is one of these keywords or marks."""
        token = self._next
        if token.kind in ("keyword", "operator") and token.text in texts:
            self._at += 1
            return token.text
        return None

    def _expect(self, text: str) -> None:
        if self._take(text) is None:
            raise self._fault(f"{text} is expected, found {self._next.text}")

    def _condition(self, node: Node) -> Node:
        """A node where TRUE, FALSE or NULL is needed. A lone property is text, so it is never TRUE."""
        if node.kind == "boolean" or (
            node.kind == "literal" and (node.value is None or isinstance(node.value, bool))
        ):
            return node
        if node.kind == "property":
            inner = node.evaluate
            return Node(
                "boolean", lambda p: None if inner(p) is None else False, node.column, form=("lone", node)
            )
        raise self._fault("a condition is expected, found a value", node.column)

    def _or(self) -> Node:
        sides = [self._and()]
        while self._take("OR"):
            sides.append(self._and())
        return self._joined(sides, "or", _either_of)

    def _and(self) -> Node:
        sides = [self._equality()]
        while self._take("AND"):
            sides.append(self._equality())
        return self._joined(sides, "and", _both_of)

    def _joined(self, sides: list[Node], word: str, join: Callable[[Sequence[Evaluate]], Evaluate]) -> Node:
        if len(sides) == 1:
            return sides[0]
        # One flat node for a long chain: nested pairs would nest as deep as the chain is long.
        sides = [self._condition(side) for side in sides]
        return _boolean(sides[0], join([side.evaluate for side in sides]), word, sides)

    def _equality(self) -> Node:
        left = self._comparison()
        for _ in range(DEPTH_MAX):
            if operator := self._take("=", "<>"):
                right = self._comparison()
                negate = operator == "<>"
                left = _boolean(left, _equal(left, right, negate=negate), "=", left, right, negate)
            elif self._take("IS"):
                negate = self._take("NOT") is not None
                self._expect("NULL")
                left = _boolean(left, _is_null(left, negate=negate), "null", left, negate)
            else:
                return left
        raise self._fault(f"more than {DEPTH_MAX} comparisons in a chain")

    def _comparison(self) -> Node:
        left = self._unary()
        for _ in range(DEPTH_MAX):
            if operator := self._take("<", "<=", ">", ">="):
                right = self._unary()
                self._check_ordered(left, right)
                left = _compared(left, operator, right)
                continue
            negate = False
            if self._next.text == "NOT" and self._next.kind == "keyword":
                following = self._tokens[self._at + 1]
                if following.text not in ("BETWEEN", "IN", "CONTAINS", "STARTSWITH", "ENDSWITH"):
                    return left
                self._at += 1
                negate = True
            if self._take("BETWEEN"):
                left = self._between(left, negate=negate)
            elif self._take("IN"):
                left = self._in(left, negate=negate)
            elif word := self._take("CONTAINS", "STARTSWITH", "ENDSWITH"):
                right = self._unary()
                left = _boolean(
                    left, _text_test(left, word, right, negate=negate), "text", left, word, right, negate
                )
            else:
                return left
        raise self._fault(f"more than {DEPTH_MAX} comparisons in a chain")

    def _check_ordered(self, *sides: Node) -> None:
        for side in sides:
            if side.kind == "boolean" or (side.kind == "literal" and not side.is_number):
                raise self._fault("<, <=, > and >= compare properties and numbers only", side.column)
        if not any(side.is_number for side in sides) and not all(side.kind == "property" for side in sides):
            raise self._fault("one side must be a number", sides[0].column)

    def _between(self, left: Node, *, negate: bool) -> Node:
        low = self._unary()
        self._expect("AND")
        high = self._unary()
        for bound in (low, high):
            if not bound.is_number:
                raise self._fault("the bounds of BETWEEN are numbers", bound.column)
        assert isinstance(low.value, (int, float))
        assert isinstance(high.value, (int, float))
        if low.value > high.value:
            raise self._fault(f"BETWEEN's lower bound {low.value} is above {high.value}", low.column)
        self._check_ordered(left, low)
        if negate:
            sides = [_compared(left, "<", low), _compared(left, ">", high)]
            return _boolean(left, _either_of([side.evaluate for side in sides]), "or", sides)
        sides = [_compared(left, ">=", low), _compared(left, "<=", high)]
        return _boolean(left, _both_of([side.evaluate for side in sides]), "and", sides)

    def _in(self, left: Node, *, negate: bool) -> Node:
        if left.kind != "property":
            raise self._fault("the left side of IN is a property", left.column)
        self._expect("(")
        texts: set[str] = set()
        while True:
            token = self._next
            if token.kind != "text":
                raise self._fault(f"IN takes a list of 'texts', found {token.text}")
            texts.add(_text_value(token.text))
            self._at += 1
            if not self._take(","):
                break
        self._expect(")")
        wanted = frozenset(texts)
        return _boolean(left, _in_list(left, wanted, negate=negate), "in", left, wanted, negate)

    def _unary(self) -> Node:
        column = self._next.column
        sign = self._take("NOT", "+", "-")
        if sign is None:
            return self._primary()
        self._deeper()
        operand = self._unary()
        self._depth -= 1
        if sign == "NOT":
            operand = self._condition(operand)
            return Node("boolean", _not(operand), column, form=("not", operand))
        if not operand.is_number:
            raise self._fault("a sign stands before a number only", column)
        assert isinstance(operand.value, (int, float))
        value = -operand.value if sign == "-" else operand.value
        return _literal(value, column)

    def _primary(self) -> Node:
        token = self._next
        if token.kind == "number":
            self._at += 1
            return _literal(self._number(token), token.column)
        if token.kind == "text":
            self._at += 1
            return _literal(_text_value(token.text), token.column)
        if token.kind == "word":
            self._at += 1
            name = token.text
            self.properties.add(name)
            return Node("property", lambda p: p.get(name), token.column, name)
        if word := self._take("TRUE", "FALSE", "NULL"):
            return _literal({"TRUE": True, "FALSE": False, "NULL": None}[word], token.column)
        if self._take("("):
            self._deeper()
            node = self._or()
            self._depth -= 1
            self._expect(")")
            return node
        raise self._fault(f"a value is expected, found {token.text}")

    def _number(self, token: _Token) -> int | float:
        text = token.text.rstrip("lL")
        if text.isdigit():
            digits = text.lstrip("0")
            value = int(digits or "0") if len(digits) <= _LONG_DIGITS else _LONG_MAX + 2
            # The sign is parsed apart, so 2^63 is let through here for -9223372036854775808.
            if value > _LONG_MAX + 1:
                raise self._fault(f"{text} does not fit 64 bits", token.column)
            return value
        if text != token.text:
            raise self._fault(f"{token.text} is neither an integer nor a floating number", token.column)
        number = float(text)
        if number == float("inf"):
            raise self._fault(f"{text} is too large", token.column)
        return number

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._fault(f"nested deeper than {DEPTH_MAX}")


def _literal(value: Value, column: int) -> Node:
    return Node("literal", lambda _: value, column, value)


def _boolean(first: Node, evaluate: Evaluate, *form: Any) -> Node:
    """A condition that begins where `first` does."""
    return Node("boolean", evaluate, first.column, form=form)


def _compared(left: Node, operator: str, right: Node) -> Node:
    return _boolean(left, _ordered(left, operator, right), "order", left, operator, right)


def _text_value(token: str) -> str:
    return token[1:-1].replace("''", "'")


def to_integer(text: str) -> int | None:
    """Read as java.lang.Long.parseLong does: no blanks, 64 bits."""
    if not _INTEGER.match(text):
        return None
    digits = text.lstrip("+-").lstrip("0")  # int() takes no more than 4,300 digits, a property may have more
    if len(digits) > _LONG_DIGITS:
        return None
    value = -int(digits or "0") if text[0] == "-" else int(digits or "0")
    return value if _LONG_MIN <= value <= _LONG_MAX else None


def to_floating(text: str) -> float | None:
    """Read as java.lang.Double.parseDouble does, without its hexadecimal form."""
    if not _FLOATING.match(text):
        return None
    return float(text.strip().rstrip("fFdD"))


def _alike(left: Value, right: Value) -> tuple[Value, Value]:
    """Bring a text to the type of the other side; None for one that cannot be read so."""
    if isinstance(left, str) and not isinstance(right, str):
        left, right = _alike(right, left)[::-1]
        return left, right
    if isinstance(right, str) and not isinstance(left, str):
        if isinstance(left, bool):
            return left, right.lower() == "true"
        if isinstance(left, int):
            return left, to_integer(right)
        return left, to_floating(right)
    return left, right


def _equal(left: Node, right: Node, *, negate: bool) -> Evaluate:
    first, second = left.evaluate, right.evaluate

    def evaluate(properties: Properties) -> Value:
        a, b = first(properties), second(properties)
        if a is None or b is None:
            return None
        x, y = _alike(a, b)
        if x is None or y is None:
            return False
        if isinstance(x, bool) is not isinstance(y, bool):
            return False
        return (x != y) if negate else (x == y)

    return evaluate


def _ordered(left: Node, operator: str, right: Node) -> Evaluate:
    first, second = left.evaluate, right.evaluate
    compare = _ORDER[operator]

    def evaluate(properties: Properties) -> Value:
        a, b = first(properties), second(properties)
        if a is None or b is None:
            return None
        x, y = (to_floating(a), to_floating(b)) if isinstance(a, str) and isinstance(b, str) else _alike(a, b)
        if not isinstance(x, (int, float)) or not isinstance(y, (int, float)):
            return False
        return compare(x, y)

    return evaluate


_ORDER: dict[str, Callable[[float, float], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def _is_null(node: Node, *, negate: bool) -> Evaluate:
    inner = node.evaluate
    return lambda properties: (inner(properties) is None) is not negate


def _in_list(node: Node, texts: frozenset[str], *, negate: bool) -> Evaluate:
    inner = node.evaluate

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        return None if value is None else (value in texts) is not negate

    return evaluate


def _text_test(left: Node, word: str, right: Node, *, negate: bool) -> Evaluate:
    first, second = left.evaluate, right.evaluate
    test = _TEXT_TESTS[word]

    def evaluate(properties: Properties) -> Value:
        value, pattern = first(properties), second(properties)
        # FALSE, also under NOT, unless both sides are texts and the pattern is not empty, as in RocketMQ.
        if not isinstance(value, str) or not isinstance(pattern, str) or not pattern:
            return False
        return test(value, pattern) is not negate

    return evaluate


_TEXT_TESTS: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": lambda value, pattern: pattern in value,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def _not(node: Node) -> Evaluate:
    inner = node.evaluate

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        return None if value is None else not value

    return evaluate


def _both_of(sides: Sequence[Evaluate]) -> Evaluate:
    def evaluate(properties: Properties) -> Value:
        result: Value = True
        for side in sides:
            value = side(properties)
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return evaluate


def _either_of(sides: Sequence[Evaluate]) -> Evaluate:
    def evaluate(properties: Properties) -> Value:
        result: Value = False
        for side in sides:
            value = side(properties)
            if value is True:
                return True
            if value is None:
                result = None
        return result

    return evaluate
