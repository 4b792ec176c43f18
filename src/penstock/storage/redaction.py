"""Keeps credentials out of messages, logs and reprs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import parse_qsl, quote

HIDDEN = "***"

# Options whose values say where a store is and how it is reached, never who may use it. Whatever is not here is hidden.
_PLAIN = re.compile(
    "(aws_|google_)?(allow_http|allow_invalid_certificates|(azure_storage_)?account_name|bucket|conditional_put|"
    "container_name|default_region|disable_bulk_delete|disable_tagging|max_retries|region|skip_signature|sync|timeout|"
    "(connect|pool_idle|read|retry)_timeout|unsigned_payload|use_emulator|user_agent|virtual_hosted_style_request)"
)
_SECRET_VARIABLE = re.compile(
    r"^(AWS|AZURE|GOOGLE|GCP|GCS)_.*(KEY|SECRET|TOKEN|SAS|PASSWORD|CREDENTIAL)", re.IGNORECASE
)
_SECRET_PARAMETER = re.compile(
    r"(?i)\b(sig|signature|x-amz-signature|x-amz-credential|x-amz-security-token|x-goog-signature|x-goog-credential|"
    r"awsaccesskeyid|access_token|token|password|passwd|client_secret)=[^&\s\"'<>]+"
)
_SECRET_ELEMENT = re.compile(r"(?i)<(AWSAccessKeyId|StringToSign\w*|SignatureProvided|CanonicalRequest\w*)>")
_SECRET_HEADER = re.compile(r"(?i)\b(authorization|x-amz-security-token)(\"?\s*[:=]\s*).*")
_USER_INFO = re.compile(r"://[^/\s]+@")  # up to the last @: a password may have one
_USER_INFO_WITHOUT_END = re.compile(r"://[^/\s]*\Z")
_MAX_SEARCHED_CHARACTERS = 8_000  # a server's answer may be as long as it likes; a message may not
_SHORTEST = 4  # shorter values are no secrets, and hiding them would blot out the message


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Hide the given secrets, and whatever has the shape of one. A text that is too long for a message is cut first.

    The time it takes grows with the length of the text, and no faster, whatever is in it.

    >>> redact("GET https://user:pass@host/x?sv=1&sig=abc%3D failed: bad key hunter22", ["hunter22"])
    'GET https://***@host/x?sv=1&sig=*** failed: bad key ***'
    """
    forms = sorted(set(_forms(secrets)), key=len, reverse=True)
    end = _end_of_shown(text, forms)
    left_out = len(text) - end
    text = text[:end]
    for secret in forms:
        text = text.replace(secret, HIDDEN)
    text = _USER_INFO.sub(f"://{HIDDEN}@", text)
    text = _SECRET_PARAMETER.sub(rf"\1={HIDDEN}", text)
    text = _hide_elements(text)
    text = _SECRET_HEADER.sub(rf"\1\2{HIDDEN}", text)
    return f"{text}... ({left_out} more characters)" if left_out else text


def _end_of_shown(text: str, secrets: Sequence[str]) -> int:
    """Where to cut a text: before a secret that the cut would go through, for a part of it would not be found."""
    if len(text) <= _MAX_SEARCHED_CHARACTERS:
        return len(text)
    end, moved = _MAX_SEARCHED_CHARACTERS, True
    while moved:
        starts = [text.find(secret, max(end - len(secret) + 1, 0), end + len(secret) - 1) for secret in secrets]
        moved = any(start >= 0 for start in starts)
        end = min([end, *(start for start in starts if start >= 0)])
    user_info = _USER_INFO_WITHOUT_END.search(text[:end])
    return user_info.start() if user_info else end


def _hide_elements(text: str) -> str:
    """Hide what is in elements that hold secrets; in one without an end, all that follows."""
    shown, at = list[str](), 0
    while opened := _SECRET_ELEMENT.search(text, at):
        shown += [text[at : opened.end()], HIDDEN]
        closed = re.compile(f"(?i)</{opened[1]}>").search(text, opened.end())
        if closed is None:
            return "".join(shown)
        shown.append(closed[0])
        at = closed.end()
    return "".join([*shown, text[at:]])


def secrets_of(options: Mapping[str, object]) -> list[str]:
    """Collect the values that must never be shown: of the options, and of the environment's credentials."""
    given = [text for name, value in options.items() for text in _secret_texts(name, value)]
    around = [value for name, value in os.environ.items() if _SECRET_VARIABLE.match(name)]
    return [value for value in (*given, *around) if len(value) >= _SHORTEST]


def _secret_texts(name: str, value: object) -> Iterable[str]:
    if is_endpoint(name):
        # Where a store is may be shown; who is let in there may not.
        return _user_info(str(value))
    return () if is_plain(name) else _texts(value)


def _user_info(url: str) -> list[str]:
    before = url.rpartition("@")[0].rpartition("://")[2]
    return [before, *before.split(":", 1)] if before else []


def _texts(value: object) -> Iterable[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, bytes):
        yield value.decode(errors="replace")
    else:
        yield str(value)


def is_endpoint(name: str) -> bool:
    """Say whether an option is the address of a service."""
    return "endpoint" in name.lower() or name.lower() in {"base_url", "google_base_url"}


def is_plain(name: str) -> bool:
    """Say whether an option's value may be shown."""
    return _PLAIN.fullmatch(name.lower()) is not None


def show_options(options: Mapping[str, object]) -> str:
    """Describe options for a repr: names all, values only where they are no secret.

    >>> show_options({"region": "eu-west-1", "secret_access_key": "hunter22"})
    "region='eu-west-1', secret_access_key=***"
    """
    return ", ".join(
        f"{name}={redact(repr(value), secrets_of({name: value}))}"
        if is_plain(name) or is_endpoint(name)
        else f"{name}={HIDDEN}"
        for name, value in sorted(options.items())
    )


def _forms(secrets: Iterable[str]) -> Iterable[str]:
    for secret in secrets:
        yield secret
        yield quote(secret, safe="")
        yield quote(secret)
        # A shared-access signature is a query string: its parts appear one by one in a request's URL.
        if "=" in secret and "&" in secret:
            yield from (value for name, value in parse_qsl(secret.lstrip("?")) if name == "sig")
