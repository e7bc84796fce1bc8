# SPDX-License-Identifier: BSD-3-Clause
"""Ask the server of one of these checkpoints: python ask.py http://host:8000 answers.jsonl [layer-0]

Python's standard library is enough. Answers are appended: run it again to ask what is missing. A key is taken
from OPENAI_API_KEY. `attnscale probe ask` does more: retries, servers of texts, fewer log-probabilities.
"""

import json
import os
import re
import sys
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen


def token_of(entry: Any) -> Any:
    """The id of a token, given or from its text; None for a text of another tokenizer."""
    found = re.search(r"(?:<p|token_id:)(\d+)>?\s*$", entry["token"])
    return entry.get("id", int(found[1]) if found else {"<unk>": 0, "<s>": 1, "</s>": 2}.get(entry["token"]))


def log_probabilities(reply: Any) -> dict[int, float]:
    """Log-probabilities of the next token, by its id, in a reply of /v1/completions or /completion."""
    choice = (reply.get("choices") or [reply])[0]
    given = choice.get("logprobs") or {}
    first = (given.get("content") or choice.get("completion_probabilities") or [{}])[0]
    legacy = (given.get("top_logprobs") or [None])[0] or {}
    entries = first.get("top_logprobs") or [{"token": token, "logprob": x} for token, x in legacy.items()]
    return {n: x for n, x in ((token_of(e), e["logprob"]) for e in entries) if n is not None and x > -1e3}


def fetch(url: str, body: Any = None) -> Any:
    """The reply to a request, in JSON; without one the program ends with a line that says why."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.getenv('OPENAI_API_KEY')}"}
    try:
        return json.load(urlopen(Request(url, body and json.dumps(body).encode(), headers), timeout=120))
    except (OSError, HTTPException) as error:
        told = f"refused with status {error.code}" if isinstance(error, HTTPError) else "cannot be reached"
        sys.exit(sys.stderr.write(f"{url}: {told} ({getattr(error, 'reason', error)})\n") and 2)  # status


def main(url: str, out: str, name: str = "") -> None:
    """Append the answers that `out` lacks."""
    root, base = Path(__file__).resolve().parent, url.rstrip("/").removesuffix("/v1")
    names = [name] if name else json.loads((root / "probe.json").read_text())["checkpoints"]
    name = names[0] if len(names) == 1 else sys.exit(f"name the served checkpoint, one of {', '.join(names)}")
    expected = json.loads((root / name / "expected.json").read_text())
    prompts = [json.loads(line) for line in (root / name / "prompts.jsonl").read_text().splitlines()]
    prompts.append({**prompts[0], "prompt": f"{prompts[0]['prompt']} again"})  # do repeats differ?
    model, digest = fetch(f"{base}/v1/models")["data"][0], expected["checkpoint"]
    engine = f"{model.get('owned_by', 'server')} over HTTP, model {Path(model['id']).name}"
    head = {"checkpoint": digest, "name": name, "engine": engine, "expected": expected}
    asked = {"model": model["id"], "max_tokens": 1, "temperature": 0, "logprobs": 5}
    asked |= {"cache_prompt": False} if engine.startswith("llamacpp ") else {}  # else it rounds more
    file = open(out, "a+", 1, "utf-8")  # noqa: SIM115  # each line is flushed; closed by the end
    file.truncate(Path(out).read_bytes().rfind(b"\n") + 1)  # a line that a kill cut short is dropped
    lines = [json.loads(line) for line in Path(out).read_text("utf-8").splitlines()]
    file.write("" if head in lines else json.dumps(head) + "\n")
    done = [line.get("prompt") for line in lines[lines.index(head) :]] if head in lines else []
    for each in [prompt for prompt in prompts if prompt["prompt"] not in done]:
        reply = fetch(f"{base}/v1/completions", {**asked, "prompt": each["ids"]})
        found = log_probabilities(reply) or sys.exit("no log-probabilities of the probe's tokens")
        file.write(json.dumps({"checkpoint": digest, "prompt": each["prompt"], "logprobs": found}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 2 else sys.exit(__doc__)
