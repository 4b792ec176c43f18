"""`python -m fuzz [--seconds N] [--seed S]`: ends with status 1 where something was found."""

from __future__ import annotations

import argparse
import random
import sys

from fuzz.runner import ENDLESS, run


def main() -> int:
    """Fuzz for a while, and show what came of it."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long (60)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="what all inputs follow from")
    parser.add_argument("--inputs", type=int, default=ENDLESS, help="stop after so many, if there is time for them")
    options = parser.parse_args()
    sys.stdout.write(f"seed {options.seed}\n")
    sys.stdout.flush()
    report = run(options.seed, seconds=options.seconds, inputs=options.inputs)
    sys.stdout.write("\n".join(report.lines()) + "\n")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
