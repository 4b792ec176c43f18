"""Public names of a package whose modules are imported when a name is first used, by PEP 562.

`import penstock` is part of every command and of every Spark worker's start. It must not wait for Arrow, RocksDB or
an HTTP server that its caller may never need.

May import: nothing of Penstock.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import ModuleType


def lazy_names(
    package: str, names: Mapping[str, str], submodules: Iterable[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package.

    `names` has the names that each module below the package defines, with a space between them. `submodules` can be
    used as attributes of the package without an `import` of their own. A type checker does not see these: list the same
    imports under `TYPE_CHECKING` beside them.
    """
    module_of = {name: f"{package}.{module}" for module, defined in names.items() for name in defined.split()}
    modules = frozenset(submodules)

    def get(name: str) -> object:
        if name in modules:
            return import_module(f"{package}.{name}")  # which also sets the attribute
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=_itself(package))
        value: object = getattr(import_module(module_of[name]), name)
        setattr(_itself(package), name, value)  # Python asks `__getattr__` only for what is not set
        return value

    def list_names() -> list[str]:
        return sorted({*vars(_itself(package)), *module_of, *modules})

    return get, list_names


def _itself(package: str) -> ModuleType:
    return sys.modules[package]
