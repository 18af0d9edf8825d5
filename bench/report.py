"""Tables and charts of bench/README.md, made from bench/results/*.json.

    python bench/report.py

Only what stands between the two marker lines of the README is replaced. Each table names the command and the day of
its run. Charts are bench/results/*.svg: bars of server CPU a message, Aerobee compared with the others.
"""

from __future__ import annotations

import statistics
from html import escape
from typing import Any

import results_file
from compare import SHAPES, median
from results_file import RESULTS

README = RESULTS.parent / "README.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
ORDER = ("aerobee", "aerobee-python", "rocketmq", "null", "redis", "nats")
TITLES = {"aerobee": "Aerobee", "aerobee-python": "Aerobee, pure Python", "aerobee-up": "`aerobee up`", "rocketmq": "RocketMQ 5.5.0",
          "null": "null server", "redis": "Redis Streams", "nats": "NATS JetStream"}  # fmt: skip
COLOURS = {"aerobee": "#d97706", "aerobee-python": "#f5b75b", "rocketmq": "#4b5563"}
KINDS = ("ordinary", "transaction", "delay", "timer", "orderly", "pop", "filter")
BAR, GAP, LEFT, WIDTH = 18, 6, 190, 720


def source(document: dict[str, Any]) -> str:
    return f"`{document['command']}`, {document['when']}, Python {document['python']}, {document['cores']} cores\n"


def row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def cpu_table(document: dict[str, Any]) -> list[str]:
    """Server CPU a message, and the factors of RocketMQ."""
    shapes = document["results"]["shapes"]
    names = [name for name in ORDER if any(name in by_server for by_server in shapes.values())]
    lines = [
        "### Server CPU a message, microseconds (median)\n",
        row("shape", *(TITLES[name] for name in names), "native: factor (goal)", "Python: factor (goal)"),
        "|---|" + "---|" * (len(names) + 2),
    ]
    for shape in SHAPES:
        measured = shapes.get(shape.name)
        if not measured:
            continue
        values = {name: median(rounds) for name, rounds in measured.items()}
        factors = []
        for name, goal in (("aerobee", shape.goal_native), ("aerobee-python", shape.goal_python)):
            known = name in values and "rocketmq" in values
            factors.append(f"{values[name] / values['rocketmq']:.2f} ({goal:g})" if known else "")
        lines.append(row(shape.title, *(f"{values[n]:.2f}" if n in values else "" for n in names), *factors))
        chart(f"cpu-{shape.name}", f"{shape.title}: server CPU a message, us", values)
    return [*lines, "", source(document), "![128 B, 64 in flight](results/cpu-send-64.svg)\n"]


def latency_table(document: dict[str, Any]) -> list[str]:
    """End to end, long polling."""
    lines = [
        "### End to end latency, milliseconds (median of the rounds)\n",
        row("messages a second", "server", "p50", "p99", "p99.9"),
        "|---|---|---|---|---|",
    ]
    found = document["results"]
    for rate in next(iter(found.values())):
        for name, by_rate in found.items():
            figures = [
                sorted(float(result["e2e_latency_ms"][p]) for result in by_rate[rate])
                for p in ("p50", "p99", "p99.9")
            ]
            lines.append(row(rate, TITLES[name], *(f"{values[len(values) // 2]:.2f}" for values in figures)))
    return [*lines, "", source(document)]


def footprint_table(document: dict[str, Any]) -> list[str]:
    """Start, idleness, memory."""
    found = document["results"]
    rows = (
        ("start to first answer, empty store, CPU seconds", "start_cpu_s", "{:.2f}"),
        ("idle, NameServer + broker, resident, MiB", "idle_rss_mib", "{:.0f}"),
        ("the same, pages shared between the two counted once (PSS)", "idle_pss_mib", "{:.0f}"),
        ("idle CPU of the broker, % of a core", "idle_cpu_percent", "{:.2f}"),
    )
    lines = [
        "### Footprint\n",
        row("", *(TITLES[name] for name in found)),
        "|---|" + "---|" * len(found),
    ]
    for title, key, form in rows:
        lines.append(row(title, *(form.format(result[key]) for result in found.values())))
    under_load = (result["load_anonymous_mib"] for result in found.values())
    lines.append(
        row(
            "memory without file pages under load, MiB: first, most, last",
            *(f"{load['first']:.0f}, {load['max']:.0f}, {load['last']:.0f}" for load in under_load),
        )
    )
    return [*lines, "", source(document)]


