"""`penstock dlq`: look at dead letters, and send them into a buffer again."""

from __future__ import annotations

import importlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from penstock.cli.letter_places import (
    LETTERS_PATH,
    LetterArgument,
    LetterKindOption,
    LettersPath,
    open_letters_at,
)
from penstock.cli.letter_text import iso_time, letter_json, letter_rows, payload_lines, shown_time
from penstock.cli.output import counted, say, say_json, show
from penstock.cli.places import MANIFEST_PATH, AsJson, ManifestPath, StorageOptions, open_with
from penstock.cli.table_places import CatalogOptions, moment_of
from penstock.errors import InvalidInput
from penstock.storage import redact

if TYPE_CHECKING:
    from penstock.engine import Filter, Replayed, StoredLetter

dlq_app = typer.Typer(help="Look at dead letters, and send them into a buffer again.", no_args_is_help=True)

_MAX_REASONS = 10_000  # that are counted one by one; what comes after is counted together
_MAX_REASON_CHARACTERS = 120  # in a table, where a longer one would take many lines; --json and `show` have all of it
_EXAMPLE_DIGITS = 10  # of an id: enough for `show`, and a column that fits

Reason = Annotated[
    str | None,
    typer.Option("--reason", help="Only letters with this in their reason: a text, or a regular expression."),
]
Stage = Annotated[
    str | None, typer.Option("--stage", help="Only letters of this stage: fetch, recv, parse or process.")
]
Since = Annotated[
    str | None,
    typer.Option("--since", help="Only letters that were set aside since: a date, a time, or '2 hours' (ago)."),
]


@dataclass
class ReasonCount:
    """Letters with one reason. `example` is the id of the first."""

    reason: str
    stage: str
    example: str
    letters: int = 0
    replayed: int = 0
    first: datetime | None = None
    last: datetime | None = None

    def add(self, letter: StoredLetter, *, is_replayed: bool) -> None:
        """Count a letter."""
        self.letters += 1
        self.replayed += is_replayed
        if letter.at is not None:
            self.first = letter.at if self.first is None else min(self.first, letter.at)
            self.last = letter.at if self.last is None else max(self.last, letter.at)


@dlq_app.command("list")
def list_letters(
    where: LetterArgument,
    reason: Reason = None,
    stage: Stage = None,
    since: Since = None,
    most: Annotated[int, typer.Option("--most", "-n", min=1, help="How many reasons, or letters, to show.")] = 20,
    each: Annotated[bool, typer.Option("--each", help="Show letters, one a line, instead of counts.")] = False,
    kind: LetterKindOption = None,
    catalog: CatalogOptions = None,
    letters_path: LettersPath = LETTERS_PATH,
    as_json: AsJson = False,
    storage_options: StorageOptions = None,
) -> None:
    """Count dead letters by their reason, those with the most letters first. Writes nothing."""
    from penstock.engine import Ledger

    opened = open_letters_at(where, kind, catalog, storage_options, letters_path)
    which = _filter(reason, stage, since)
    replayed = {one for plan in Ledger(opened.notes()).plans() for one in plan.ids}
    found = _Letters(opened.letters(), which)
    if each:
        _list_each(found, replayed, most, as_json=as_json)
        return
    counts: dict[tuple[str, str], ReasonCount] = {}
    for letter in found:
        name = (letter.reason, letter.stage)
        if name not in counts and len(counts) >= _MAX_REASONS:
            name = ("(other reasons)", "")
        count = counts.setdefault(name, ReasonCount(*name, letter.id))
        count.add(letter, is_replayed=letter.id in replayed)
    ordered = sorted(counts.values(), key=lambda one: (-one.letters, one.reason, one.stage))
    gone = sum(one.replayed for one in ordered)
    if as_json:
        reasons = [asdict(one) | {"first": iso_time(one.first), "last": iso_time(one.last)} for one in ordered[:most]]
        say_json({"letters": found.matching, "replayed": gone, "distinct_reasons": len(ordered), "reasons": reasons})
        return
    if ordered:
        rows = [
            [
                str(one.letters),
                str(one.replayed),
                one.stage,
                _cut(one.reason),
                shown_time(one.first),
                shown_time(one.last),
                one.example[:_EXAMPLE_DIGITS],
            ]
            for one in ordered[:most]
        ]
        show(["letters", "replayed", "stage", "reason", "first", "last", "for example"], rows)
    if len(ordered) > most:
        say(f"and {counted(len(ordered) - most, 'more reason')}; --most shows more")
    say(f"{found.counted()}, {gone} replayed")


