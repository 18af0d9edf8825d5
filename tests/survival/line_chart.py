"""Line charts as one SVG file, panels below each other, without a library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, PANEL_HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 900, 210, 70, 20, 34, 26
COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df")


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: lines by name, all over the same x values. The y axis begins at 0."""

    title: str
    lines: Mapping[str, Sequence[float]]


def draw(x_title: str, x: Sequence[float], panels: Sequence[Panel]) -> str:
    """Return the SVG text. `x` grows; each line of each panel has as many values as `x`."""
    height = PANEL_HEIGHT * len(panels) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    for number, panel in enumerate(panels):
        parts.append(_panel(panel, x, number * PANEL_HEIGHT))
    parts.append(
        f'<text x="{WIDTH / 2}" y="{height - 8}" text-anchor="middle">{escape(x_title)}</text></svg>'
    )
    return "\n".join(parts) + "\n"


def _panel(panel: Panel, x: Sequence[float], y_offset: int) -> str:
    top, bottom = y_offset + TOP, y_offset + PANEL_HEIGHT - BOTTOM
    y_max = _round_up(max((max(line) for line in panel.lines.values()), default=1.0))
    x_span = (x[-1] - x[0]) or 1.0

    def point(at: float, value: float) -> str:
        across = LEFT + (at - x[0]) / x_span * (WIDTH - LEFT - RIGHT)
        return f"{across:.1f},{bottom - value / y_max * (bottom - top):.1f}"

    parts = [f'<text x="{LEFT}" y="{top - 14}" font-weight="bold">{escape(panel.title)}</text>']
    for step in range(5):
        value = y_max * step / 4
        y = bottom - (bottom - top) * step / 4
        parts.append(f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{value:g}</text>')
    for step in range(7):
        value = x[0] + x_span * step / 6
        across = LEFT + (WIDTH - LEFT - RIGHT) * step / 6
        parts.append(f'<text x="{across}" y="{bottom + 16}" text-anchor="middle">{value:.0f}</text>')
    label_at = WIDTH - RIGHT
    for index, (name, line) in reversed(list(enumerate(panel.lines.items()))):
        colour = COLOURS[index % len(COLOURS)]
        points = " ".join(point(at, value) for at, value in zip(x, line, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(
            f'<text x="{label_at}" y="{top - 14}" text-anchor="end" fill="{colour}">{escape(name)}</text>'
        )
        label_at -= 9 * len(name) + 16
    return "\n".join(parts)


def _round_up(value: float) -> float:
    """The next of 1, 2, 4, 5, 10 times a power of ten, so that quarters are round numbers."""
    scale = 1.0
    while scale * 10 <= value:
        scale *= 10
    while scale > value > 0:
        scale /= 10
    return next(scale * step for step in (1, 2, 4, 8, 10) if scale * step >= value) if value > 0 else 1.0
