"""Credentials never show: not in a repr, a log, a message, nor anywhere in a formatted traceback."""

from __future__ import annotations

import base64
import io
import json
import logging
import pickle
import re
import socket
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from urllib.parse import quote, quote_plus

import pytest

from penstock.errors import InvalidInput, PenstockError, StorageError
from penstock.storage import ObjectStore, open_store
from tests.storage.http_endpoint import Endpoint, listening
from tests.support.servers import AZURE_ACCOUNT, AzureServer, S3Server

# Made up, with the characters that real ones have: slashes, pluses, equals signs.
ACCESS_KEY = "AKIAMADEUPFORTESTS77"
SECRET_KEY = "wJalr/XUtnFEMI+K7MDENG/bPxRfiCY=MADEUPKEY"
SESSION_TOKEN = "FwoGZXIvYXdzEBYaDMadeUp//+token=="
ACCOUNT_KEY = base64.b64encode(b"a made up account key, not a real one, 64 bytes long; for tests!").decode()
SIGNATURE = "bWFkZS11cC1zaWduYXR1cmU/+for=tests"
SAS_TOKEN = f"sv=2024-11-04&ss=b&srt=co&sp=rwdl&se=2099-01-01T00:00:00Z&spr=https,http&sig={quote(SIGNATURE, safe='')}"
PASSWORD = "p4ssw0rd-in-a-url"
PEM_BODY = "TUFERVVQUFJJVkFURUtFWUZPUlRFU1RTT05MWQ"
GCS_KEY_ID = "made-up-private-key-id-0123456789"
GCS_KEY = json.dumps(
    {
        "type": "service_account",
        "client_email": "tests@example.invalid",
        "private_key_id": GCS_KEY_ID,
        "private_key": f"-----BEGIN PRIVATE KEY-----\n{PEM_BODY}\n-----END PRIVATE KEY-----\n",
    }
)
HEADER = "Bearer made-up-bearer-token"

SECRETS = [
    ACCESS_KEY,
    SECRET_KEY,
    SESSION_TOKEN,
    ACCOUNT_KEY,
    SIGNATURE,
    PASSWORD,
    PEM_BODY,
    GCS_KEY_ID,
    HEADER,
]

S3_SECRETS: dict[str, object] = {
    "access_key_id": ACCESS_KEY,
    "secret_access_key": SECRET_KEY,
    "session_token": SESSION_TOKEN,
}


def in_lower_case(escaped: str) -> str:
    """Write %2F as %2f: both are the same to a server."""
    return re.sub("%[0-9A-F]{2}", lambda escape: escape[0].lower(), escaped)


def leaks(text: str) -> list[str]:
    """Find the secrets that show in a text: as they are, escaped for a URL, for JSON or by a repr."""
    found = []
    for secret in SECRETS:
        forms = {secret, quote(secret), quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1]}
        forms |= {in_lower_case(form) for form in forms}
        if any(form in text for form in forms):
            found.append(secret)
    return found


def everything_shown_of(error: BaseException, *, suppressed: bool = False) -> str:
    """All that a log or a terminal could show of an error, its causes and its contexts (suppressed ones, if asked)."""
    shown = ["".join(traceback.format_exception(error))]
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        shown += [str(one), repr(one), repr(one.args), "\n".join(getattr(one, "__notes__", []))]
        shown += traceback.format_exception(one, chain=False)
        waiting.append(one.__cause__)
        if suppressed or not one.__suppress_context__:
            waiting.append(one.__context__)
    return "\n".join(shown)


class Watch:
    """Collects what is shown while a store is used."""

    def __init__(self, log: pytest.LogCaptureFixture, output: pytest.CaptureFixture[str]) -> None:
        self._log, self._output = log, output
        self.shown: list[str] = []

    def open(self, where: str, **options: object) -> ObjectStore:
        store = open_store(where, **options)
        self.shown += [repr(store), str(store), store.url, f"{store}", repr([store])]
        return store

    def failure(self, expected: type[PenstockError], action: Callable[[], object]) -> PenstockError:
        with pytest.raises(expected) as caught:
            action()
        logging.getLogger("penstock.tests").exception("it failed", exc_info=caught.value)
        self.shown.append(everything_shown_of(caught.value))
        return caught.value

    def check(self) -> None:
        text = "\n".join([*self.shown, self._log.text, *self._output.readouterr()])
        assert leaks(text) == []


