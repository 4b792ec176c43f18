"""Measures several ways of doing one thing in turns, so that all of them meet the same machine, and shows ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

ROUNDS = 5


@dataclass(frozen=True)
class Contest:
    """One kind of work, and everybody who does it. `work` does it `size` times; the first one is ours.

    Those named in `fewer` do it that many times instead: the slow ones, whose rounds would last too long.
    """

    title: str
    size: int
    ways: Mapping[str, Callable[[int], object]]
    unit: str = "/s"
    rounds: int = ROUNDS
    fewer: Mapping[str, int] = field(default_factory=dict)


def measure(contest: Contest) -> dict[str, float]:
    """The median rate of each way, over rounds in which they take turns. A first round warms up and is not counted."""
    rates: dict[str, list[float]] = {name: [] for name in contest.ways}
    for number in range(contest.rounds + 1):
        for name, work in contest.ways.items():
            size = contest.fewer.get(name, contest.size)
            started = time.perf_counter()
            work(size)
            if number:
                rates[name].append(size / (time.perf_counter() - started))
    return {name: statistics.median(found) for name, found in rates.items()}


def show(title: str, contests: list[Contest]) -> None:
    """Measure the contests one after the other, and print one table."""
    table = Table(title=title, title_justify="left")
    for column, side in (("work", "left"), ("who", "left"), ("rate", "right"), ("Penstock is", "right")):
        table.add_column(column, justify="right" if side == "right" else "left")
    for contest in contests:
        rates = measure(contest)
        ours = next(iter(rates.values()))
        for number, (name, rate) in enumerate(rates.items()):
            ratio = "" if number == 0 else f"{ours / rate:.2f}x"
            table.add_row("" if number else contest.title, name, f"{rate:,.0f}{contest.unit}", ratio)
        table.add_section()
    Console(width=110).print(table)
