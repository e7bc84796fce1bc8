# SPDX-License-Identifier: BSD-3-Clause
"""A probe of four prompts, and a server that plays the habits of others."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

SCRIPT = Path(str(files("attnscale") / "probe" / "_ask" / "script.py"))
PROMPTS = {
    "count": [1, 3, 24, 3],
    "self 0": [1, 3, 3, 24],
    "cos 1": [1, 41, 3, 3, 3, 57],
    "cap": [1, 3, 92, 91],
}
DIGEST = "0123456789abcdef"


def word(token: int) -> str:
    return {0: "<unk>", 1: "<s>", 2: "</s>"}.get(token, f"<p{token}>")


def answer_to(ids: list[int]) -> dict[int, float]:
    """Log-probabilities that an imagined model gives; they depend on every token."""
    code = sum(place * token for place, token in enumerate(ids, 1)) % 97
    return {160: -0.25, 128: -1.0 - code / 64, ids[-1]: -3.0, 0: -7.5, 1: -7.5, 192: -7.5, 2: -7.5}


def write_checkpoint(folder: Path, digest: str = DIGEST) -> Path:
    folder.mkdir(parents=True)
    lines = [
        json.dumps({"prompt": name, "ids": ids, "text": " ".join(map(word, ids))})
        for name, ids in PROMPTS.items()
    ]
    (folder / "prompts.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (folder / "expected.json").write_text(json.dumps({"checkpoint": digest, "scale": 0.125}))
    return folder


def write_probe(root: Path, *names: str) -> Path:
    root.mkdir()
    for number, name in enumerate(names):
        write_checkpoint(root / name, f"{number}{DIGEST[1:]}")
    (root / "probe.json").write_text(json.dumps({"format": 1, "checkpoints": names}))
    shutil.copy(SCRIPT, root / "ask.py")
    return root


class Played:
    """A server with the habits of its attributes, and what it received."""

    form = "legacy"  # of the replies
    most = 1000  # log-probabilities that it gives; more are refused
    takes_ids = True
    start: int | None = None  # token that it puts before a text
    splits = False  # whether its tokenizer breaks words
    counts = True  # whether it tells the number of tokens
    trouble: list[int | None]  # statuses of the first replies; None: the connection is dropped
    key: str | None = None
    models: Any = ({"id": "/srv/layer-0", "owned_by": "vllm"},)

    def __init__(self) -> None:
        self.trouble, self.bodies, self.waits, self.url = [], [], [], ""

    def reply(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        self.bodies.append(body)
        native = path == "/completion"
        if path != "/v1/completions" and not native:
            return 404, {"detail": "Not Found"}
        if self.form == "chat":
            return 200, {"choices": [{"text": "hello", "logprobs": None}]}
        prompt, k = body["prompt"], body["n_probs" if native else "logprobs"]
        if isinstance(prompt, list) and not self.takes_ids:
            return 400, {"error": {"message": "prompt must be a string", "code": 400}}
        if k > self.most:
            return 422, {"message": f"logprobs must be at most {self.most}"}
        ids = prompt if isinstance(prompt, list) else self.tokens(prompt)
        found = sorted(answer_to(ids).items(), key=lambda each: -each[1])[:k]
        usage = {"prompt_tokens": len(ids)} if self.counts else None
        return 200, {**getattr(self, f"as_{self.form}")(found), "usage": usage}

    def tokens(self, text: str) -> list[int]:
        known = {word(token): token for token in range(256)}
        ids = [known[each] for each in text.split()]
        ids = [token for each in ids for token in ([each, each] if self.splits else [each])]
        return ids if self.start is None else [self.start, *ids]

    def as_legacy(self, found: Any) -> Any:
        rows = {f"{' ' if n > 2 else ''}{word(n)}": x for n, x in found}
        return {"choices": [{"text": "x", "logprobs": {"tokens": [""], "top_logprobs": [rows]}}]}

    def as_numbered(self, found: Any) -> Any:
        rows = {f"token_id:{n}": x for n, x in found}
        return {"choices": [{"logprobs": {"top_logprobs": [rows]}}]}

    def as_content(self, found: Any) -> Any:
        rows = [{"token": word(n), "bytes": [*word(n).encode()], "logprob": x} for n, x in found]
        return {"choices": [{"logprobs": {"content": [{**rows[0], "top_logprobs": rows}]}}]}

    def as_ids(self, found: Any) -> Any:
        rows = [{"id": n, "token": "", "logprob": x} for n, x in found]
        return {"choices": [{"logprobs": {"content": [{**rows[0], "top_logprobs": rows}]}}]}

    def as_native(self, found: Any) -> Any:
        rows = [{"id": n, "token": word(n), "logprob": x} for n, x in found]
        return {"content": "x", "completion_probabilities": [{**rows[0], "top_logprobs": rows}]}

    def as_foreign(self, found: Any) -> Any:
        return {"choices": [{"logprobs": {"top_logprobs": [{" the": -0.5, "2024": -1.5}]}}]}


@contextmanager
def serving() -> Iterator[Played]:
    """A server on a free port of this machine."""
    played = Played()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            models = {"data": [*played.models]} if played.models is not None else {"detail": "Not Found"}
            self.send(200 if self.path == "/v1/models" else 404, models)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if played.trouble:
                status = played.trouble.pop(0)
                if status is None:
                    self.close_connection = True
                    return
                self.send(status, {"error": {"message": "later"}})
            elif played.key and self.headers["Authorization"] != f"Bearer {played.key}":
                self.send(401, {"error": "no"})
            else:
                self.send(*played.reply(self.path, body))

        def send(self, status: int, content: Any) -> None:
            text = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *given: Any) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    played.url = f"http://127.0.0.1:{httpd.server_port}"
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield played
    httpd.shutdown()
    thread.join()
    httpd.server_close()
