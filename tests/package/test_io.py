# SPDX-License-Identifier: BSD-3-Clause
"""Reading queries and keys: spellings, layouts, and one clear line for everything else."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from attnscale._files.heads import InputError, read_heads

RNG = np.random.default_rng(3)
QUERY = RNG.standard_normal((4, 9, 8)).astype(np.float32)
KEY = RNG.standard_normal((4, 9, 8)).astype(np.float32)


def assert_read(files, **options):
    heads = read_heads(files, **options)
    np.testing.assert_array_equal(heads.query, QUERY)
    np.testing.assert_array_equal(heads.key, KEY)
    assert heads.names == ("0", "1", "2", "3")


def refused(message, files):
    """Check that these files are refused with an error of one line."""
    with pytest.raises(InputError, match=message) as caught:
        read_heads(files)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("q", "k"),
    [("query", "key"), ("q", "k"), ("Q", "K"), ("queries", "keys"), ("query_states", "key_states")],
)
def test_npz_spellings(tmp_path, q, k):
    np.savez(tmp_path / "heads.npz", **{q: QUERY, k: KEY, "value": KEY})
    assert_read([tmp_path / "heads.npz"])


def test_pair_of_npy_is_queries_then_keys(tmp_path):
    np.save(tmp_path / "a.npy", QUERY)
    np.save(tmp_path / "b.npy", KEY)
    assert_read([tmp_path / "a.npy", str(tmp_path / "b.npy")])


@pytest.mark.torch
def test_pair_of_pt_is_queries_then_keys(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save(torch.from_numpy(QUERY).requires_grad_(), tmp_path / "a.pt")
    torch.save(torch.from_numpy(KEY), tmp_path / "b.pth")
    np.save(tmp_path / "b.npy", KEY)
    assert_read([tmp_path / "a.pt", tmp_path / "b.pth"])
    assert_read([tmp_path / "a.pt", tmp_path / "b.npy"])
    torch.save({"q": torch.from_numpy(QUERY)}, tmp_path / "c.pt")
    refused(
        r"c\.pt: with two files each must hold one tensor, got dict; a mapping",
        [tmp_path / "c.pt", tmp_path / "b.pth"],
    )
    refused(r"a\.pt: must hold a mapping .* two files may hold a tensor each$", [tmp_path / "a.pt"])
    (tmp_path / "x.npz").touch()
    refused(
        r"x\.npz: with two files both must be \.npy, \.pt or \.zarr, queries first",
        [tmp_path / "x.npz", tmp_path / "b.pth"],
    )


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_safetensors(tmp_path, dtype):
    save_file = pytest.importorskip("safetensors.numpy").save_file
    kind = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype
    save_file({"q": QUERY.astype(kind), "k": KEY.astype(kind)}, tmp_path / "heads.safetensors")
    heads = read_heads([tmp_path / "heads.safetensors"])
    assert heads.query.dtype == np.dtype(kind)
    np.testing.assert_array_equal(heads.key, KEY.astype(kind))


def test_layout_bshd(tmp_path):
    np.savez(tmp_path / "heads.npz", q=QUERY.swapaxes(0, 1), k=KEY.swapaxes(0, 1))
    assert_read([tmp_path / "heads.npz"], layout="bshd")


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_two_axes_are_one_head(tmp_path, layout):
    np.savez(tmp_path / "heads.npz", q=QUERY[0], k=KEY[0])
    heads = read_heads([tmp_path / "heads.npz"], layout=layout)
    np.testing.assert_array_equal(heads.query, QUERY[:1])
    assert heads.names == ("0",)


def test_heads_are_named_by_layer_and_head(tmp_path):
    np.savez(tmp_path / "heads.npz", q=QUERY, k=KEY, layers=[0, 0, 3, 3], heads=[1, 2, 1, 2])
    assert read_heads([tmp_path / "heads.npz"]).names == ("L0 H1", "L0 H2", "L3 H1", "L3 H2")


@pytest.mark.parametrize("labels", [{"layers": [0, 3], "heads": [1, 2]}, {"layers": [0, 0, 3, 3]}])
def test_names_that_do_not_fit_are_an_error(tmp_path, labels):
    np.savez(tmp_path / "heads.npz", q=QUERY, k=KEY, **labels)
    rule = r"heads\.npz: layers and heads must both have one number for each of the 4 heads, got layers of"
    refused(rule, [tmp_path / "heads.npz"])


def test_heads_in_the_place_of_tokens_warn(tmp_path):
    queries = np.ones((1, 50, 4, 8), np.float32)
    np.savez(tmp_path / "heads.npz", q=queries, k=queries)
    message = r"read as 50 heads of 4 tokens; with layout bshd it has 4 heads of 50"
    with pytest.warns(UserWarning, match=message):
        assert read_heads([tmp_path / "heads.npz"]).query.shape == (1, 50, 4, 8)
    assert read_heads([tmp_path / "heads.npz"], layout="bshd").query.shape == (1, 4, 50, 8)
    named = {"layers": np.arange(50), "heads": np.arange(50)}  # 50 named heads stay 50
    np.savez(tmp_path / "heads.npz", q=queries, k=queries, **named)
    assert len(read_heads([tmp_path / "heads.npz"]).names) == 50


@pytest.mark.torch
def test_tensors_that_torch_saved(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "qk.pt"
    tensors = {"q": torch.tensor(QUERY), "k": torch.tensor(KEY, dtype=torch.bfloat16).requires_grad_()}
    torch.save({**tensors, "layers": torch.zeros(4, dtype=int), "heads": torch.arange(4), 5: "other"}, path)
    heads = read_heads([path])
    np.testing.assert_array_equal(heads.query, QUERY)
    np.testing.assert_array_equal(heads.key.astype(np.float32), tensors["k"].detach().float().numpy())
    assert heads.names == ("L0 H0", "L0 H1", "L0 H2", "L0 H3")
    torch.save((tensors["q"], tensors["k"]), path)
    refused(r"qk\.pt: must hold a mapping with query and key, got tuple; torch\.save", [path])
    path.write_bytes(b"hello, this is text")
    refused(r"qk\.pt: not a readable \.pt file of tensors \(", [path])


def broken(query=QUERY, key=KEY, **more):
    return {"query": query, "key": key, **more}


def with_nan():
    query = QUERY.copy()
    query[1, 2, 3] = np.nan
    query[3, 0, 0] = np.inf
    return query


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"foo": QUERY, "bar": KEY}, r"no array named query or q or .*; the file has bar, foo$"),
        ({"query": QUERY, "scores": KEY}, r"no array named key or k or .*; the file has query, scores$"),
        (
            {"query": QUERY, "q": QUERY, "key": KEY},
            r"several arrays could be the query; the file has key, q, query",
        ),
        (
            broken(query=with_nan()),
            r"heads\.npz: query holds 2 NaN or infinite values, the first at index \(1, 2, 3\)$",
        ),
        (broken(key=KEY.astype(np.int32)), r"heads\.npz: key must be floating point, got int32$"),
        (
            broken(query=QUERY[0, 0]),
            r"heads\.npz: query must have 2 axes \(n, head_dim\) or more, got shape \(8,\)$",
        ),
        (
            broken(key=KEY[..., :5]),
            r"heads\.npz: query and key must have the same last dimension, got query \(4, 9, 8\) and key",
        ),
        (
            broken(key=KEY[None]),
            r"heads\.npz: query and key must have the same batch axes, got query \(4, 9, 8\) and key",
        ),
        (
            broken(key=KEY[:3]),
            r"heads\.npz: the number of query heads must be a multiple of that of key heads, got query",
        ),
        (broken(query=QUERY[:, :0]), r"heads\.npz: query and key must not be empty, got query \(4, 0, 8\)"),
    ],
)
def test_npz_errors(tmp_path, arrays, message):
    np.savez(tmp_path / "heads.npz", **arrays)
    refused(message, [tmp_path / "heads.npz"])


def test_an_error_names_the_one_of_two_files_that_it_is_about(tmp_path):
    paths = tmp_path / "q.npy", tmp_path / "k.npy"
    for key, message in (
        (KEY.astype(np.int32), rf"^{tmp_path}/k\.npy: key must be floating point"),
        (KEY[..., :5], rf"^{tmp_path}/q\.npy and {tmp_path}/k\.npy: query and key must have the same last"),
    ):
        np.save(paths[0], QUERY)
        np.save(paths[1], key)
        refused(message, paths)


def test_grouped_heads_are_fine(tmp_path):
    np.savez(tmp_path / "heads.npz", q=QUERY, k=KEY[:2])
    assert read_heads([tmp_path / "heads.npz"]).key.shape == (2, 9, 8)


def test_files_that_are_not_there(tmp_path):
    refused(r"nope\.npz: no such file", [tmp_path / "nope.npz"])
    refused("is a folder", [tmp_path])


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".safetensors"])
@pytest.mark.parametrize("content", [b"", b"hello, this is text", b"\x93NUMPY\x01\x00", b"PK\x03\x04 cut"])
def test_files_with_another_content(tmp_path, suffix, content):
    if suffix == ".safetensors":
        pytest.importorskip("safetensors")
    path = tmp_path / f"heads{suffix}"
    path.write_bytes(content)
    refused(f"not an? (readable )?{suffix} file", [path, path] if suffix == ".npy" else [path])


def test_npy_named_npz_and_npz_named_npy(tmp_path):
    np.save(tmp_path / "a.npy", QUERY)
    (tmp_path / "a.npz").write_bytes((tmp_path / "a.npy").read_bytes())
    refused(r"not an \.npz file, but an array as \.npy", [tmp_path / "a.npz"])
    np.savez(tmp_path / "b.npz", q=QUERY)
    (tmp_path / "b.npy").write_bytes((tmp_path / "b.npz").read_bytes())
    refused(r"not an \.npy file, but an archive as \.npz", [tmp_path / "b.npy", tmp_path / "a.npy"])


def test_pickles_are_refused(tmp_path):
    np.savez(tmp_path / "heads.npz", query=np.array([{"a": 1}], dtype=object), key=KEY)
    refused(r"not a readable \.npz file \(it holds Python objects\)", [tmp_path / "heads.npz"])


def test_one_npy_and_unknown_suffixes(tmp_path):
    np.save(tmp_path / "a.npy", QUERY)
    refused(r"one \.npy holds one array; give two", [tmp_path / "a.npy"])
    (tmp_path / "a.bin").write_bytes(b"x")
    refused(r"expected .npz, .* \.zarr, two .npy or two .pt files, got .bin", [tmp_path / "a.bin"])
    np.savez(tmp_path / "a.npz", q=QUERY, k=KEY)
    refused(r"with two files both must be \.npy", [tmp_path / "a.npz", tmp_path / "a.npy"])


def test_a_text_with_the_name_of_an_archive_is_not_to_be_unpickled(tmp_path):
    for suffix in (".npz", ".npy"):
        path = tmp_path / f"text{suffix}"
        path.write_text("hello", encoding="utf-8")
        with pytest.raises(InputError) as caught:
            read_heads([path, path] if suffix == ".npy" else [path])
        assert str(caught.value) == f"{path}: not an {suffix} file"


def write_bfloat16(path):
    """A .safetensors file of bfloat16 ones by its specification: length, header, bytes."""
    header = {
        name: {"dtype": "BF16", "shape": [2, 8, 4], "data_offsets": [128 * i, 128 * (i + 1)]}
        for i, name in enumerate("qk")
    }
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\x80\x3f" * 128)


def test_bfloat16_needs_nothing_imported_before(tmp_path):
    pytest.importorskip("safetensors")
    pytest.importorskip("ml_dtypes")
    path = tmp_path / "heads.safetensors"
    write_bfloat16(path)
    # Another process: where PyTorch or ml_dtypes was imported, NumPy knows the type already.
    code = f"from attnscale._files.heads import read_heads; print(read_heads([{str(path)!r}]).query.dtype)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "bfloat16\n"


def test_bfloat16_without_its_package_says_what_to_install(tmp_path, monkeypatch):
    pytest.importorskip("safetensors")
    write_bfloat16(tmp_path / "heads.safetensors")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    refused("reading bfloat16 needs its package: pip install ml_dtypes", [tmp_path / "heads.safetensors"])


def test_bfloat16_that_numpy_saved_has_lost_its_type(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    np.savez(tmp_path / "heads.npz", **{name: np.ones((2, 8, 4), ml_dtypes.bfloat16) for name in "qk"})
    refused(r"got \|V2; bfloat16 goes into \.safetensors", [tmp_path / "heads.npz"])


def write(path, query=QUERY, key=KEY, **changes):
    """Queries and keys in the format that the suffix names; the files to read."""
    if path.suffix == ".npy":
        pair = path.with_name("q.npy"), path.with_name("k.npy")
        for each, array in zip(pair, (query, key), strict=True):
            np.save(each, array)
        return pair
    if path.suffix == ".npz":
        (np.savez_compressed if "packed" in path.name else np.savez)(path, q=query, k=key, **changes)
    elif path.suffix == ".safetensors":
        pytest.importorskip("safetensors.numpy").save_file({"q": query, "k": key}, path)
    elif path.suffix == ".pt":
        torch = pytest.importorskip("torch")
        torch.save({"q": torch.tensor(query), "k": torch.tensor(key)}, path)
    elif path.suffix == ".h5":
        with pytest.importorskip("h5py").File(path, "w") as file:
            chunks = {"chunks": (1, 4, 8), "compression": "gzip"} if "packed" in path.name else {}
            file.create_dataset("q", data=query, **chunks)
            file.create_dataset("k", data=key, **chunks)
    else:
        group = pytest.importorskip("zarr").open_group(path, mode="w")
        for name, array in (("q", query), ("k", key)):
            group.create_array(name, shape=array.shape, chunks=(1, 4, 8), dtype=array.dtype)[:] = array
    return (path,)


NAMES = ["a.npy", "a.npz", "packed.npz", "a.safetensors", "a.pt", "a.h5", "packed.h5", "a.zarr"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("heads", [None, [2], [0, 2], [1, 2, 3], [3, 0, 1]])
def test_tokens_and_heads_are_cut(tmp_path, name, heads):
    files = write(tmp_path / name, key=KEY[:2])
    chosen = [0, 1, 2, 3] if heads is None else heads
    for n in (None, 5):
        found = read_heads(files, n=n, heads=heads)
        np.testing.assert_array_equal(found.query, QUERY[chosen, :n])
        shared = found.key.repeat(len(found.query) // len(found.key), 0)
        np.testing.assert_array_equal(shared, KEY[[head // 2 for head in chosen], :n])
        assert found.names == tuple(map(str, chosen))
        assert found.query.flags.aligned


@pytest.mark.parametrize("name", ["a.npy", "a.safetensors", "a.pt", "a.h5"])
def test_arrays_are_mapped(tmp_path, name):
    for array in read_heads(write(tmp_path / name), n=5, heads=[1, 2])[:2]:
        while not isinstance(array, np.memmap):
            array = array.base
        assert array.mode == "r"


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_other_orders_of_bytes_and_axes(tmp_path, suffix):
    files = write(tmp_path / f"a{suffix}", QUERY.astype(">f4"), np.asfortranarray(KEY))
    heads = read_heads(files, heads=[1, 3], n=7)
    assert heads.query.dtype.isnative
    np.testing.assert_array_equal(heads.query, QUERY[[1, 3], :7])
    np.testing.assert_array_equal(heads.key, KEY[[1, 3], :7])
    assert_read(write(tmp_path / f"a{suffix}", QUERY.swapaxes(0, 1), KEY.swapaxes(0, 1)), layout="bshd")


def test_only_what_is_cut_is_checked(tmp_path):
    query = with_nan()  # at [1, 2, 3] and [3, 0, 0]
    for suffix in (".npy", ".npz"):
        files = write(tmp_path / f"a{suffix}", query)
        assert read_heads(files, heads=[0, 2]).query.shape == (2, 9, 8)
        assert read_heads(files, heads=[1], n=2).query.shape == (1, 2, 8)
        with pytest.raises(
            InputError, match=r"holds 1 NaN or infinite values, the first at index \(1, 2, 3\)"
        ):
            read_heads(files, heads=[1])
        np.savez(tmp_path / "b.npz", q=query.swapaxes(0, 1), k=KEY.swapaxes(0, 1))
        with pytest.raises(InputError, match=r"holds 2 NaN .*, the first at index \(1, 2, 3\)"):
            read_heads([tmp_path / "b.npz"], layout="bshd")


def test_many_pieces_are_checked(tmp_path):
    query = np.zeros((3, 70000, 8), np.float32)
    query[1, 69999, 7] = np.inf
    query[2, 0, 0] = np.nan
    files = write(tmp_path / "a.npy", query, query[:, :5])
    refused(r"a?q\.npy: query holds 2 NaN or infinite values, the first at index \(1, 69999, 7\)$", files)


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        ({"n": 0}, r"n must be between 1 and 9, the tokens in the file, got 0"),
        ({"n": 10}, r"n must be between 1 and 9, the tokens in the file, got 10"),
        ({"heads": [0, 4]}, r"heads must be between 0 and 3, the heads in the file, got 4"),
        ({"heads": [1, 1]}, r"heads must name heads once each, got \[1, 1\]"),
        ({"heads": []}, r"heads must name heads once each, got \[\]"),
    ],
)
def test_cuts_that_are_not_there(tmp_path, cut, message):
    with pytest.raises(InputError, match=f"^{message}$"):
        read_heads(write(tmp_path / "a.npy"), **cut)


_SPARSE = """
import json, resource, sys
from pathlib import Path
import numpy as np
from attnscale.cli import main

