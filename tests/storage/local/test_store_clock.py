"""The store's clock never goes back, never leaps while the host is up, and survives what happens to its file."""

from __future__ import annotations

import itertools
import os
import tempfile
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import uptime_ns
from penstock.storage.local import LocalStore
from penstock.storage.local.clock import StoreClock, boot_id
from penstock.storage.local.folder import stripe_of
from tests.support.processes import Parent, Start, let_go

NOW = 1_700_000_000.0
HOUR = 3_600.0
SECOND = 1_000_000_000  # of uptime
THIS_BOOT, NEXT_BOOT = b"this boot id....", b"the next boot id"


class Host:
    """The clocks of a host, set by the test."""

    def __init__(self) -> None:
        self.now = NOW
        self.up = 500 * SECOND
        self.boot = THIS_BOOT

    def clock(self, path: object) -> StoreClock:
        """Open the store's clock, as a process that starts now would."""
        return StoreClock(
            str(path),
            clock=lambda: self.now,
            uptime=lambda: self.up,
            boot=lambda: self.boot,
        )

    def micros(self) -> int:
        """What the host thinks the time is, in microseconds."""
        return int(self.now * 1_000_000)


@pytest.fixture
def host() -> Host:
    return Host()


moments = st.tuples(
    st.sampled_from([0.0, 0.0, 1e-3, 1.0, -1.0, HOUR, -HOUR]) | st.floats(-1e6, 1e6, allow_nan=False),
    st.integers(0, 10 * SECOND) | st.sampled_from([0, 1, 999, 1_000, 1_001]),
    st.booleans(),
)


