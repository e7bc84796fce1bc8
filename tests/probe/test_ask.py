# SPDX-License-Identifier: BSD-3-Clause
"""Asking an engine the prompts of a probe: servers of every kind, and files that resume."""

from __future__ import annotations

import ast
import json
import math
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attnscale.cli import main
from attnscale.probe import ask, write
from played_server import DIGEST, PROMPTS, SCRIPT, Played, answer_to, serving, write_checkpoint, write_probe


@pytest.fixture
def probe(tmp_path: Path) -> Path:
    return write_probe(tmp_path / "probe", "layer-0")


@pytest.fixture
def server() -> Iterator[Played]:
    with serving() as played:
        yield played


@pytest.fixture
def asked(probe: Path, server: Played, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Ask the server; the lines of the file of answers."""

    def call(**options: Any) -> list[dict[str, Any]]:
        out = tmp_path / "answers.jsonl"
        given = {"url": server.url, "sleep": server.waits.append, **options}
        assert ask(probe, out, **given) == out
        return read(out)

    return call


Asked = Callable[..., list[dict[str, Any]]]


def read(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()]


def wanted(k: int = 5) -> list[dict[str, Any]]:
    """Lines of answers to all prompts, the first of which is asked again."""
    prompts = {**PROMPTS, "count again": PROMPTS["count"]}
    best = {name: sorted(answer_to(ids).items(), key=lambda x: -x[1])[:k] for name, ids in prompts.items()}
    return [
        {"checkpoint": DIGEST, "prompt": name, "logprobs": {str(n): x for n, x in rows}}
        for name, rows in best.items()
    ]


@pytest.mark.parametrize("form", ["legacy", "numbered", "content", "ids", "native"])
@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/completions"])
def test_every_form_of_a_reply_is_read(asked: Asked, server: Played, form: str, suffix: str) -> None:
    server.form = form
    head, *answers = asked(url=server.url + suffix)
    expected = {"checkpoint": DIGEST, "scale": 0.125}
    engine = "vllm over HTTP, model layer-0"
    assert head == {"checkpoint": DIGEST, "name": "layer-0", "engine": engine, "expected": expected}
    assert answers == wanted()


def test_the_address_of_llama_cpp_itself(asked: Asked, server: Played) -> None:
    server.form = "native"
    head, *answers = asked(url=f"{server.url}/completion", k=3)
    assert head["engine"] == "llama.cpp over HTTP"
    assert answers == wanted(3)
    assert {*server.bodies[0]} == {"prompt", "n_predict", "temperature", "n_probs", "cache_prompt"}


def test_llama_cpp_does_not_reuse_beginnings(
    asked: Asked, server: Played, probe: Path, tmp_path: Path
) -> None:
    server.models = ({"id": "a.gguf", "owned_by": "llamacpp"},)
    asked()
    assert ask_by_script(probe, server.url, str(tmp_path / "script.jsonl")).returncode == 0
    assert [each["cache_prompt"] for each in server.bodies] == [False] * 10


def test_nothing_but_the_prompts_is_sent(asked: Asked, server: Played) -> None:
    asked(model="mine")
    settings = {"model": "mine", "max_tokens": 1, "temperature": 0, "logprobs": 5}
    assert server.bodies == [{"prompt": ids, **settings} for ids in [*PROMPTS.values(), PROMPTS["count"]]]
    assert server.waits == []


@pytest.mark.parametrize(("most", "k", "gives"), [(20, 64, 20), (5, 20, 5), (1, 7, 1), (6, 7, 6)])
@pytest.mark.parametrize("takes_ids", [True, False])
def test_the_largest_number_that_a_server_gives(
    asked: Asked, server: Played, most: int, k: int, gives: int, takes_ids: bool
) -> None:
    server.most, server.takes_ids = most, takes_ids
    with pytest.warns(UserWarning, match="refuses|gives") as told:
        assert asked(k=k)[1:] == wanted(gives)
    assert str(told[-1].message).endswith(f" gives at most {gives} log-probabilities of the {k} asked for")
    assert len(told) == 2 - takes_ids
    assert [each["logprobs"] for each in server.bodies][-len(PROMPTS) :] == [gives] * len(PROMPTS)


def test_a_server_of_texts(asked: Asked, server: Played) -> None:
    server.takes_ids = False
    with pytest.warns(UserWarning, match=r"refuses token ids: texts are sent$") as told:
        assert asked()[1:] == wanted()
    assert len(told) == 1
    assert server.bodies[-1]["prompt"] == "<s> <p3> <p24> <p3>"


def test_a_server_that_begins_texts_by_itself(asked: Asked, server: Played) -> None:
    server.takes_ids, server.start = False, 1
    with pytest.warns(UserWarning, match="texts are sent"):
        assert asked()[1:] == wanted()
    texts = [each["prompt"] for each in server.bodies[2:5]]
    assert texts == ["<s> <p3> <p24> <p3>", "<p3> <p24> <p3>", "<p3> <p3> <p24>"]


def test_a_server_that_does_not_count(asked: Asked, server: Played) -> None:
    server.takes_ids, server.counts = False, False
    with pytest.warns(UserWarning, match="texts are sent"):
        assert asked()[1:] == wanted()


def test_a_tokenizer_of_other_words(asked: Asked, server: Played) -> None:
    server.takes_ids, server.splits = False, True
    told = (
        r"'count' must be 4 tokens, and the server read 8: it cut .*, or its tokenizer merged or split words$"
    )
    with pytest.warns(UserWarning, match="texts"), pytest.raises(ValueError, match=told):
        asked()


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("chat", "gives no log-probabilities: a probe needs /v1/completions with logprobs$"),
        ("foreign", r"of tokens of the probe, as '<p160>', got \{'top_logprobs': \[\{' the': -0.5"),
    ],
)
def test_replies_without_an_answer(asked: Asked, server: Played, form: str, message: str) -> None:
    server.form = form
    with pytest.raises(ValueError, match=message):
        asked()


@pytest.mark.parametrize("trouble", [[429, 429], [None], [503, None, 502]])
def test_errors_that_pass(asked: Asked, server: Played, trouble: list[int | None]) -> None:
    server.trouble = [*trouble]
    assert asked()[1:] == wanted()
    assert server.waits == [1.0, 2.0, 4.0][: len(trouble)]


def test_errors_that_stay(asked: Asked, server: Played, tmp_path: Path) -> None:
    server.trouble = [None] * 3
    with pytest.raises(ValueError, match=r"/v1/completions: cannot be reached \(Remote end closed"):
        asked(retries=2)
    assert server.waits == [1.0, 2.0]
    for status in (400, 500, 503):
        server.trouble = [status] * 16
        with pytest.raises(ValueError, match=rf"refused with status {status}: later$"):
            asked()
        assert len(server.trouble) == {400: 12, 500: 0, 503: 12}[status]
    assert [each["checkpoint"] for each in read(tmp_path / "answers.jsonl")] == [DIGEST]


def test_no_server(probe: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^http://127\.0\.0\.1:9/v1/models: cannot be reached \("):
        ask(probe, tmp_path / "a.jsonl", url="http://127.0.0.1:9", retries=0)
    assert not (tmp_path / "a.jsonl").exists()


def test_a_prompt_that_is_too_long(
    asked: Asked, server: Played, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usual = server.reply

    def reply(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        return (400, "too long") if len(body["prompt"]) > 5 else usual(path, body)

    monkeypatch.setattr(server, "reply", reply)
    told = r"^1 prompt of 5 refused, as 'cos 1' of 6 tokens: .*/v1/completions: .* status 400: too long$"
    with pytest.warns(UserWarning, match=told):
        lines = asked()
    assert [each.get("prompt") for each in lines] == [None, *PROMPTS, "count again"]
    assert lines[3]["refused"].endswith("status 400: too long")
    monkeypatch.setattr(server, "reply", usual)
    assert asked()[-1] == wanted()[2]


def test_a_key_comes_from_the_environment(
    asked: Asked, server: Played, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.key = "s3cret"
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ValueError, match=r"status 401: the key is read from .* OPENAI_API_KEY"):
        asked()
    with pytest.raises(
        ValueError, match=r"^key_from must name an environment variable, and MINE is not set$"
    ):
        asked(key_from="MINE")
    monkeypatch.setenv("MINE", server.key)
    assert asked(key_from="MINE")[1:] == wanted()
    assert server.key not in (tmp_path / "answers.jsonl").read_text()


def test_a_server_that_lists_no_models(asked: Asked, server: Played) -> None:
    server.models = None
    with pytest.raises(
        ValueError, match="lists no models under /v1/models, so the model's name must be given"
    ):
        asked()
    assert asked(model="org/name")[0]["engine"] == "server over HTTP, model name"


# ---- the file ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 30])
def test_an_interrupted_file_goes_on(asked: Asked, server: Played, tmp_path: Path, cut: int) -> None:
    whole = asked()
    out = tmp_path / "answers.jsonl"
    text = out.read_text()
    out.write_text("".join(text.splitlines(keepends=True)[:4])[:-cut])  # within the third answer
    server.bodies.clear()
    seen: list[tuple[int, int]] = []
    assert asked(progress=lambda *done: seen.append(done)) == whole
    assert seen == [(2, 5), (3, 5), (4, 5), (5, 5)]
    assert [each["prompt"] for each in server.bodies] == [PROMPTS["cos 1"], PROMPTS["cap"], PROMPTS["count"]]
    server.bodies.clear()
    assert asked() == whole
    assert server.bodies == []


def test_ctrl_c_keeps_the_answers(asked: Asked, server: Played, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(
        KeyboardInterrupt, match=r"answers\.jsonl has 2 of 5 answers; asking again adds the others$"
    ):
        asked(progress=stop)
    assert [each.get("prompt") for each in read(tmp_path / "answers.jsonl")] == [None, "count", "self 0"]
    assert asked()[1:] == wanted()


def test_a_file_is_of_one_engine(asked: Asked, server: Played) -> None:
    asked()
    server.models = ({"id": "other"},)
    told = "has answers of vllm over HTTP, model layer-0: give another file to server over HTTP, model other$"
    with pytest.raises(ValueError, match=told):
        asked()


def test_another_checkpoint_of_the_same_name_is_refused(asked: Asked, probe: Path) -> None:
    asked()
    shutil.rmtree(probe / "layer-0")
    write_checkpoint(probe / "layer-0", "f" * 16)
    told = (
        rf"answers\.jsonl: has answers of another layer-0, {DIGEST}, and the folder has f{{16}}: give another"
    )
    with pytest.raises(ValueError, match=told):
        asked()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a note", "the last line must be an answer, got 'a note'"),
        ("a note\n", "line 1 must be an answer, got 'a note'"),
        ('{"checkpoint": "0", "prompt": "count"}\n', "line 1 must be an answer"),
        ("[]\n", "line 1 must be an answer"),
    ],
)
def test_other_files_are_left_alone(asked: Asked, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "answers.jsonl").write_text(text)
    with pytest.raises(ValueError, match=message):
        asked()
    assert (tmp_path / "answers.jsonl").read_text() == text


# ---- the folder and the options ---------------------------------------------------------------------------


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must be the folder of a probe, and has no probe\.json"):
        ask(tmp_path, tmp_path / "a.jsonl", url="http://x")
    (tmp_path / "probe.json").write_text('{"format": 2, "checkpoints": ["a"]}')
    with pytest.raises(ValueError, match="must be a probe of format 1, got"):
        ask(tmp_path, tmp_path / "a.jsonl", url="http://x")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "^url and engine must be one of the two, got none"),
        ({"url": "http://x", "engine": "mlx"}, "^url and engine must be one of the two, got both"),
        ({"url": "host:8000"}, "^url must begin with http:// or https://, got 'host:8000'"),
        ({"url": "http://x", "k": 0}, "^k must be at least 1, got 0"),
        ({"url": "http://x", "retries": -1}, "^retries must be an integer of at least 0, got -1"),
        ({"url": "http://x", "timeout": 0}, "^timeout must be more than 0, got 0"),
        ({"url": "http://x", "dtype": "float32"}, "^dtype must be left out with url: it has no effect there"),
        ({"engine": "vllm"}, "^engine must be one of 'transformers', 'llama_cpp', 'mlx', got 'vllm'"),
        ({"engine": "mlx", "k": 5}, "^k must be left out with mlx"),
        ({"engine": "mlx", "file": "a"}, "^file must be left out with mlx"),
        ({"engine": "transformers", "dtype": "int8"}, "^dtype must be one of"),
        ({"engine": "llama_cpp"}, "^file must be a GGUF file for llama_cpp, got none"),
        ({"engine": "llama_cpp", "file": "a"}, "layer-0 has no a$"),
    ],
)
def test_options_are_checked(probe: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ask(probe, tmp_path / "a.jsonl", **options)
    assert not (tmp_path / "a.jsonl").exists()


def test_a_server_has_loaded_one_checkpoint(server: Played, tmp_path: Path) -> None:
    both = write_probe(tmp_path / "both", "layer-0", "layer-5")
    with pytest.raises(
        ValueError, match="the server has loaded, one of layer-0, layer-5, got a probe of all"
    ):
        ask(both, tmp_path / "a.jsonl", url=server.url)
    ask(both / "layer-5", tmp_path / "a.jsonl", url=server.url)
    assert read(tmp_path / "a.jsonl")[0]["name"] == "layer-5"
    ask(both / "layer-0", tmp_path / "a.jsonl", url=server.url)
    assert len(read(tmp_path / "a.jsonl")) == 12


@pytest.mark.parametrize("engine", ["transformers", "mlx", "llama_cpp"])
def test_an_engine_that_is_not_installed(
    probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    for name in ("torch", "mlx", "mlx.core", "xllamacpp"):
        monkeypatch.setitem(sys.modules, name, None)
    (probe / "layer-0" / "f32.gguf").touch()
    file = {"file": "f32.gguf"} if engine == "llama_cpp" else {}
    with pytest.raises(ValueError, match=f"^{engine} needs .*: pip install "):
        ask(probe, tmp_path / "a.jsonl", engine=engine, **file)


# ---- engines in this process ------------------------------------------------------------------------------

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
GPT_OSS = (
    {"model_type": "gpt_oss", "head_dim": 64, "hidden_size": 512, "intermediate_size": 512}
    | {"num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 1000}
    | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 128, "rope_theta": 150000.0}
    | {"layer_types": ["sliding_attention", "full_attention"], "rms_norm_eps": 1e-5, "rope_scaling": YARN}
    | {"max_position_embeddings": 16384}
)


def ask_in_process(engine: str, tmp_path: Path, **options: Any) -> list[dict[str, Any]]:
    """Lines of the answers of an engine to a few prompts for both kinds of layers of a model."""
    write(GPT_OSS, tmp_path / "probe", kinds=["scale"], longest=64)
    return read(ask(tmp_path / "probe", tmp_path / f"{engine}.jsonl", engine=engine, **options))


def test_transformers_in_this_process(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Loading transformers takes longer than asking it."""
    transformers = pytest.importorskip("transformers")
    lines = ask_in_process("transformers", tmp_path)
    heads = [each for each in lines if "engine" in each]
    assert [each["name"] for each in heads] == ["layer-0", "layer-1"]
    assert {each["engine"] for each in heads} == {f"transformers {transformers.__version__} float32 eager"}
    first, *_, again = [each for each in lines if each["checkpoint"] == heads[0]["checkpoint"]][1:]
    assert (first["prompt"], again["prompt"]) == ("count", "count again")
    assert first["logprobs"] == again["logprobs"]
    values = [*first["logprobs"].values()]
    assert len(values) == 24
    assert values == sorted(values, reverse=True)
    assert 0.5 < sum(map(math.exp, values)) < 1.0
    assert capfd.readouterr().err == ""  # no bar
    config = tmp_path / "probe" / "layer-0" / "config.json"
    three = {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}
    config.write_text(json.dumps({**json.loads(config.read_text()), **three}))
    with pytest.raises(
        ValueError, match=r"must load the whole checkpoint: \d+ tensors are not in the checkpoint, as"
    ):
        ask(config.parent, tmp_path / "other.jsonl", engine="transformers")
    config.write_text('{"model_type": "no such"}')
    with pytest.raises(ValueError, match=r"layer-0: transformers [\d.]+: .*no such"):
        ask(config.parent, tmp_path / "other.jsonl", engine="transformers")


def test_mlx_loads_experts_that_are_not_quantised(tmp_path: Path) -> None:
    pytest.importorskip("mlx_lm")
    pytest.importorskip("transformers")
    theirs, ours = (ask_in_process(engine, tmp_path) for engine in ("mlx", "transformers"))
    assert theirs[0]["engine"].startswith("mlx-lm ")
    for mine, other in zip(ours, theirs, strict=True):
        for token, value in [*mine.get("logprobs", {}).items()][:3]:
            assert abs(other["logprobs"][token] - value) < 1e-3


# ---- the script and the command ---------------------------------------------------------------------------


def ask_by_script(probe: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ask.py of a folder with the standard library alone."""
    command = [sys.executable, "-I", "-S", str(probe / "ask.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_script_writes_the_same_file(asked: Asked, probe: Path, server: Played, tmp_path: Path) -> None:
    asked()
    ours, out = (tmp_path / "answers.jsonl").read_text(), tmp_path / "script.jsonl"
    for cut in (0, 40):
        if cut:
            out.write_text("".join(ours.splitlines(keepends=True)[:4])[:-cut])
        done = ask_by_script(probe, f"{server.url}/v1", str(out))
        assert (done.returncode, done.stderr) == (0, "")
        assert out.read_text() == ours


def test_the_script_asks_for_the_checkpoint(tmp_path: Path, server: Played) -> None:
    both = write_probe(tmp_path / "both", "layer-0", "layer-5")
    out = tmp_path / "a.jsonl"
    done = ask_by_script(both, server.url, str(out))
    assert (done.returncode, done.stderr) == (1, "name the served checkpoint, one of layer-0, layer-5\n")
    assert ask_by_script(both, server.url, str(out), "layer-5").returncode == 0
    assert read(out)[0]["name"] == "layer-5"
    assert "python ask.py http://host:8000 answers.jsonl" in ask_by_script(both).stderr


def test_the_script_stops_at_a_chat_server(probe: Path, server: Played, tmp_path: Path) -> None:
    server.form = "chat"
    done = ask_by_script(probe, server.url, str(tmp_path / "a.jsonl"))
    assert (done.returncode, done.stderr) == (1, "no log-probabilities of the probe's tokens\n")
    assert len(read(tmp_path / "a.jsonl")) == 1


def test_the_script_without_a_server(probe: Path, server: Played, tmp_path: Path) -> None:
    """The words are those of `probe ask`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # nobody listens
        url, out = f"http://127.0.0.1:{free.getsockname()[1]}", tmp_path / "a.jsonl"
        with pytest.raises(ValueError, match="cannot be reached") as told:
            ask(probe, out, url=url, retries=0)
        done = ask_by_script(probe, url, str(out))
    assert (done.returncode, done.stderr) == (2, f"{told.value}\n")
    server.key = "s3cret"
    done = ask_by_script(probe, server.url, str(out))
    where = f"{server.url}/v1/completions"
    assert (done.returncode, done.stderr) == (2, f"{where}: refused with status 401 (Unauthorized)\n")


def test_the_script_is_short_and_imports_the_standard_library() -> None:
    """At most 40 lines, besides imports, docstrings and comments."""
    source = SCRIPT.read_text("utf-8")
    body = ast.parse(source).body
    imported = [node for node in body if isinstance(node, (ast.Import, ast.ImportFrom))]
    told = [node.body[0] for node in body if isinstance(node, ast.FunctionDef)]
    besides = {
        line
        for node in (body[0], *imported, *told)
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    lines = enumerate(source.splitlines(), 1)
    assert len([n for n, line in lines if line.strip(" #") and line[0] != "#" and n not in besides]) <= 40
    names = {getattr(node, "module", node.names[0].name) for node in imported}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def test_the_command_asks(
    probe: Path, server: Played, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.jsonl"
    server.takes_ids = False
    assert main(["probe", "ask", str(probe), "--url", server.url, "-o", str(out)]) == 0
    said = capsys.readouterr()
    assert said.out == f"{out}: written. Then: attnscale probe read {out}\n"
    assert said.err == f"attnscale: {server.url} refuses token ids: texts are sent\n"
    assert read(out)[1:] == wanted()
    assert main(["probe", "ask", str(probe), "--mlx", "-o", str(out), "--k", "3"]) == 2
    assert (
        capsys.readouterr().err == "attnscale: error: --k must be left out with mlx: it has no effect there\n"
    )


def test_loading_is_left_out_of_the_estimate(
    probe: Path,
    server: Played,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first of five answers takes 30 s, the others 3 s: less than the minute that is announced."""
    seconds, usual = [0.0], server.reply

    def reply(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        seconds[0] += 3.0 if server.bodies else 30.0
        return usual(path, body)

    monkeypatch.setattr(server, "reply", reply)
    monkeypatch.setattr("attnscale._grid.progress.time", SimpleNamespace(monotonic=lambda: seconds[0]))
    assert main(["probe", "ask", str(probe), "--url", server.url, "-o", str(tmp_path / "a.jsonl")]) == 0
    assert (seconds, capsys.readouterr().err) == ([42.0], "")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"folder": None}, "^folder must be a path, got None$"),
        ({"out": 3}, "^out must be a path, got 3$"),
        ({"url": 3}, "^url must be a text, got 3$"),
        ({"retries": 1.5}, "^retries must be an integer of at least 0, got 1.5$"),
    ],
)
def test_arguments_of_a_wrong_kind(tmp_path: Path, given: dict[str, Any], told: str) -> None:
    call: dict[str, Any] = {"folder": tmp_path, "out": tmp_path / "a", "url": "http://localhost:9", **given}
    with pytest.raises((TypeError, ValueError), match=told):
        ask(**call)