size, folder = 2**28, Path(sys.argv[1])
np.save(folder / "q.npy", np.zeros((8, 4, 128), np.float32))
with (folder / "k.npy").open("wb") as file:  # the numbers are a hole in the file
    header = {"descr": "<f4", "fortran_order": False, "shape": (8, 65536, 128)}
    np.lib.format.write_array_header_1_0(file, header)
    file.truncate(file.tell() + size)
places = {"q": ([8, 4, 128], 0, 2**13), "k": ([8, 131072, 128], 2**13, 2**13 + size)}
entries = {
    name: {"dtype": "BF16", "shape": shape, "data_offsets": ends} for name, (shape, *ends) in places.items()
}
with (folder / "b.safetensors").open("wb") as file:
    text = json.dumps(entries).encode()
    file.write(len(text).to_bytes(8, "little") + text)
    file.truncate(file.tell() + 2**13 + size)

used = int(next(x for x in open("/proc/self/status") if x.startswith("VmData")).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + 100 * 2**20,) * 2)
for files in (["q.npy", "k.npy"], ["b.safetensors"]):
    paths = [str(folder / file) for file in files]
    assert main(["entropy", *paths, "--laws", "standard"]) == 0, files
assert main(["calibrate", *paths, "--laws", "log_n", "--n", "32", "64"]) == 0
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc, and a limit of private memory")
def test_files_larger_than_the_memory(tmp_path):
    """Keys of 256 MiB in 100 MiB."""
    pytest.importorskip("ml_dtypes")
    done = subprocess.run([sys.executable, "-c", _SPARSE, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def changed(path, place, new):
    """Replace bytes of a file."""
    content = bytearray(path.read_bytes())
    content[place : place + len(new)] = new
    path.write_bytes(content)


def lie_about_the_shape(path):
    with io.BytesIO() as stream:
        np.save(stream, QUERY)
        content = stream.getvalue().replace(b"(4, 9, 8)", b"(4, 9, 9)")
    method = zipfile.ZIP_DEFLATED if "packed" in path.name else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("query.npy", content)


def lie_in_the_list(path):
    """A size in the archive's list, 24 bytes into the second entry of it."""
    content = path.read_bytes()
    changed(path, content.rindex(b"PK\x01\x02") + 20, (100).to_bytes(4, "little") * 2)


def lie_in_the_header(path):
    """A size in the 64-bit field of the first member's header, behind its name."""
    changed(path, 30 + len("query.npy") + 4, (100).to_bytes(8, "little"))


def cut_the_end(path):
    path.write_bytes(path.read_bytes()[:-200])


def flip_a_bit(path):
    changed(path, 300, bytes([path.read_bytes()[300] ^ 4]))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lie_about_the_shape, r"query\.npy says 1296 bytes of numbers, and the archive 1152"),
        (lie_in_the_list, r"key\.npy"),
        (lie_in_the_header, r"the header of query\.npy and the archive's list say different sizes"),
        (cut_the_end, ""),
        (flip_a_bit, "query"),
    ],
)
def test_archives_that_lie(tmp_path, packed, damage, message):
    path = tmp_path / ("packed.npz" if packed else "a.npz")
    (np.savez_compressed if packed else np.savez)(path, query=QUERY, key=KEY)
    damage(path)
    refused(rf"^{path}: .*{message}", [path])


