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
        self._regex: re.Pattern[str] | None = None
        if not names:
            return
        if "||" in text or text.startswith("sql:"):
            raise SetupError(f"tag {text!r} has parameters and is an expression: it can be one of both")
        if len(set(names)) != len(names):
            raise SetupError(f"tag {text!r} has a parameter twice")
        pieces = _PARAMETER.split(text)
        self._regex = re.compile(
            "".join(
                f"(?P<{piece}>.+?)" if index % 2 else re.escape(piece) for index, piece in enumerate(pieces)
            )
        )

    @property
    def expression(self) -> str:
        """What the consumer subscribes to."""
        return ANY if self._regex is not None else self.text

    def path(self, tag: str | None) -> dict[str, str] | None:
        """Values of the parameters, None when the template does not match. Expressions are the brokers' to evaluate."""
        if self._regex is None:
            return {}
        found = self._regex.fullmatch(tag or "")
        return None if found is None else found.groupdict()

    def wants(self, tag: str | None) -> bool:
        """Whether a message with this tag reaches the handlers, as far as that is known without a broker (not SQL92)."""
        if self._regex is not None:
            return self.path(tag) is not None
        if self.text == ANY or self.text.startswith("sql:"):
            return True
        return tag in {part.strip() for part in self.text.split("||")}