@dlq_app.command("show")
def show_letter(
    where: LetterArgument,
    letter_id: Annotated[str, typer.Argument(metavar="ID", help="The letter's id, or how it begins.")],
    raw: Annotated[
        bool, typer.Option("--raw", help="Write the payload's bytes to standard output, and nothing else.")
    ] = False,
    kind: LetterKindOption = None,
    catalog: CatalogOptions = None,
    letters_path: LettersPath = LETTERS_PATH,
    as_json: AsJson = False,
    storage_options: StorageOptions = None,
) -> None:
    """Show one dead letter: its payload as JSON, text or hexadecimal, its key, headers, reason, and where it was."""
    from penstock.engine import Ledger

    opened = open_letters_at(where, kind, catalog, storage_options, letters_path)
    letter, count = _first_of(letter_id, opened.letters()) if letter_id else (None, 0)
    if letter is None:
        raise InvalidInput(
            f"there is no letter with the id {letter_id!r} in {redact(where)}: penstock dlq list --each has them"
        )
    if count > 1:
        raise InvalidInput(f"{count} letters have ids that begin with {letter_id!r}: give more of it")
    if raw:
        sys.stdout.buffer.write(letter.payload or b"")
        return
    plan = next((plan for plan in Ledger(opened.notes()).plans() if letter.id in plan.ids), None)
    replayed = None if plan is None else {"to": plan.buffer_url, "at": plan.at, "done": plan.is_done}
    if as_json:
        say_json(letter_json(letter) | {"replayed": replayed})
        return
    for name, value in letter_rows(letter, replayed):
        say(f"{name:<10} {value}")
    for line in payload_lines(letter.payload):
        say(line)


@dlq_app.command("replay")
def replay_letters(
    where: LetterArgument,
    to: Annotated[str, typer.Option("--to", metavar="BUFFER", help="The buffer that letters go into.")],
    reason: Reason = None,
    stage: Stage = None,
    since: Since = None,
    fix: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="A function of a letter that returns its payload (bytes), a Record, or None to leave it.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Append and note nothing; show what would be done.")
    ] = False,
    path: ManifestPath = MANIFEST_PATH,
    to_options: Annotated[
        list[str] | None, typer.Option("--to-option", metavar="NAME=VALUE", help="A setting of the buffer's store.")
    ] = None,
    kind: LetterKindOption = None,
    catalog: CatalogOptions = None,
    letters_path: LettersPath = LETTERS_PATH,
    as_json: AsJson = False,
    storage_options: StorageOptions = None,
) -> None:
    """Send letters that match into a buffer again, each once, with their keys and headers.

    Those that were replayed before are left out. Killed in the middle, run it again: what was begun is finished first.
    Letters of the stage fetch are whole batches that could not be read, and no events: name the stage to send them.
    Exit status 1: some letters could not be fixed, or sent; these stay.
    """
    from penstock.engine import Replay, Target

    function = None if fix is None else _function(fix)
    opened = open_letters_at(where, kind, catalog, storage_options, letters_path)
    target = Target(open_with(to, to_options), path)
    try:
        done = Replay(opened, target, function).run(_filter(reason, stage, since), dry_run=dry_run)
    except KeyboardInterrupt:
        say("penstock: interrupted. Run the same command again: it goes on, and sends each letter once", err=True)
        raise
    if as_json:
        say_json(asdict(done) | {"failures": dict(done.failures), "dry_run": dry_run})
    else:
        for line in _replay_lines(done, target.url, dry_run=dry_run):
            say(line)
    if done.failed:
        raise typer.Exit(1)