def test_a_checksum_is_compared_where_all_is_read(tmp_path):
    long = np.ones((2, 3000, 8), np.float32)  # zipfile compares the checksums of short members itself
    (path,) = write(tmp_path / "a.npz", long, long)
    changed(path, 90000, bytes([path.read_bytes()[90000] ^ 1]))
    refused(r"a\.npz: query is damaged: its checksum does not fit its bytes$", [path])
    assert read_heads([path], n=3).query.shape == (2, 3, 8)  # a part has none


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_arrays_of_one_name(tmp_path):
    (path,) = write(tmp_path / "a.npz")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("q.npy", b"")
    refused(r"a\.npz: not a readable \.npz file \(it has two arrays 'q'\)", [path])
    text = b'{"q": {"dtype": "F32"}, "q": {"dtype": "F32"}}'
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    refused(r"a\.safetensors: not a readable .* \(its header has the key 'q' twice\)", [path])


def test_files_that_end_early(tmp_path):
    q, k = write(tmp_path / "a.npy")
    k.write_bytes(k.read_bytes()[:-1])
    refused(r"k\.npy: .* \(its header says 1152 bytes of numbers, the file has 1151\)", [q, k])
    for name in ("empty.npy", "empty.npz"):
        (tmp_path / name).touch()
        files = [tmp_path / name] * (2 if name.endswith("y") else 1)
        refused(rf"{name}: not an \{name[5:]} file, but an empty one$", files)


