# SPDX-License-Identifier: BSD-3-Clause
"""Asking a server over HTTP: /v1/completions with log-probabilities, or llama.cpp's /completion."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from ..._base.checks import InputError, refusal, shown, warn
from .engine import Engine, RefusedError
from .folder import Prompt
from .script import log_probabilities

#: Environment variable of a key, unless another is named.
KEY = "OPENAI_API_KEY"
_PASSING = (408, 409, 425, 429, 500, 502, 503, 504)  # statuses that a later request may not meet
_LONGEST = 200  # characters of a server's message


class _NoRedirect(HTTPRedirectHandler):
    """Redirects are refused, since the key would go along."""

    def redirect_request(self, *given: Any) -> None:
        return None


class Requests:
    """Requests to a server, sent again with growing waits after errors that may pass."""

    def __init__(
        self, url: str, *, key: str | None, timeout: float, retries: int, sleep: Callable[[float], None]
    ) -> None:
        self.url, self._timeout, self._retries, self._sleep = url, timeout, retries, sleep
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._opener = build_opener(_NoRedirect)

    def __call__(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The reply to a request, a JSON object; GET without a body."""
        url = self.url + path
        request = Request(url, json.dumps(body).encode() if body else None, self._headers)
        failed: InputError
        for attempt in range(self._retries + 1):
            if attempt:
                self._sleep(2.0 ** (attempt - 1))
            try:
                with self._opener.open(request, timeout=self._timeout) as reply:
                    return _content(url, reply.read())
            except HTTPError as error:
                with error:
                    failed = _refused(url, error)
                if error.code not in _PASSING:
                    raise failed from None
            except (OSError, HTTPException) as error:
                why = getattr(error, "reason", error)
                failed = InputError(f"{url}: cannot be reached ({why or type(error).__name__})")
        raise failed


def _content(url: str, text: bytes) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        told = shown(text.decode(errors="replace"))
        raise InputError(f"{url}: must answer with a JSON object, got {told}")
    return content


def _refused(url: str, error: HTTPError) -> InputError:
    """The error of a refused request, with the server's own message; a busy server refuses no prompt."""
    if error.code in (401, 403):
        why = f"the key is read from the environment variable {KEY}, or from the one that is named"
    elif error.code in range(300, 400):
        why = f"redirects to {shown(error.headers.get('Location'))}: give that address"
    else:
        why = _message(error)
    kind = InputError if error.code in _PASSING and error.code != 500 else RefusedError
    return kind(f"{url}: refused with status {error.code}: {why}")


def _message(error: HTTPError) -> str:
    try:
        text = error.read().decode(errors="replace")
    except (OSError, HTTPException):
        text = ""
    try:
        found = json.loads(text)
    except ValueError:
        found = text
    for name in ("error", "message", "detail"):
        found = found.get(name, found) if isinstance(found, dict) else found
    return " ".join(str(found).split())[:_LONGEST] or str(error.reason)


