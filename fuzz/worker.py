"""The child: tries inputs one after the other, under limits of time and memory. What it finds it prints, as JSON lines.

It says which input it is at before it tries it, in a file that the parent reads when the child has died.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import mmap
import re
import resource
import signal
import struct
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

from fuzz.corpus import corpus
from fuzz.mutations import make_input
from fuzz.targets import Target
from penstock.errors import CorruptData

PLACE = struct.Struct("<QQ")
"""The number of the input that is being tried, and of the target."""

ALARMS = {signal.ITIMER_PROF: signal.SIGPROF, signal.ITIMER_REAL: signal.SIGALRM}
"""What ends an input that works for too long, and one that waits for much longer: a busy machine makes all wait."""

VALUE = "value"
_EVERY = 2_000


def main() -> None:
    """Try inputs from `--start` on, until there were enough or the time is over."""
    options = _options()
    targets = load_targets(options.targets)
    samples = corpus()
    for target in targets:  # loads what is loaded late, before memory is limited
        for sample in samples:
            if sample.kind == target.kind:
                _tried(target, sample.bytes())
    _limit_memory(options.memory)
    faulthandler.enable()
    for alarm in ALARMS.values():
        faulthandler.register(alarm, chain=True)  # shows where it hangs, then dies of the signal, also inside of C
    end = time.monotonic() + options.seconds
    with Path(options.place).open("r+b") as file, mmap.mmap(file.fileno(), PLACE.size) as place:
        outcomes = Counter[str]()
        for number in range(options.start, options.stop):
            if time.monotonic() > end:
                break
            case = make_input(samples, options.seed, number)
            for which, target in enumerate(targets):
                if target.kind != case.kind:
                    continue
                PLACE.pack_into(place, 0, number, which)
                _set_alarms(options.alarm)
                outcome = _tried(target, case.data)
                _set_alarms(0)
                if outcome.startswith("!"):
                    _say(finding=outcome[1:], number=number, target=target.name)
                outcomes[f"{target.name}: {outcome}"] += 1
            if number % _EVERY == _EVERY - 1:
                _say(outcomes=outcomes, at=number + 1)
                outcomes.clear()
        else:
            number = options.stop
        _say(outcomes=outcomes, at=number)


def load_targets(name: str) -> tuple[Target, ...]:
    """The targets that a `module:NAME` holds."""
    module, _, attribute = name.partition(":")
    targets: tuple[Target, ...] = getattr(importlib.import_module(module), attribute)
    return targets


def _tried(target: Target, data: bytes) -> str:
    """What came of it: a value, a kind of `CorruptData`, or something that must not be, after a `!`."""
    try:
        target.call(data)
    except CorruptData as error:
        if _short_of_memory(error):
            return f"!memory beyond the cap: {error}"
        return _kind(str(error)) if str(error) else "!CorruptData that does not say what is wrong"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"!{type(error).__name__} in {where.name}: {error}"
    return VALUE


def _short_of_memory(error: BaseException | None) -> bool:
    """Whether a `CorruptData` stands for an allocation that failed."""
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _kind(message: str) -> str:
    """What messages have in common: without their numbers, names and details."""
    kind = re.sub(" has the type.*", " has another type", re.split("[:;]|, not |, and ", message)[0])
    return re.sub(r"\d+", "N", re.sub(r"'[^']*'", "'…'", re.sub(r"\[.*\]", "[…]", kind)))


def _set_alarms(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 12 * seconds)


def _limit_memory(more: int) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, used + more))


def _say(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("seed", "start", "stop", "memory"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("seconds", "alarm"):
        parser.add_argument(f"--{name}", type=float, required=True)
    for name in ("targets", "place"):
        parser.add_argument(f"--{name}", required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