def clients_table(document: dict[str, Any]) -> list[str]:
    """CPU of clients: (goal with the native codec, goal in pure Python) compared with the figures."""
    official = results_file.read("clients-grpc")
    found = document["results"] | (official["results"] if official is not None else {})
    lines = [
        "### Client CPU a message, microseconds (median)\n",
        row("client", "Aerobee (goal)", "Aerobee, pure Python (goal)", "RocketMQ's gRPC client in Python", "Python: factor (goal)"),
        "|---" * 5 + "|",
    ]  # fmt: skip
    for client, goal_native, goal_python in (("producer", 6, 20), ("consumer", 3, 8)):
        values = {
            prefix: statistics.median(found[f"{prefix}{client}_us"])
            for prefix in ("", "python_", "grpc_")
            if f"{prefix}{client}_us" in found
        }
        both = "python_" in values and "grpc_" in values
        lines.append(
            row(
                client,
                f"{values['']:.2f} ({goal_native})" if "" in values else "",
                f"{values['python_']:.2f} ({goal_python})" if "python_" in values else "",
                f"{values['grpc_']:.2f}" if "grpc_" in values else "",
                f"{values['python_'] / values['grpc_']:.3f} (0.3)" if both else "",
            )
        )
    if "floor_us" in found:
        lines.append(
            row("asyncio's minimum of a send", f"{statistics.median(found['floor_us']):.2f}", "", "", "")
        )
    return [*lines, "", *(source(each) for each in (document, official) if each is not None)]


def kinds_table() -> list[str]:
    """Kinds of messages: one row for each row of results/kind-*.json."""
    documents = [document for name in KINDS if (document := results_file.read(f"kind-{name}")) is not None]
    if not documents:
        return []
    servers = ("aerobee", "aerobee-python", "rocketmq")
    lines = [
        "### Kinds of messages (server CPU a message, where nothing else is said)\n",
        row("kind", "shape", "unit", *(TITLES[name] for name in servers), "factor", "goal", "against"),
        "|---" * (len(servers) + 6) + "|",
    ]
    for document in documents:
        found = document["results"]
        for each in found["rows"]:
            values = [str(each["values"].get(name, "")) for name in servers]
            ratios = [f"{each['ratios'][name]:.2f}" for name in servers if name in each["ratios"]]
            against = each["against"] if ratios else ""
            lines.append(
                row(
                    found["title"],
                    each["shape"],
                    each["unit"],
                    *values,
                    ", ".join(ratios),
                    each["goal"],
                    against,
                )
            )
    lines += ["", "Where there are two factors, the second one is that of the Python backend.\n"]
    return lines + [source(document) for document in documents]


def chart(name: str, title: str, values: dict[str, float]) -> None:
    """Write a bar chart; the longest bar fills the width."""
    names = [n for n in ORDER if n in values]
    scale = (WIDTH - LEFT - 80) / max(values.values())
    height = 34 + len(names) * (BAR + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        f'font-size="13"><rect width="100%" height="100%" fill="white"/><text x="8" y="20" font-weight="bold">'
        f"{escape(title)}</text>"
    ]
    for number, server in enumerate(names):
        y = 30 + number * (BAR + GAP)
        length = max(1.0, values[server] * scale)
        parts.append(
            f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(TITLES[server])}</text>'
            f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{COLOURS.get(server, "#9ca3af")}"/>'
            f'<text x="{LEFT + length + 6:.1f}" y="{y + 14}">{values[server]:.2f}</text>'
        )
    (RESULTS / f"{name}.svg").write_text("".join(parts) + "</svg>\n")


SECTIONS = (
    ("compare", cpu_table),
    ("latency", latency_table),
    ("footprint", footprint_table),
    ("clients", clients_table),
)


def main() -> None:
    lines: list[str] = []
    for name, make in SECTIONS:
        document = results_file.read(name)
        if document is not None:
            lines += make(document)
    lines += kinds_table()
    text = README.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    README.write_text(f"{head}{BEGIN}\n\n" + "\n".join(lines) + f"\n{END}{tail}")
    print(f"{README} has the figures of {', '.join(n for n, _ in SECTIONS if results_file.read(n))}")


if __name__ == "__main__":
    main()