class Server:
    """A server that completes prompts; the first answer settles in which form it takes them.

    Token ids are sent, or texts where they are refused; at most `k` log-probabilities are asked for, or the
    largest number that is not refused. A server that puts a beginning of its own before a text gets texts
    without one.
    """

    def __init__(self, send: Requests, model: str | None, k: int, owner: str) -> None:
        self._send, self._model, self._k = send, model, k
        # A cached beginning leaves few tokens at once, which llama.cpp's flash attention rounds to 16 bits.
        self._more = {"cache_prompt": False} if owner == "llamacpp" else {}
        self._form: str | None = None  # "ids" or "text", once it is settled
        self._adds_start = False

    def answer(self, prompt: Prompt) -> dict[int, float]:
        """Log-probabilities of the next token."""
        reply = self._reply(prompt)
        surplus = _surplus(prompt, reply)
        if surplus == 1 and self._form == "text" and not self._adds_start:
            self._adds_start = True
            reply = self._reply(prompt)
            surplus = _surplus(prompt, reply)
        if surplus and (self._form == "text" or surplus != 1):  # one that precedes ids is measured
            raise InputError(
                f"{self._send.url}: prompt {prompt.name!r} must be {len(prompt.ids)} tokens, and the server "
                f"read {len(prompt.ids) + surplus}: it cut the prompt, or its tokenizer merged or split words"
            )
        found = log_probabilities(reply)
        if not found:
            raise InputError(f"{self._send.url}: {_without(reply)}")
        return found

    def _reply(self, prompt: Prompt) -> dict[str, Any]:
        if self._form is None:
            return self._settle(prompt)
        return self._complete(prompt, self._form, self._k)

    def _settle(self, prompt: Prompt) -> dict[str, Any]:
        """The first reply, in the first form and with the largest number that the server takes."""
        first: RefusedError | None = None
        for form in ("ids", "text"):
            for k in dict.fromkeys((self._k, 1)):
                try:
                    reply = self._complete(prompt, form, k)
                except RefusedError as error:
                    first = first or error
                    continue
                self._form = form
                if form == "text":
                    warn(f"{self._send.url} refuses token ids: texts are sent")
                return self._most(prompt, form, reply) if k < self._k else reply
        assert first is not None
        raise first

    def _most(self, prompt: Prompt, form: str, reply: dict[str, Any]) -> dict[str, Any]:
        """The reply with as many log-probabilities as the server gives, by bisection."""
        asked, taken, refused = self._k, 1, self._k
        while refused - taken > 1:
            middle = (taken + refused) // 2
            try:
                reply, taken = self._complete(prompt, form, middle), middle
            except RefusedError:
                refused = middle
        self._k = taken
        warn(f"{self._send.url} gives at most {taken} log-probabilities of the {asked} asked for")
        return reply

    def _complete(self, prompt: Prompt, form: str, k: int) -> dict[str, Any]:
        given = prompt.text.removeprefix("<s> ") if self._adds_start else prompt.text
        content = given if form == "text" else list(prompt.ids)
        body: dict[str, Any] = {"prompt": content, "temperature": 0, **self._more}
        if self._model is None:
            return self._send("", {**body, "n_predict": 1, "n_probs": k})
        return self._send("/v1/completions", {**body, "model": self._model, "max_tokens": 1, "logprobs": k})


def _surplus(prompt: Prompt, reply: dict[str, Any]) -> int:
    """Tokens that the server read beyond those of the prompt; 0 if it does not say."""
    count = (reply.get("usage") or {}).get("prompt_tokens", reply.get("tokens_evaluated"))
    return count - len(prompt.ids) if isinstance(count, int) else 0


def _without(reply: dict[str, Any]) -> str:
    """The reason why a reply has no log-probabilities that can be read."""
    choice = (reply.get("choices") or [reply])[0]
    given = choice.get("logprobs") or choice.get("completion_probabilities")
    if not given:
        return "gives no log-probabilities: a probe needs /v1/completions with logprobs"
    return f"must give log-probabilities of tokens of the probe, as '<p160>', got {shown(given)}"


@contextmanager
def serving(
    url: str,
    *,
    model: str | None = None,
    k: int = 5,
    timeout: float = 120.0,
    retries: int = 3,
    key_from: str | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Engine]:
    """A server at an address: its root, or with /v1, or llama.cpp's own /completion."""
    if not url.startswith(("http://", "https://")):
        raise refusal(InputError, "url", f"must begin with http:// or https://, got {shown(url)}")
    key = os.environ.get(key_from or KEY)
    if key_from and not key:
        raise refusal(InputError, "key_from", f"must name an environment variable, and {key_from} is not set")
    base = url.rstrip("/")
    is_native = base.endswith("/completion")
    base = base.removesuffix("/v1/completions").removesuffix("/v1")
    send = Requests(base, key=key, timeout=timeout, retries=retries, sleep=sleep)
    if is_native:
        yield Engine("llama.cpp over HTTP", Server(send, None, k, "llamacpp").answer)
        return
    name, owner = _model(send, model)
    yield Engine(f"{owner} over HTTP, model {Path(name).name}", Server(send, name, k, owner).answer)


def _model(send: Requests, wanted: str | None) -> tuple[str, str]:
    """The model that is asked and who owns it: the wanted one, or the first that the server lists."""
    try:
        listed = send("/v1/models").get("data")
        models = {each["id"]: each.get("owned_by", "server") for each in listed or []}
    except (RefusedError, TypeError, KeyError):
        models = {}
    if wanted is None and not models:
        raise InputError(f"{send.url}: lists no models under /v1/models, so the model's name must be given")
    name = next(iter(models)) if wanted is None else wanted
    return name, str(models.get(name, "server"))