def _filter(reason: str | None, stage: str | None, since: str | None) -> Filter:
    from penstock.engine import Filter

    return Filter(reason, stage, None if since is None else moment_of("--since", since, datetime.now(UTC)))


class _Letters:
    """The letters that match, one after the other, and how many there are."""

    def __init__(self, letters: Iterator[StoredLetter], which: Filter) -> None:
        self._all = letters
        self._matches = which.matcher()
        self.matching = 0
        self._others: Counter[str] = Counter()  # of each stage

    def __iter__(self) -> Iterator[StoredLetter]:
        for letter in self._all:
            if self._matches(letter):
                self.matching += 1
                yield letter
            else:
                self._others[letter.stage] += 1

    def counted(self) -> str:
        """How many match, in words, and of how many where that is not all; if none does, which stages there are."""
        if not self._others:
            return counted(self.matching, "dead letter")
        total = self.matching + self._others.total()
        stages = "" if self.matching else f" (of the stages {', '.join(sorted(self._others))})"
        return f"{self.matching} of {counted(total, 'dead letter')}{stages} match"


def _first_of(beginning: str, letters: Iterator[StoredLetter]) -> tuple[StoredLetter | None, int]:
    """The letter with this id, or the first whose id begins so, and how many there are."""
    first, count = None, 0
    for letter in letters:
        if letter.id == beginning:
            return letter, 1
        if letter.id.startswith(beginning):
            first, count = letter if first is None else first, count + 1
    return first, count


def _list_each(letters: _Letters, replayed: set[str], most: int, *, as_json: bool) -> None:
    first: list[StoredLetter] = []
    for letter in letters:
        if len(first) < most:
            first.append(letter)
    if as_json:
        say_json([letter_json(letter) | {"is_replayed": letter.id in replayed} for letter in first])
        return
    if not first:
        say(letters.counted())
        return
    rows = [
        [one.id, shown_time(one.at), one.stage, _cut(one.reason), "yes" if one.id in replayed else "no"]
        for one in first
    ]
    show(["id", "set aside", "stage", "reason", "replayed"], rows)
    if letters.matching > most:
        say(f"and {letters.matching - most} more; --most shows more")


def _cut(reason: str) -> str:
    return reason if len(reason) <= _MAX_REASON_CHARACTERS else f"{reason[: _MAX_REASON_CHARACTERS - 1]}…"


def _replay_lines(done: Replayed, url: str, *, dry_run: bool) -> Iterator[str]:
    yield f"{'would replay' if dry_run else 'replayed'} {counted(done.replayed, 'letter')} into {url}"
    if done.finished:
        yield f"  {done.finished} of them had been planned by a run that was not finished"
    for count, why in (
        (done.skipped, "replayed before, and left out"),
        (done.left_by_fix, "left by the fix function"),
        (done.without_payload, "without a payload, and left"),
        (done.whole_batches, "of the stage fetch, which are no events, and left: --stage fetch sends them"),
        (done.failed, "failed, and left"),
    ):
        if count:
            yield f"  {count} {why}"
    if not done.matching:
        yield "  no letter matches"
    for letter_id, why in done.failures:
        yield f"  {letter_id}: {why}"


def _function(named: str) -> Callable[[StoredLetter], Any]:
    """Import "module:function"; modules in the current directory are found first."""
    module, separator, name = named.partition(":")
    if not separator or not module or not name:
        raise InvalidInput(f"--fix must be MODULE:FUNCTION, such as my_fixes:repair, not {named!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        problem = " ".join(str(error).split())
        raise InvalidInput(f"--fix {named} cannot be imported: {type(error).__name__}: {problem}") from error
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise InvalidInput(f"--fix {named} is no function: there is no {name} in {module}, or it cannot be called")
    return cast("Callable[[StoredLetter], Any]", found)
