# SPDX-License-Identifier: BSD-3-Clause
"""The hook and the workflow of the documentation run, with the status that it promises."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from audit_configs import BROKEN, GEMMA2, LLAMA, MINISTRAL, NOVEL, PHI4_MINI, ROOT

PAGE = ROOT / "docs" / "how-to" / "audit-in-ci.md"
WORKFLOW = ROOT / "docs" / "how-to" / "audit-workflow.yml"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A repository of models."""
    for name, config in (("gemma2", GEMMA2), ("phi4", PHI4_MINI), ("trained", LLAMA), ("served", LLAMA)):
        write(tmp_path, name, config)
    return tmp_path


def write(place: Path, name: str, config: Any) -> str:
    file = place / "models" / name / "config.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(config), encoding="utf-8")
    return str(file.relative_to(place))


def bash(place: Path, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script as GitHub does with `shell: bash`, with this environment's attnscale."""
    bin_ = Path(sys.executable).parent
    given = {**os.environ, "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}", **variables}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    options: Any = {"capture_output": True, "text": True, "timeout": 120}
    return subprocess.run(command, cwd=place, env=given, check=False, **options)


def hooks() -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    return content


def test_the_hook_takes_configs_and_nothing_else() -> None:
    (hook,) = hooks()
    assert {"id", "name", "entry", "language", "files"} <= set(hook)
    names = ("config.json", "models/a/config.json", "models/a/tokenizer_config.json", "config.json.bak")
    assert [bool(re.search(hook["files"], name)) for name in names] == [True, True, False, False]


@pytest.mark.parametrize(
    ("config", "status", "said"), [(GEMMA2, 0, ""), (NOVEL, 3, "warning"), (BROKEN, 2, "cannot be audited")]
)
def test_the_entry_of_the_hook_runs(place: Path, config: Any, status: int, said: str) -> None:
    (hook,) = hooks()
    files = [write(place, "gemma2", GEMMA2), write(place, "changed", config)]
    done = bash(place, shlex.join([*shlex.split(hook["entry"]), *files]))
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert "models/changed/config.json" in done.stdout


def test_the_page_shows_the_hook() -> None:
    (hook,) = hooks()
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    remote, local = (yaml.safe_load(block)["repos"][0]["hooks"][0] for block in blocks)
    assert remote["id"] == local["id"] == hook["id"]
    assert (local["entry"], local["require_serial"]) == (hook["entry"], hook["require_serial"])


def test_the_page_names_no_address_that_does_not_exist() -> None:
    """The workflow installs a wheel that pip builds from a clone."""
    for file in (PAGE, WORKFLOW):
        assert "OWNER" not in file.read_text(encoding="utf-8")
    assert "wheels/attnscale-*.whl" in steps()["Install"]
    assert "--wheel-dir wheels" in PAGE.read_text(encoding="utf-8")


def steps() -> dict[str, str]:
    """Scripts of the steps of the workflow, by their names."""
    workflow = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    assert workflow["defaults"]["run"]["shell"] == "bash"
    assert workflow[True]["pull_request"]["paths"] == ["**/config.json"]  # YAML 1.1 reads `on` so
    return {step["name"]: step["run"] for step in workflow["jobs"]["audit"]["steps"] if "run" in step}


def test_the_workflow_passes_and_fails(place: Path) -> None:
    every, programs = steps()["Every config"], steps()["For programs"]
    summary = {"GITHUB_STEP_SUMMARY": str(place / "summary")}
    done = bash(place, every, **summary)
    assert (done.returncode, done.stderr) == (0, "")
    assert (place / "summary").read_text(encoding="utf-8") == done.stdout
    assert bash(place, programs).returncode == 0
    assert json.loads((place / "audit.json").read_text(encoding="utf-8"))["counts"]["ok"] == 4
    write(place, "novel", NOVEL)
    assert bash(place, every, **summary).returncode == 3
    write(place, "broken", BROKEN)
    assert bash(place, every, **summary).returncode == 2
    assert bash(place, programs).returncode == 2
    assert json.loads((place / "audit.json").read_text(encoding="utf-8"))["counts"]["refused"] == 1


def test_the_workflow_compares_training_and_serving(place: Path) -> None:
    script = steps()["The config of training is the one that is served"]
    assert bash(place, script).returncode == 0
    write(place, "served", {**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}})
    done = bash(place, script)
    assert done.returncode == 3
    assert "differs from i = 0 on" in done.stdout
    write(place, "served", {**LLAMA, "rope_theta": 500000.0})
    done = bash(place, script)
    assert done.returncode == 3
    assert "from rope_theta = 10000.0 (default of llama) here, rope_theta = 500000.0 there" in done.stdout


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_workflow_says_what_a_change_does(place: Path) -> None:
    script = steps()["What the change does to each config"]
    git = "git -c user.name=a -c user.email=a@b -c init.defaultBranch=main"
    made = (
        f"{git} init -q && git add -A && {git} commit -qm 1 && git update-ref refs/remotes/origin/main HEAD"
    )
    assert bash(place, made).returncode == 0
    write(place, "gemma2", {**GEMMA2, "query_pre_attn_scalar": 256})
    assert bash(place, f"{git} commit -qam 2").returncode == 0
    (place / "tmp").mkdir()
    done = bash(place, script, GITHUB_BASE_REF="main", RUNNER_TEMP=str(place / "tmp"))
    assert (done.returncode, done.stderr) == (0, "")
    first, second, third = done.stdout.splitlines()
    assert first == "models/gemma2/config.json:"
    assert "0.08333333 here, 0.0625 there (1.3333 times)" in second
    assert third.strip() == "from query_pre_attn_scalar = 144 here, query_pre_attn_scalar = 256 there"


def test_the_table_of_the_page(tmp_path: Path) -> None:
    for name, config in (("gemma2", GEMMA2), ("novel", NOVEL), ("old", BROKEN), ("phi4", PHI4_MINI)):
        write(tmp_path, name, config)
    done = bash(tmp_path, "attnscale audit models")
    shown = re.search(r"```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert shown is not None
    assert shown[1] == done.stdout


def test_what_the_page_of_one_checkpoint_shows(tmp_path: Path) -> None:
    file = write(tmp_path, "ministral", MINISTRAL)
    page = (PAGE.parent / "audit-a-checkpoint.md").read_text(encoding="utf-8")
    plan, angles, framework, learned = re.findall(r"```text\n(.*?)```", page, flags=re.DOTALL)
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 8192
    config = {**LLAMA, "num_hidden_layers": 32, "rope_theta": 500000.0, "rope_scaling": scaling}
    one = write(tmp_path, "llama", config)
    other = write(tmp_path, "other", {**config, "rope_theta": 10000.0, "rope_scaling": None})
    assert angles == bash(tmp_path, f"attnscale audit {one} --against {other}").stdout
    assert plan in bash(tmp_path, f"attnscale audit {file}").stdout
    assert framework == bash(tmp_path, f"attnscale audit {file} --against-framework vllm-0.25").stdout
    # The numbers are of a checkpoint that is not here; test_audit_learned.py has the words of the command.
    assert "  s: q . k is multiplied by (s ln n + b) / sqrt(head_dim), n = i + 1\n" in learned
