"""Help for tests, users' too: a store that goes wrong on purpose.

What lives here: `FaultyStore`, and the faults it knows.

May import: `storage`, `records`, `errors`, `metrics`. No package imports it.
"""

from penstock.testing.faults import DEFAULT_RATES, Fault
from penstock.testing.faulty_store import FaultyStore

__all__ = ["DEFAULT_RATES", "Fault", "FaultyStore"]