@settings(max_examples=3 * settings().max_examples)
@given(st.lists(moments, min_size=1, max_size=30))
def test_stamps_rise_and_follow_the_host_at_no_more_than_twice_the_speed_of_time(
    story: list[tuple[float, int, bool]],
) -> None:
    host = Host()
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "clock")
        clock = host.clock(path)
        last = clock.next_stamp()
        assert last == host.micros()
        for jump, passed, restarted in story:
            host.now += jump
            host.up += passed
            if restarted:
                clock = host.clock(path)
            stamp = clock.next_stamp()
            assert stamp > last
            assert stamp - last <= max(1, 2 * passed // 1_000)
            # Where the host's time is within that, it is used as it is.
            if last < host.micros() <= last + 2 * passed // 1_000:
                assert stamp == host.micros()
            last = stamp


def test_a_leap_of_the_host_moves_last_modified_by_twice_the_uptime_at_most(tmp_path: Path, host: Host) -> None:
    def modified(name: str) -> datetime:
        store = LocalStore(tmp_path, clock=lambda: host.now, uptime=lambda: host.up)
        store.put(name, b"")
        return store.head(name).last_modified

    began = modified("before")
    host.now += HOUR
    host.up += 10 * SECOND
    assert modified("after") - began == timedelta(seconds=20)
    host.up += 10 * SECOND
    assert modified("later") - began == timedelta(seconds=40)


def test_after_a_leap_the_clock_catches_up_with_the_host(tmp_path: Path, host: Host) -> None:
    clock = host.clock(tmp_path / "clock")
    clock.next_stamp()
    host.now += HOUR
    for _ in range(61):
        host.now += 60
        host.up += 60 * SECOND
        stamp = clock.next_stamp()

    assert stamp == host.micros()


def test_a_step_back_of_the_host_never_lets_the_clock_go_back(tmp_path: Path, host: Host) -> None:
    first = host.clock(tmp_path / "clock").next_stamp()
    host.now -= HOUR
    stamps = [host.clock(tmp_path / "clock").next_stamp() for _ in range(5)]

    assert stamps == [first + 1, first + 2, first + 3, first + 4, first + 5]


def test_a_clock_that_is_ahead_of_the_host_goes_at_half_the_speed_until_the_host_is_there(
    tmp_path: Path, host: Host
) -> None:
    """If it stood still, nothing written from then on would ever be older than anything else."""
    first = host.clock(tmp_path / "clock").next_stamp()
    host.now -= HOUR
    stamps = []
    for _ in range(5):
        host.now += 1
        host.up += SECOND
        stamps.append(host.clock(tmp_path / "clock").next_stamp())

    assert stamps == [first + 500_000 * second for second in range(1, 6)]

    for _ in range(2 * 60):
        host.now += 60
        host.up += 60 * SECOND
        stamp = host.clock(tmp_path / "clock").next_stamp()

    assert stamp == host.micros()


def test_a_file_from_the_future_does_not_take_other_objects_there_with_it(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    same_lock = [name for name in map(str, range(1_000)) if stripe_of(name) == stripe_of("touched")]
    store.put("touched", b"")
    os.utime(tmp_path / "touched", (4_000_000_000, 4_000_000_000))
    store.put("touched", b"")
    for name in same_lock:
        store.put(name, b"")

    assert store.head("touched").last_modified.year == 2096
    assert all(store.head(name).last_modified.year < 2096 for name in same_lock)
    store.delete(["touched"])
    store.put("touched", b"")
    assert store.head("touched").last_modified.year < 2096


@pytest.mark.parametrize(
    ("boot", "uptime"),
    [(NEXT_BOOT, 1 * SECOND), (NEXT_BOOT, 900 * SECOND), (THIS_BOOT, 1 * SECOND)],
    ids=["a shorter uptime", "a longer uptime", "an uptime that began anew under the same boot id"],
)
def test_after_a_reboot_the_clock_takes_the_hosts_time_and_never_goes_back(
    tmp_path: Path, host: Host, boot: bytes, uptime: int
) -> None:
    host.clock(tmp_path / "clock").next_stamp()
    host.now += HOUR
    host.boot, host.up = boot, uptime
    assert host.clock(tmp_path / "clock").next_stamp() == host.micros()
    last = host.micros()
    host.now -= 2 * HOUR
    host.boot = b"another boot id."
    assert host.clock(tmp_path / "clock").next_stamp() == last + 1


def test_a_torn_clock_file_is_replaced(tmp_path: Path, host: Host) -> None:
    path = tmp_path / "clock"
    for length in range(36):
        host.clock(path).next_stamp()
        whole = path.read_bytes()
        path.write_bytes(whole[:length])
        host.now += HOUR

        stamp = host.clock(path).next_stamp()
        assert stamp == host.micros()
        assert host.clock(path).next_stamp() == stamp + 1
        assert len(path.read_bytes()) == len(whole)


def test_a_clock_file_with_any_bit_turned_is_not_believed(tmp_path: Path, host: Host) -> None:
    path = tmp_path / "clock"
    host.clock(path).next_stamp()
    whole = path.read_bytes()
    host.now += HOUR
    for bit in range(8 * len(whole)):
        turned = bytearray(whole)
        turned[bit // 8] ^= 1 << bit % 8
        path.write_bytes(turned)
        assert host.clock(path).next_stamp() == host.micros(), bit


def test_a_store_whose_clock_file_was_overwritten_with_junk_goes_on_writing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    before = store.put("object", b"1")
    for junk in (b"", b"junk", b"\0" * 36, b"\xff" * 5_000):
        (tmp_path / ".penstock" / "clock").write_bytes(junk)
        after = store.put("object", b"1")
        assert after != before
        before = after


def stamp_when_asked(parent: Parent, path: str, ahead: float) -> None:
    """Take a stamp each time the test asks for one, on a host clock that is wrong by some seconds."""
    clock = StoreClock(path, clock=lambda: NOW + ahead)
    while parent.wait():
        parent.tell(clock.next_stamp())


def test_stamps_rise_from_process_to_process_though_their_host_clocks_disagree(tmp_path: Path, start: Start) -> None:
    path = str(tmp_path / "clock")
    asked = [start(stamp_when_asked, path, ahead) for ahead in (0.0, -HOUR, HOUR, 0.000_001)]
    stamps = []
    for number in range(200):
        child = asked[number * 7 % len(asked) if number % 3 else number % len(asked)]
        child.tell(True)
        stamps.append(child.hear())
    for child in asked:
        child.tell(False)

    assert all(before < after for before, after in itertools.pairwise(stamps))


def stamp_on_and_on(parent: Parent, path: str, count: int) -> list[int]:
    """When the test says so, take many stamps on a host clock that stands still."""
    clock = StoreClock(path, clock=lambda: NOW)
    parent.tell("ready")
    parent.wait()
    return [clock.next_stamp() for _ in range(count)]


def test_processes_that_stamp_at_the_same_time_never_get_the_same_one(tmp_path: Path, start: Start) -> None:
    stamping = [start(stamp_on_and_on, str(tmp_path / "clock"), 1_000) for _ in range(4)]
    let_go(stamping)
    series = [child.answer() for child in stamping]

    assert all(stamps == sorted(stamps) for stamps in series)
    assert len({stamp for stamps in series for stamp in stamps}) == 4_000


def test_the_hosts_own_clocks_have_the_form_that_a_store_needs() -> None:
    assert len(boot_id()) == 16
    assert boot_id() == boot_id()
    assert 0 < uptime_ns() <= uptime_ns()
