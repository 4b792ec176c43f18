"""From events to bytes and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, overload

from penstock.core import printable
from penstock.errors import CorruptEvent, InvalidInput, PenstockError
from penstock.queue.damage import shown

if TYPE_CHECKING:
    import msgspec

Event = TypeVar("Event")

_MAX_REASON_CHARACTERS = 1000  # of the error of a codec


class Codec(Protocol[Event]):
    """How events become bytes. Both methods raise whatever they like for what they cannot do.

    They are called under a lock or between two events: they must not use the queue.
    """

    def encode(self, event: Event, /) -> bytes:
        """The bytes of an event."""
        ...

    def decode(self, data: bytes, /) -> Event:
        """The event in these bytes."""
        ...


class BytesCodec:
    """Events that are bytes already."""

    def encode(self, event: bytes, /) -> bytes:
        """Return the event as it is."""
        if not isinstance(event, bytes):
            raise InvalidInput(f"an event is bytes unless the queue has a codec, not {type(event).__name__}")
        return bytes(event)

    def decode(self, data: bytes, /) -> bytes:
        """Return the bytes as they are."""
        return data


PLAIN = BytesCodec()


def checked_codec(codec: Codec[Any] | None) -> Codec[Any]:
    """The codec of a queue: without one, events are bytes. Raises `InvalidInput` for what is none."""
    if codec is None:
        return PLAIN
    for name in ("encode", "decode"):
        if not callable(getattr(codec, name, None)):
            raise InvalidInput(f"codec must have encode and decode, and {type(codec).__name__} has no {name}")
    return codec


class MsgspecCodec(Generic[Event]):
    """Events of any type that `msgspec` knows: a Struct, a dataclass, a TypedDict, builtins.

    `form` is "msgpack" or "json". An event is decoded once before it is taken: `msgspec` would write a field of
    the wrong type, and refuse it when it is read.

    >>> MsgspecCodec(dict[str, int], form="json").encode({"clicks": 3})
    b'{"clicks":3}'
    """

    @overload
    def __init__(self, kind: type[Event], *, form: Literal["msgpack", "json"] = "msgpack") -> None: ...

    @overload  # a union, for one, is no class
    def __init__(self: MsgspecCodec[Any], kind: Any, *, form: Literal["msgpack", "json"] = "msgpack") -> None: ...

    def __init__(self, kind: Any, *, form: Literal["msgpack", "json"] = "msgpack") -> None:
        import msgspec

        if form not in {"msgpack", "json"}:
            raise InvalidInput(f"form must be msgpack or json, not {form!r}")
        self._encoder: msgspec.json.Encoder | msgspec.msgpack.Encoder
        self._decoder: msgspec.json.Decoder[Event] | msgspec.msgpack.Decoder[Event]
        try:
            if form == "json":
                self._encoder, self._decoder = msgspec.json.Encoder(), msgspec.json.Decoder(kind)
            else:
                self._encoder, self._decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(kind)
        except TypeError as error:
            raise InvalidInput(f"msgspec has no form for {kind!r}: {error}") from error

    def encode(self, event: Event, /) -> bytes:
        """Write an event, and read it once."""
        data = self._encoder.encode(event)
        try:
            self._decoder.decode(data)
        except Exception as error:
            raise InvalidInput(f"it could be written, but never be read again: {error}") from error
        return data

    def decode(self, data: bytes, /) -> Event:
        """Read an event."""
        return self._decoder.decode(data)


def encoded(codec: Codec[Event], event: Event, number: int | None = None) -> bytes:
    """An event's bytes; it is the one with this number, if it is one of many. Raises `InvalidInput`, in any case."""
    try:
        data: object = codec.encode(event)
    except Exception as error:
        raise InvalidInput(f"{_which(number)} cannot be encoded, and nothing was pushed: {_reason(error)}") from error
    if type(data) is not bytes:
        kind = type(data).__name__
        raise InvalidInput(f"the codec made {kind} of {_which(number)}, and must make bytes: nothing was pushed")
    return data


def decoded(codec: Codec[Event], identifier: int, data: bytes) -> Event:
    """The event in these bytes. Raises `CorruptEvent` naming its id, whatever the codec raises."""
    try:
        return codec.decode(data)
    except Exception as error:
        raise CorruptEvent(
            f"event {identifier} cannot be decoded: {_reason(error)}. It stays on disk; skip_corrupt=True goes past "
            f"it, and ack({identifier}) deletes it",
            id=identifier,
        ) from error


def _reason(error: Exception) -> str:
    """What a codec raised, as one line: its message may quote the event."""
    text = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
    return printable(text, _MAX_REASON_CHARACTERS)


def _which(number: int | None) -> str:
    return "this event" if number is None else f"event {number} of these"


def bad_key(path: str, key: bytes) -> CorruptEvent:
    """What to say of a key that is no id."""
    return CorruptEvent(
        f"the key {key!r} (in hexadecimal {key.hex()}) among the events in {shown(path)} is no event id: those have 8 "
        "bytes. It stays there; skip_corrupt=True goes past it",
        key=key,
    )
