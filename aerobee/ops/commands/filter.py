"""`aerobee filter test`: try a subscription's expression on properties, without a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from aerobee.broker.filter.sql92 import FilterSyntaxError, compile_filter
from aerobee.errors import UsageError
from aerobee.ops.options.options import AsJson
from aerobee.ops.terminal.output import Output

app = typer.Typer(name="filter", help="SQL92 filters: try an expression.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """SQL92 filters: try an expression."""


@app.command("test")
def try_expression(
    expression: Annotated[str, typer.Argument(help="For example: price > 5 AND region IN ('eu', 'us')")],
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property", "-p", metavar="NAME=VALUE", help="A property of the message; may be repeated."
        ),
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="The message's tag, the property TAGS.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show whether a message with these properties matches. Exit code 0 in both cases."""
    out = Output(as_json)
    row: dict[str, str] = {}
    for text in properties or ():
        name, separator, value = text.partition("=")
        if not separator or not name or not value:
            raise UsageError(f"--property {text!r}: write NAME=VALUE, neither of them empty")
        row[name] = value
    if tag is not None:
        row["TAGS"] = tag
    try:
        compiled = compile_filter(expression)
    except FilterSyntaxError as error:
        raise UsageError(str(error)) from error
    matches = compiled.matches(row)
    missing = sorted(compiled.properties - row.keys())
    document = {
        "expression": expression,
        "matches": matches,
        "properties": sorted(compiled.properties),
        "missing": missing,
    }
    sentence = "the message matches" if matches else "the message is filtered out"
    if missing:
        sentence += f"; it has no {', '.join(missing)}: a comparison with a missing property is not true"
    out.document(document, sentence)