@pytest.fixture
def watch(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[Watch]:
    """Everything that the test shows through it, logs at any level or prints, is searched for secrets at the end."""
    with caplog.at_level(logging.DEBUG):
        watch = Watch(caplog, capfd)
        yield watch
        watch.check()


def use(watch: Watch, store: ObjectStore, expected: type[PenstockError] = StorageError) -> None:
    """Let every method fail, each in its own way."""
    watch.failure(expected, lambda: store.get("object"))
    watch.failure(expected, lambda: store.head("object"))
    watch.failure(expected, lambda: store.put("object", b""))
    watch.failure(expected, lambda: store.put_if_absent("object", b""))
    watch.failure(expected, lambda: store.put_if_match("object", b"", "1"))
    watch.failure(expected, lambda: list(store.list_objects("prefix")))
    for result in store.delete(["one", "two"]):
        assert result.error is not None
        watch.shown += [repr(result), everything_shown_of(result.error)]


# The search itself


@pytest.mark.parametrize("secret", SECRETS)
def test_the_search_finds_a_secret_in_every_form(secret: str) -> None:
    for form in (secret, quote(secret, safe=""), in_lower_case(quote(secret, safe="")), json.dumps(secret)):
        assert leaks(f"before{form}after") == [secret]
    assert leaks("nothing here") == []


def test_the_search_sees_causes_contexts_and_notes() -> None:
    def fails(how: str) -> None:
        try:
            raise KeyError(SECRET_KEY)
        except KeyError as error:
            if how == "cause":
                raise StorageError("clean") from error
            if how == "context":
                raise StorageError("clean")  # noqa: B904
            if how == "suppressed":
                raise StorageError("clean") from None
            noted = StorageError("clean")
        noted.add_note(SECRET_KEY)
        raise noted

    for how in ("cause", "context", "suppressed", "note"):
        with pytest.raises(StorageError) as caught:
            fails(how)
        assert leaks(everything_shown_of(caught.value, suppressed=True)) == [SECRET_KEY], how
        assert leaks(everything_shown_of(caught.value)) == ([] if how == "suppressed" else [SECRET_KEY]), how


def test_the_watch_notices_a_leak_in_a_log_in_print_and_in_a_repr(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG):
        for leak in (
            lambda watch: logging.getLogger("anything").debug("%s", ACCOUNT_KEY),
            lambda watch: print(ACCOUNT_KEY),
            lambda watch: watch.shown.append(f"Store({ACCOUNT_KEY})"),
        ):
            caplog.clear()
            watch = Watch(caplog, capfd)
            watch.check()
            leak(watch)
            with pytest.raises(AssertionError):
                watch.check()


# A place that does not answer


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return int(closed.getsockname()[1])


QUICK: dict[str, object] = {"allow_http": True, "max_retries": 0, "retry_timeout": 5, "connect_timeout": 5}

PLACES: dict[str, tuple[str, dict[str, object]]] = {
    "s3": ("s3://bucket/prefix", {"endpoint": "http://127.0.0.1:{port}", "region": "us-east-1", **S3_SECRETS}),
    "s3, a password in the endpoint": (
        "s3://bucket/prefix",
        {"endpoint": f"http://user:{PASSWORD}@127.0.0.1:{{port}}", "region": "us-east-1", **S3_SECRETS},
    ),
    "s3, a password in the proxy": (
        "s3://bucket/prefix",
        {
            "endpoint": "http://127.0.0.1:{port}",
            "proxy_url": f"http://user:{PASSWORD}@127.0.0.1:{{port}}",
            "region": "us-east-1",
            **S3_SECRETS,
        },
    ),
    "s3, a header": (
        "s3://bucket/prefix",
        {"endpoint": "http://127.0.0.1:{port}", "skip_signature": True, "default_headers": {"x-secret": HEADER}},
    ),
    "azure, a key": (
        "az://container/prefix",
        {"endpoint": "http://127.0.0.1:{port}/account", "account_name": "account", "account_key": ACCOUNT_KEY},
    ),
    "azure, a signature": (
        "az://container/prefix",
        {"endpoint": "http://127.0.0.1:{port}/account", "account_name": "account", "sas_token": SAS_TOKEN},
    ),
    "azure, a signature with a question mark": (
        "az://container/prefix",
        {"endpoint": "http://127.0.0.1:{port}/account", "account_name": "account", "sas_token": "?" + SAS_TOKEN},
    ),
    "gcs": (
        "gs://bucket/prefix",
        {
            "service_account_key": json.dumps(
                {
                    **json.loads(GCS_KEY),
                    "private_key": "",
                    "disable_oauth": True,
                    "gcs_base_url": "http://127.0.0.1:{port}",
                }
            )
        },
    ),
}


def place(name: str, port: int) -> tuple[str, dict[str, object]]:
    where, options = PLACES[name]
    filled = {
        option: value.replace("{port}", str(port)) if isinstance(value, str) else value
        for option, value in options.items()
    }
    return where, {**filled, **QUICK}


@pytest.mark.parametrize("name", PLACES)
def test_nothing_shows_when_the_connection_is_refused(watch: Watch, closed_port: int, name: str) -> None:
    where, options = place(name, closed_port)
    use(watch, watch.open(where, **options))


# A server that refuses, and repeats the request in its answer, as S3 and Azure do


@contextmanager
def echoing_server(status: int) -> Iterator[int]:
    """A server that answers every request with the whole request."""

    class Echoing(Endpoint):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            authorization = self.headers.get("Authorization", "")
            key = re.search("Credential=([^/]*)/", authorization)
            body = (
                f"<Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>{key and key[1]}</AWSAccessKeyId>"
                f"<StringToSign>AWS4-HMAC-SHA256\n{authorization}</StringToSign>"
                f"<SignatureProvided>{authorization.rpartition('Signature=')[2]}</SignatureProvided>"
                f"<CanonicalRequest>{self.command}\n{self.path}\n{self.headers}</CanonicalRequest>"
                f"<Message>The headers were {quote(str(self.headers), safe='')}</Message>"
                f"<Resource>{self.path}</Resource></Error>"
            ).encode()
            self.send_response_only(status, f"No {self.path}")
            self.send_header("Content-Length", str(len(body)))
            self.finish_answer(body)

    with listening(Echoing) as port:
        yield port


answering = pytest.mark.parametrize("name", [name for name in PLACES if "proxy" not in name])


@pytest.mark.parametrize("status", [400, 401, 403, 500])
@answering
def test_nothing_shows_when_the_server_repeats_it(watch: Watch, name: str, status: int) -> None:
    with echoing_server(status) as port:
        where, options = place(name, port)
        use(watch, watch.open(where, **options))


@answering
def test_an_error_does_not_even_keep_a_secret_out_of_sight(name: str) -> None:
    # Python does not print a context that `raise ... from None` suppresses, but debuggers and error trackers find it.
    with echoing_server(403) as port:
        where, options = place(name, port)
        store = open_store(where, **options)
        with pytest.raises(StorageError) as caught:
            store.get("object")
    assert leaks(everything_shown_of(caught.value, suppressed=True)) == []


@answering
def test_nothing_shows_when_the_server_sends_elsewhere_or_nonsense(watch: Watch, name: str) -> None:
    for status in (200, 302, 404):
        with echoing_server(status) as port:
            where, options = place(name, port)
            store = watch.open(where, **options)
            watch.failure(StorageError, partial(next, store.list_objects()))
            if status != 200:
                watch.failure(StorageError, partial(store.get, "object"))


@pytest.mark.parametrize("wrong", [{"account_key": ACCOUNT_KEY}, {"sas_token": SAS_TOKEN}], ids=["key", "signature"])
def test_nothing_shows_when_azure_refuses_a_wrong_secret(
    watch: Watch, azure_server: AzureServer, wrong: dict[str, object]
) -> None:
    options = {"endpoint": azure_server.endpoint, "account_name": AZURE_ACCOUNT, "allow_http": True, "max_retries": 0}
    store = watch.open("az://tests/prefix", **options, **wrong)
    use(watch, store)
    assert "403" in str(watch.failure(StorageError, lambda: store.get("object")))


@pytest.mark.parametrize("operation", ["get", "put_if_match", "list"])
def test_nothing_shows_when_the_bucket_is_missing(watch: Watch, s3_server: S3Server, operation: str) -> None:
    store = watch.open("s3://missing/prefix", **{**s3_server.options, **S3_SECRETS})
    actions: dict[str, Callable[[], object]] = {
        "get": lambda: store.get("object"),
        "put_if_match": lambda: store.put_if_match("object", b"", "1"),
        "list": lambda: list(store.list_objects()),
    }
    assert "NoSuchBucket" in str(watch.failure(StorageError, actions[operation]))


# Options and URLs that are refused


BAD_OPTIONS: dict[str, tuple[str, dict[str, object]]] = {
    "an unknown option of s3": ("s3://bucket", {"secret_acess_key": SECRET_KEY}),
    "an unknown option of gcs": ("gs://bucket", {"service_acount_key": GCS_KEY}),
    "an unknown option of azure": ("az://container", {"acount_key": ACCOUNT_KEY}),
    "an option that is no option of memory": ("memory://name", {"secret_access_key": SECRET_KEY}),
    "an option that is no option of the disk": ("/tmp/never-made", {"secret_access_key": SECRET_KEY}),
    "a boolean that is none": ("s3://bucket", {"allow_http": "maybe", **S3_SECRETS}),
    "a time that is none": ("s3://bucket", {"timeout": "5 fortnights", **S3_SECRETS}),
    "an account key that is no base64": ("az://c", {"account_name": "a", "account_key": SECRET_KEY + "!"}),
    "a service account that is no JSON": ("gs://bucket", {"service_account_key": GCS_KEY[:-1]}),
    "a service account that lacks a field": (
        "gs://bucket",
        {"service_account_key": json.dumps({"private_key": PEM_BODY})},
    ),
    "a service account with a bad key": ("gs://bucket", {"service_account_key": GCS_KEY}),
    "a service account key as a field of the wrong type": (
        "gs://bucket",
        {
            "service_account_key": json.dumps(
                {"private_key": [PEM_BODY], "private_key_id": GCS_KEY_ID, "client_email": ""}
            )
        },
    ),
    "a path to a file, with the key in its place": ("gs://bucket", {"service_account": PASSWORD + "/" + GCS_KEY_ID}),
    "an endpoint that is no URL": ("s3://bucket", {"endpoint": f"ht!tp://user:{PASSWORD}@[bad"}),
    "a value of a type that no option has": ("s3://bucket", {"secret_access_key": [SECRET_KEY]}),
    "bytes for a key": ("s3://bucket", {"secret_access_key": SECRET_KEY.encode()}),
    "a signature that is no query": ("az://c", {"account_name": "a", "sas_token": f"sig={SIGNATURE}&&=;%zz"}),
    "a header that is none": ("s3://bucket", {"default_headers": {"bad header\n": HEADER}}),
    "a proxy that is no URL": ("s3://bucket", {"proxy_url": f"user:{PASSWORD}@host:port"}),
    "a retry count that is none": ("s3://bucket", {"max_retries": -1, **S3_SECRETS}),
}


# Whatever opens all the same is used, and must not reach out of this host.
NOWHERE: dict[str, dict[str, object]] = {
    "s3": {"endpoint": "http://127.0.0.1:1", "region": "x", **S3_SECRETS, **QUICK},
    "az": {"endpoint": "http://127.0.0.1:1/account", "account_name": "account", **QUICK},
    "gs": {},
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_nothing_shows_when_an_option_is_refused_or_does_not_work(watch: Watch, name: str) -> None:
    where, options = BAD_OPTIONS[name]
    scheme = where.partition("://")[0]
    try:
        store = watch.open(where, **{**NOWHERE.get(scheme, {}), **options})
    except InvalidInput as error:
        watch.shown.append(everything_shown_of(error))
        return
    assert scheme in {"s3", "az"}
    watch.failure(StorageError, lambda: store.get("object"))


URLS = [
    f"s3://{ACCESS_KEY}:{SECRET_KEY}@bucket/prefix",
    f"s3://{ACCESS_KEY}:{quote(SECRET_KEY, safe='')}@bucket/prefix",
    f"s3://{ACCESS_KEY}@bucket/prefix",
    f"s3://bucket/prefix?secret_access_key={quote(SECRET_KEY)}",
    f"s3://bucket?X-Amz-Signature={PASSWORD}",
    f"az://container/prefix?{SAS_TOKEN}",
    f"az://container?{SAS_TOKEN}",
    f"az://account:{ACCOUNT_KEY}@container",
    f"gs://bucket/prefix#access_token={PASSWORD}",
    f"https://user:{PASSWORD}@host/bucket",
    f"https://account.blob.core.windows.net/container?{SAS_TOKEN}",
    f"S3://{ACCESS_KEY}:{quote(SECRET_KEY, safe='')}@bucket",
    f"s3a://{ACCESS_KEY}:{SECRET_KEY}@bucket",
    f"file://user:{PASSWORD}@host/directory",
    f"file:///directory?sig={quote(SIGNATURE, safe='')}",
    f"file:///directory#token={PASSWORD}",
    f"s3:///{ACCESS_KEY}:{SECRET_KEY}@bucket",
]


@pytest.mark.parametrize("url", URLS, ids=lambda url: url.partition("://")[0])
def test_credentials_in_a_url_are_refused_and_do_not_show(watch: Watch, url: str) -> None:
    watch.failure(InvalidInput, lambda: open_store(url))


def test_credentials_in_a_url_of_an_unknown_kind_do_not_show_when_they_are_options_too(watch: Watch) -> None:
    where = f"weird://{PASSWORD}/{SESSION_TOKEN}"
    watch.failure(InvalidInput, lambda: open_store(where, password=PASSWORD, token=SESSION_TOKEN))


# From the environment


ENVIRONMENTS: dict[str, tuple[str, Mapping[str, str]]] = {
    "s3": (
        "s3://bucket/prefix",
        {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_SESSION_TOKEN": SESSION_TOKEN,
            "AWS_ENDPOINT_URL": f"http://user:{PASSWORD}@127.0.0.1:{{port}}",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        },
    ),
    "azure, a key": (
        "az://container/prefix",
        {
            "AZURE_STORAGE_ACCOUNT_NAME": "account",
            "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY,
            "AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:{port}/account",
            "AZURE_ALLOW_HTTP": "true",
        },
    ),
    "azure, a signature": (
        "az://container/prefix",
        {
            "AZURE_STORAGE_ACCOUNT_NAME": "account",
            "AZURE_STORAGE_SAS_TOKEN": SAS_TOKEN,
            "AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:{port}/account",
            "AZURE_ALLOW_HTTP": "true",
        },
    ),
    "a bad service account": ("gs://bucket/prefix", {"GOOGLE_SERVICE_ACCOUNT_KEY": GCS_KEY}),
    "a bad account key": (
        "az://container/prefix",
        {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ACCOUNT_KEY": SECRET_KEY + "!"},
    ),
}


@pytest.mark.parametrize("status", [0, 403])
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_nothing_of_the_environment_shows(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, closed_port: int, name: str, status: int
) -> None:
    where, environment = ENVIRONMENTS[name]
    with echoing_server(status or 403) as answering:
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value.replace("{port}", str(answering if status else closed_port)))
        try:
            store = watch.open(where, max_retries=0, allow_http=True)
        except InvalidInput as error:
            watch.shown.append(everything_shown_of(error))
            assert name.startswith("a bad")
            return
        use(watch, store)


# What may show does, and what travels works


def test_a_repr_names_the_options_and_shows_what_is_no_secret() -> None:
    store = open_store("s3://bucket/prefix", region="eu-west-1", max_retries=3, **S3_SECRETS)
    for part in ("s3://bucket/prefix", "region='eu-west-1'", "max_retries=3", "secret_access_key=***"):
        assert part in repr(store)


def test_an_option_may_be_spelled_as_the_environment_spells_it_and_is_hidden_all_the_same(watch: Watch) -> None:
    spelled = {f"aws_{name}": value for name, value in S3_SECRETS.items()}
    watch.open("s3://bucket", region="x", **spelled)
    watch.open("s3://bucket", region="x", **{name.upper(): value for name, value in spelled.items()})
    watch.open("az://container", azure_storage_account_name="account", azure_storage_account_key=ACCOUNT_KEY)


def test_a_pickle_carries_the_credentials_that_were_given_as_options_and_a_repr_of_it_does_not(watch: Watch) -> None:
    store = watch.open("s3://bucket", region="x", **S3_SECRETS)
    pickled = pickle.dumps(store)
    assert SECRET_KEY.encode() in pickled  # as the documentation says; the environment is the better place
    watch.shown.append(repr(pickle.load(io.BytesIO(pickled))))


def test_a_pickle_does_not_carry_credentials_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    assert leaks(pickle.dumps(open_store("s3://bucket", region="x")).decode("latin-1")) == []
