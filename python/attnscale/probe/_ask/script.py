# SPDX-License-Identifier: BSD-3-Clause
"""Ask the server of one of these checkpoints: python ask.py http://host:8000 answers.jsonl [layer-0]

Python's standard library is enough. Answers are appended: run it again to ask what is missing. A key is taken
from OPENAI_API_KEY. `attnscale probe ask` does more: retries, servers of texts, fewer log-probabilities.
"""

import json
import os
import re
import sys
import urllib.request
from pathlib import Path
from typing import Any


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
    """The reply to a request, in JSON."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.getenv('OPENAI_API_KEY')}"}
    request = urllib.request.Request(url, json.dumps(body).encode() if body else None, headers)
    return json.load(urllib.request.urlopen(request, timeout=120))


def main(url: str, out: str, name: str = "") -> None:
    """Append the answers that `out` lacks."""
    root, base = Path(__file__).resolve().parent, url.rstrip("/").removesuffix("/v1")
    names = [name] if name else json.loads((root / "probe.json").read_text())["checkpoints"]
    name = names[0] if len(names) == 1 else sys.exit(f"name the served checkpoint, one of {', '.join(names)}")
    expected = json.loads((root / name / "expected.json").read_text())
    prompts = [json.loads(line) for line in (root / name / "prompts.jsonl").read_text().splitlines()]
    prompts.append({**prompts[0], "prompt": f"{prompts[0]['prompt']} again"})  # do repeats differ?
    model = fetch(f"{base}/v1/models")["data"][0]
    engine = f"{model.get('owned_by', 'server')} over HTTP, model {Path(model['id']).name}"
    head = {"checkpoint": expected["checkpoint"], "name": name, "engine": engine, "expected": expected}
    asked = {"model": model["id"], "max_tokens": 1, "temperature": 0, "logprobs": 5}
    asked |= {"cache_prompt": False} if engine.startswith("llamacpp ") else {}  # else it rounds more
    file = open(out, "a+", encoding="utf-8")  # noqa: SIM115  # closed by the end of the program
    whole, end, _ = Path(out).read_text("utf-8").rpartition("\n")  # a line that a kill cut short is dropped
    file.truncate(len((whole + end).encode()))
    lines = [json.loads(line) for line in whole.splitlines()]
    if head not in lines:
        print(json.dumps(head), file=file, flush=True)
    done = [line.get("prompt") for line in lines[lines.index(head) :]] if head in lines else []
    for each in [prompt for prompt in prompts if prompt["prompt"] not in done]:
        reply = fetch(f"{base}/v1/completions", {**asked, "prompt": each["ids"]})
        found = log_probabilities(reply) or sys.exit("no log-probabilities of the probe's tokens")
        line = {"checkpoint": head["checkpoint"], "prompt": each["prompt"], "logprobs": found}
        print(json.dumps(line), file=file, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 2 else sys.exit(__doc__)
