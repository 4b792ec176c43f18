"""An option that neither the data source nor the store knows: the error names the one that was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from penstock.errors import InvalidInput
from penstock.storage import ObjectStore, open_store

_MIN_LIKENESS = 0.75

NO_TABLES = (
    "Spark does not tell a data source in Python the options of a table made by CREATE TABLE: use "
    "CREATE TEMPORARY VIEW name USING penstock OPTIONS (path '...') instead"
)
"""What is wrong with a table, and what to do."""


def open_place(where: str, options: Mapping[str, str], known: Iterable[str]) -> ObjectStore:
    """Open the store of a read or write that has these options left, beside those of the data source.

    Raises what `open_store` raises; where an option is close to one of the data source's, the error names that.
    """
    try:
        return open_store(where, **options)
    except InvalidInput as error:
        names = list(known)
        for name in options:
            meant = nearest(name, names)
            if meant is not None:
                raise InvalidInput(f"unknown option {name!r}: is {meant!r} meant? ({error})") from None
        if "unknown option" not in str(error):
            raise
        raise InvalidInput(f"{error}; those of the data source are: {', '.join(sorted(names))}") from None


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is closest, whatever the case of its letters; None where none is close.

    >>> nearest("maxbytespertriger", ["maxBatchesPerTrigger", "maxBytesPerTrigger"])
    'maxBytesPerTrigger'
    """
    by_lower = {one.lower(): one for one in known}
    plain = name.lower().replace("_", "").replace("-", "")
    close = difflib.get_close_matches(plain, by_lower, n=1, cutoff=_MIN_LIKENESS)
    return by_lower[close[0]] if close else None
