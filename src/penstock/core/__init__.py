"""What every package needs and none owns: checks, forks, closing, retries, loggers, and the end of a process.

May import: `errors`, `metrics`.
"""

from typing import TYPE_CHECKING

from penstock.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock.core.at_exit import close_at_exit, forget
    from penstock.core.awaiting import LoopEvent, LoopLatch, Threads, in_new_thread, wait_for
    from penstock.core.checked_json import decode_fields, encode_fields
    from penstock.core.checks import as_word, check_config, check_seconds, check_whole
    from penstock.core.clock import uptime_ns
    from penstock.core.closing import Closing, opened_async
    from penstock.core.fork import begin_anew_in_child, current, never_free_in_child, open_in_child, refuse_in_child
    from penstock.core.group_commit import GroupCommit, Work
    from penstock.core.hand_over import Abandoned, HandOver, raise_if_abandoned, to_caller
    from penstock.core.logs import escaping, get_logger, traceback_of
    from penstock.core.loop_share import LoopShare
    from penstock.core.printing import printable
    from penstock.core.retry import Backoff, call_with_retries
    from penstock.core.stopping import StopOnSignal
    from penstock.core.waiting import Latch, Waiters, call_outside
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "at_exit": "close_at_exit forget",
            "awaiting": "LoopEvent LoopLatch Threads in_new_thread wait_for",
            "checked_json": "decode_fields encode_fields",
            "checks": "as_word check_config check_seconds check_whole",
            "clock": "uptime_ns",
            "closing": "Closing opened_async",
            "fork": "begin_anew_in_child current never_free_in_child open_in_child refuse_in_child",
            "group_commit": "GroupCommit Work",
            "hand_over": "Abandoned HandOver raise_if_abandoned to_caller",
            "logs": "escaping get_logger traceback_of",
            "loop_share": "LoopShare",
            "printing": "printable",
            "retry": "Backoff call_with_retries",
            "stopping": "StopOnSignal",
            "waiting": "Latch Waiters call_outside",
        },
    )

__all__: list[str] = []  # all of it is for the packages of Penstock alone
