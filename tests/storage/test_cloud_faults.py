"""What a lost or a bad reply means: a proxy in front of a real S3 server loses some replies and invents others."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from penstock.errors import AlreadyExists, Conflict, NotFound, OutcomeUnknown, PenstockError, StorageError
from penstock.storage import ObjectStore, open_store
from tests.support.servers import BUCKET, AzureServer, S3Server


@dataclass(frozen=True)
class Answer:
    """A reply that the proxy invents; the server behind it never sees the request."""

    status: int
    body: str = ""
    headers: tuple[tuple[str, str], ...] = ()


LOSE_REPLY = "the request reaches the server, and its reply is lost"
LOSE_REQUEST = "the request never reaches the server"
PASS = "nothing happens to it"
Fate = Answer | str


class Proxy(ThreadingHTTPServer):
    """Passes requests on to a server. `fates` says what happens to the next ones, in order; then all pass."""

    daemon_threads = False

    def __init__(self, behind: S3Server) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.behind = behind
        self.fates: list[Fate] = []
        self.seen: list[str] = []
        self.passed: list[str] = []
        self.generations: list[str | None] = []  # that requests were conditional on, in the words of GCS
        self._connections: list[socket.socket] = []
        self._lock = threading.Lock()

    def fate_of(self, request: str) -> Fate:
        with self._lock:
            self.seen.append(request)
            return self.fates.pop(0) if self.fates else PASS

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        assert isinstance(request, socket.socket)
        with self._lock:
            self._connections.append(request)
        super().process_request(request, client_address)

    def hang_up(self) -> None:
        """End every connection, also those that wait for a next request."""
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Passing(BaseHTTPRequestHandler):
    server: Proxy
    protocol_version = "HTTP/1.1"

    def handle_request(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.generations.append(self.headers.get("x-goog-if-generation-match"))
        fate = self.server.fate_of(self.command)
        if isinstance(fate, Answer):
            self.reply(fate.status, [("Content-Type", "application/xml"), *fate.headers], fate.body.encode())
            return
        if fate == LOSE_REQUEST:
            self.close_connection = True
            return
        behind = http.client.HTTPConnection(self.server.behind.host, self.server.behind.port, timeout=30)
        try:
            behind.request(self.command, self.path, body, dict(self.headers))
            answer = behind.getresponse()
            content = answer.read()
        finally:
            behind.close()
        self.server.passed.append(self.command)
        if fate == LOSE_REPLY:
            self.close_connection = True
            return
        self.reply(answer.status, answer.getheaders(), content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request  # noqa: N815

    def reply(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        length = str(len(content))
        for name, value in headers:
            if name.lower() == "content-length":
                length = value  # of what a HEAD would have brought
            elif name.lower() not in {"connection", "transfer-encoding"}:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def proxy_to(behind: S3Server) -> Iterator[Proxy]:
    with Proxy(behind) as proxy:
        serving = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01}, name="proxy")
        serving.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            serving.join()
            proxy.hang_up()


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    with proxy_to(s3_server) as proxy:
        yield proxy


@pytest.fixture
def direct(s3_server: S3Server, fresh_name: str) -> ObjectStore:
    """The same place as `store`, around the proxy: what is really there."""
    return open_store(f"s3://{BUCKET}/{fresh_name}", **s3_server.options)


@pytest.fixture
def open_through(proxy: Proxy, s3_server: S3Server, fresh_name: str) -> Callable[..., ObjectStore]:
    """Open the store behind the proxy, with options."""
    options = {**s3_server.options, "endpoint": f"http://127.0.0.1:{proxy.server_port}"}
    return lambda **more: open_store(f"s3://{BUCKET}/{fresh_name}", **{**options, **more})


@pytest.fixture
def store(open_through: Callable[..., ObjectStore]) -> ObjectStore:
    return open_through()


CONDITIONAL: dict[str, Callable[[ObjectStore, str], str]] = {
    "put_if_absent": lambda store, _: store.put_if_absent("new", b"mine"),
    "put_if_match": lambda store, version: store.put_if_match("old", b"mine", version),
}
TARGET = {"put_if_absent": "new", "put_if_match": "old"}


@pytest.fixture(params=CONDITIONAL)
def conditional(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def failure(conditional: str, store: ObjectStore, direct: ObjectStore) -> PenstockError:
    """Try a conditional write that fails, and return its error."""
    version = direct.put("old", b"before")
    with pytest.raises(PenstockError) as caught:
        CONDITIONAL[conditional](store, version)
    return caught.value


# The control: nothing goes wrong


def test_through_the_proxy_everything_works(store: ObjectStore, proxy: Proxy, direct: ObjectStore) -> None:
    version = store.put_if_absent("object", b"1")
    version = store.put_if_match("object", b"2", version)
    assert store.get("object").data == direct.get("object").data == b"2"
    assert store.head("object").version == version
    assert proxy.seen == proxy.passed == ["PUT", "PUT", "GET", "HEAD"]


# Conditional writes are not retried


@pytest.mark.parametrize("earlier", [0, 1], ids=["on a new connection", "on a connection that was used before"])
@pytest.mark.parametrize("fate", [LOSE_REPLY, LOSE_REQUEST], ids=["reply", "request"])
def test_a_conditional_write_that_is_lost_is_of_unknown_outcome_and_not_retried(
    store: ObjectStore, proxy: Proxy, direct: ObjectStore, conditional: str, fate: str, earlier: int
) -> None:
    if earlier:
        store.put_if_absent("earlier", b"")
    proxy.fates = [fate]
    error = failure(conditional, store, direct)
    assert type(error) is OutcomeUnknown
    for part in (TARGET[conditional], store.url, "may have happened", "read it again"):
        assert part in str(error)
    assert proxy.seen == ["PUT"] * (earlier + 1)
    if fate == LOSE_REPLY:
        assert proxy.passed == proxy.seen
        assert direct.get(TARGET[conditional]).data == b"mine"
    else:
        assert proxy.passed == ["PUT"] * earlier
        assert direct.get("old").data == b"before"


def test_a_large_conditional_write_is_one_request(store: ObjectStore, proxy: Proxy, direct: ObjectStore) -> None:
    large = bytes(12 << 20)
    store.put_if_match("large", large, store.put_if_absent("large", large[1:]))
    assert proxy.seen == ["PUT", "PUT"]
    assert direct.head("large").size == len(large)


ANSWERS: dict[int, tuple[str, type[PenstockError], type[PenstockError]]] = {
    **dict.fromkeys((500, 502, 503, 504, 429, 408), ("InternalError", OutcomeUnknown, OutcomeUnknown)),
    **dict.fromkeys((401, 403), ("AccessDenied", StorageError, StorageError)),
    # S3 answers 409 while another conditional write to that object is under way.
    **dict.fromkeys((409, 412), ("ConditionalRequestConflict", AlreadyExists, Conflict)),
}
"""The code that comes with a status, and what each conditional write raises for it."""


@pytest.mark.parametrize("status", ANSWERS)
def test_the_answer_to_a_conditional_write_says_whether_it_happened(
    store: ObjectStore, proxy: Proxy, direct: ObjectStore, conditional: str, status: int
) -> None:
    code, if_absent, if_match = ANSWERS[status]
    proxy.fates = [Answer(status, f"<Error><Code>{code}</Code></Error>")]
    assert type(failure(conditional, store, direct)) is (if_absent if conditional == "put_if_absent" else if_match)
    assert proxy.seen == ["PUT"]
    assert [found.path for found in direct.list_objects()] == ["old"]


# Everything else is retried


each_fate = pytest.mark.parametrize(
    "fate", [LOSE_REPLY, LOSE_REQUEST, Answer(500), Answer(503)], ids=["reply", "request", 500, 503]
)


@each_fate
def test_a_plain_put_a_read_and_a_delete_are_retried(
    store: ObjectStore, proxy: Proxy, direct: ObjectStore, fate: Fate
) -> None:
    proxy.fates = [fate, fate]
    version = store.put("object", b"content")
    assert direct.get("object").data == b"content"
    assert direct.get("object").version == version
    proxy.fates = [fate, fate]
    assert store.get("object").data == b"content"
    proxy.fates = [fate]
    assert store.head("object").size == 7
    proxy.fates = [fate]
    assert [found.path for found in store.list_objects()] == ["object"]
    assert proxy.seen == [*["PUT"] * 3, *["GET"] * 3, *["HEAD"] * 2, *["GET"] * 2]
    direct.put("other", b"")
    proxy.fates = [fate]
    assert [result.ok for result in store.delete(["object", "other"])] == [True, True]
    assert list(direct.list_objects()) == []


def test_a_plain_put_that_fails_for_good_is_of_unknown_outcome_and_a_read_a_storage_error(
    proxy: Proxy, open_through: Callable[..., ObjectStore]
) -> None:
    store = open_through(max_retries=1)
    uses: list[tuple[Callable[[], object], type[StorageError]]] = [
        (lambda: store.put("object", b""), OutcomeUnknown),
        (lambda: store.get("object"), StorageError),
        (lambda: store.head("object"), StorageError),
        (lambda: list(store.list_objects()), StorageError),
    ]
    for use, expected in uses:
        proxy.fates = [LOSE_REPLY, LOSE_REPLY]
        with pytest.raises(StorageError) as caught:
            use()
        assert type(caught.value) is expected
        assert proxy.fates == []


def test_a_delete_that_fails_for_good_has_an_error_for_each_path(
    proxy: Proxy, open_through: Callable[..., ObjectStore], direct: ObjectStore
) -> None:
    store = open_through(max_retries=0)
    direct.put("a", b"")
    proxy.fates = [Answer(403)] * 10
    results = store.delete(["a", "b"])
    assert [(result.path, result.ok, type(result.error)) for result in results] == [
        ("a", False, StorageError),
        ("b", False, StorageError),
    ]
    assert direct.get("a").data == b""


# GCS, of which there is no server here: what is sent, and how the answers of its documentation are read

GCS_OBJECT = (("ETag", '"5d41402abc4b2a76b9719d911017c592"'), ("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT"))
GCS_LISTING = """<?xml version='1.0' encoding='UTF-8'?>
<ListBucketResult xmlns='http://doc.s3.amazonaws.com/2006-03-01'>
<Name>bucket</Name><Prefix>prefix/</Prefix><KeyCount>1</KeyCount><IsTruncated>false</IsTruncated>
<Contents><Key>prefix/a/object</Key><Generation>17</Generation><MetaGeneration>1</MetaGeneration>
<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"5d41402abc4b2a76b9719d911017c592"</ETag>
<Size>5</Size></Contents>
</ListBucketResult>"""


def gcs_object(generation: int, body: str = "") -> Answer:
    return Answer(200, body, (*GCS_OBJECT, ("x-goog-generation", str(generation))))


@pytest.fixture
def gcs(proxy: Proxy) -> ObjectStore:
    key = {"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": True}
    key["gcs_base_url"] = f"http://127.0.0.1:{proxy.server_port}"
    return open_store("gs://bucket/prefix", service_account_key=json.dumps(key), allow_http=True, max_retries=0)


def test_a_version_of_gcs_is_a_generation_and_writes_are_conditional_on_it(gcs: ObjectStore, proxy: Proxy) -> None:
    proxy.fates = [gcs_object(17), gcs_object(17, "hello"), gcs_object(17), gcs_object(18), gcs_object(19)]
    assert gcs.put_if_absent("object", b"hello") == "17"
    assert gcs.get("object").version == "17"
    assert gcs.head("object").version == "17"
    assert gcs.put_if_match("object", b"hello", "17") == "18"
    assert gcs.put("object", b"hello") == "19"
    assert proxy.seen == ["PUT", "GET", "HEAD", "PUT", "PUT"]
    assert proxy.generations == ["0", None, None, "17", None]


def test_a_generation_of_gcs_that_is_not_there_any_more_is_a_lost_write(gcs: ObjectStore, proxy: Proxy) -> None:
    proxy.fates = [Answer(412, "<Error><Code>PreconditionFailed</Code></Error>")] * 2
    with pytest.raises(AlreadyExists):
        gcs.put_if_absent("object", b"")
    with pytest.raises(Conflict):
        gcs.put_if_match("object", b"", "17")
    assert proxy.seen == ["PUT", "PUT"]


def test_a_listing_of_gcs_is_read_although_the_engine_leaves_out_its_generations(
    gcs: ObjectStore, proxy: Proxy
) -> None:
    # The second answer is for a store that asks for the generation of each object it lists.
    proxy.fates = [Answer(200, GCS_LISTING), gcs_object(17, "hello")]
    (found,) = gcs.list_objects()
    assert found.path == "a/object"
    assert found.size == 5
    assert found.version


# A place that is not there


def operations(store: ObjectStore) -> dict[str, Callable[[], object]]:
    return {
        "get": lambda: store.get("object"),
        "put": lambda: store.put("object", b""),
        "put_if_absent": lambda: store.put_if_absent("object", b""),
        "put_if_match": lambda: store.put_if_match("object", b"", '"0123456789abcdef0123456789abcdef"'),
        "list_objects": lambda: list(store.list_objects()),
    }


@pytest.mark.parametrize("operation", ["get", "put", "put_if_absent", "put_if_match", "list_objects"])
@pytest.mark.parametrize("cloud", ["s3", "azure"])
def test_a_missing_bucket_is_not_taken_for_a_missing_object(
    cloud: str, operation: str, request: pytest.FixtureRequest
) -> None:
    if cloud == "s3":
        s3: S3Server = request.getfixturevalue("s3_server")
        store = open_store("s3://missing/prefix", **s3.options)
    else:
        azure: AzureServer = request.getfixturevalue("azure_server")
        store = open_store("az://missing/prefix", **azure.options)
    with pytest.raises(StorageError, match=r"(?s)://missing/.*(NoSuchBucket|ContainerNotFound)") as caught:
        operations(store)[operation]()
    assert type(caught.value) is StorageError


def test_the_answer_for_a_missing_object_is_not_taken_for_a_missing_bucket(
    store: ObjectStore, proxy: Proxy, direct: ObjectStore
) -> None:
    proxy.fates = [Answer(404, "<Error><Code>NoSuchKey</Code></Error>")]
    with pytest.raises(NotFound):
        store.get("object")
    proxy.fates = [Answer(404, "<Error><Code>NoSuchKey</Code></Error>")]
    with pytest.raises(Conflict):
        store.put_if_match("object", b"", direct.put("object", b""))


def test_a_server_that_is_not_there_is_a_storage_error_that_names_the_store() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    options = {"endpoint": f"http://127.0.0.1:{port}", "allow_http": True, "skip_signature": True, "max_retries": 0}
    store = open_store("s3://bucket/prefix", region="us-east-1", **options)
    with pytest.raises(StorageError, match="s3://bucket/prefix") as caught:
        store.get("object")
    assert type(caught.value) is StorageError
    with pytest.raises(StorageError, match="s3://bucket/prefix"):
        store.put_if_absent("object", b"")
