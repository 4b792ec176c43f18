"""A plot with two logarithmic axes, as SVG: enough for a few lines, and nothing to install."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 360, 70, 50, 30, 110
COLOURS = ("#b3452c", "#2c6fb3", "#3c8a3c")


@dataclass(frozen=True)
class Line:
    """A name, and points of x and y, both above 0."""

    name: str
    points: Sequence[tuple[float, float]]


def plot(title: str, below: str, lines: Sequence[Line]) -> str:
    """Draw lines over whole powers of ten."""
    xs = [math.log10(x) for line in lines for x, _ in line.points]
    ys = [math.log10(y) for line in lines for _, y in line.points]
    x_low, x_high = math.floor(min(xs)), math.ceil(max(xs))
    y_low, y_high = math.floor(min(ys)), math.ceil(max(ys))

    def across(x: float) -> float:
        return LEFT + (math.log10(x) - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)

    def down(y: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(y) - y_low) / (y_high - y_low) * (HEIGHT - BOTTOM - TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="13">{title}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{below}</text>',
    ]
    for power in range(x_low, x_high + 1):
        x = across(10.0**power)
        parts.append(f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{10**power:,}</text>')
    for power in range(y_low, y_high + 1):
        y = down(10.0**power)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:,g}</text>')
    for line, colour in zip(lines, COLOURS, strict=False):
        places = [(across(x), down(y)) for x, y in line.points]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        x, y = places[-1]
        parts.append(f'<text x="{x + 8:.1f}" y="{y + 4:.1f}" fill="{colour}">{line.name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