@pytest.mark.torch
def test_torch_files_without_torch(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    query, key = torch.tensor(QUERY), torch.tensor(KEY).bfloat16()
    across = key.transpose(0, 1).contiguous().transpose(0, 1)  # heads beside each other
    torch.save(
        {"q": query[:, 1:], "k": across, "layers": torch.arange(4), "heads": [0] * 4}, tmp_path / "a.pt"
    )
    torch.save(torch.nn.Parameter(query), tmp_path / "q.pt")
    torch.save(query, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    torch.save({"q": query, "k": query, "more": torch.Size([3])}, tmp_path / "size.pt")
    old = [tmp_path / "old.pt"] * 2
    assert_read_query = [read_heads(files).query for files in (old, [tmp_path / "size.pt"])]
    monkeypatch.setitem(sys.modules, "torch", None)
    heads = read_heads([tmp_path / "a.pt"])
    np.testing.assert_array_equal(heads.query, QUERY[:, 1:])
    np.testing.assert_array_equal(heads.key.astype(np.float32), key.float().numpy())
    assert heads.names == ("L0 H0", "L1 H0", "L2 H0", "L3 H0")
    for found in (read_heads([tmp_path / "q.pt"] * 2).query, *assert_read_query):
        np.testing.assert_array_equal(found, QUERY)
    refused(r"old\.pt: reading \.pt needs PyTorch: pip install torch", old)


@pytest.mark.parametrize(("name", "package"), [("a.h5", "h5py"), ("a.zarr", "zarr")])
def test_formats_of_packages_that_are_not_installed(tmp_path, monkeypatch, name, package):
    (tmp_path / name).touch()
    monkeypatch.setitem(sys.modules, package, None)
    refused(rf"{name}: reading \{name[1:]} needs {package}: pip install {package}$", [tmp_path / name])
