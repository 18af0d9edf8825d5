"""The tag of a subscriber: an expression that brokers evaluate, or a template whose parameters become Path(). Pure."""

from __future__ import annotations

import re

from faststream.exceptions import SetupError

_PARAMETER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
ANY = "*"


class TagFilter:
    """`TagFilter("paid || refunded")`, or with parameters: `TagFilter("{country}-{city}")`.

    RocketMQ knows no wildcards in tags: a subscriber with a template receives all tags of the topic, and acknowledges those
    that do not match without calling a handler.
    """

    def __init__(self, text: str) -> None:
        """Raises SetupError for a template that is an expression too, or has a parameter twice."""
        self.text = text
        names = _PARAMETER.findall(text)
        self._names: tuple[str, ...] = ()
        self._literals: tuple[str, ...] = ()  # before, between and behind the parameters
        if not names:
            return
        if "||" in text or text.startswith("sql:"):
            raise SetupError(f"tag {text!r} has parameters and is an expression: it can be one of both")
        if len(set(names)) != len(names):
            raise SetupError(f"tag {text!r} has a parameter twice")
        self._names, self._literals = tuple(names), tuple(_PARAMETER.split(text)[::2])

    @property
    def expression(self) -> str:
        """What the consumer subscribes to."""
        return ANY if self._names else self.text

    def path(self, tag: str | None) -> dict[str, str] | None:
        """Values of the parameters, each as short as possible; None when the template does not match. Expressions are the brokers'
        to evaluate.

        A producer chooses the tag: the time grows with its length, not with a power of it.
        """
        if not self._names:
            return {}
        tag = tag or ""
        first, *between, last = self._literals
        at, end = len(first), len(tag) - len(last)
        if not tag.startswith(first) or not tag.endswith(last):
            return None
        values = []
        for literal in between:
            found = tag.find(literal, at + 1, end)
            if found < 0:
                return None
            values.append(tag[at:found])
            at = found + len(literal)
        values.append(tag[at:end])
        if at >= end or any("\n" in value for value in values):
            return None
        return dict(zip(self._names, values, strict=True))

    def wants(self, tag: str | None) -> bool:
        """Whether a message with this tag reaches the handlers, as far as that is known without a broker (not SQL92)."""
        if self._names:
            return self.path(tag) is not None
        if self.text == ANY or self.text.startswith("sql:"):
            return True
        return tag in {part.strip() for part in self.text.split("||")}
