"""Files that are whole or not there, and notice a changed byte."""

from __future__ import annotations

import os
import stat
import time

import pytest
import torch

from cpr_wrap import _files
from cpr_wrap._files import digest, read_sealed, write_atomically, write_sealed, write_tensors
from tests.processes import run

LAYOUT = "cpr-wrap test, layout 1"


@pytest.fixture(autouse=True)
def _nothing_swept():
    _files._remove_leftovers.cache_clear()


def names(folder):
    return {entry.name for entry in folder.iterdir()}


def test_a_digest_depends_on_type_shape_and_bytes():
    a = torch.arange(4.0)
    assert digest(a) == digest(a.clone()) == digest(torch.arange(8.0)[:4])
    assert len({digest(a), digest(a.int()), digest(a.view(2, 2)), digest(a + 1)}) == 4
    assert digest("ab") == digest(b"ab") == digest("a", "b")
    assert digest(torch.tensor(1.0), torch.zeros(0), torch.zeros(2, dtype=torch.bfloat16))
    assert digest(torch.zeros(3, 0).long().expand(3, 0)) != digest(torch.zeros(0).long())


def test_files_are_written_and_replaced(tmp_path):
    file = tmp_path / "new" / "file"
    write_atomically(file, b"one")
    write_atomically(file, "zwölf")
    assert file.read_bytes() == "zwölf".encode()
    assert names(file.parent) == {"file"}


@pytest.mark.parametrize("umask", [0o022, 0o027])
def test_files_get_the_permissions_of_their_neighbours(tmp_path, umask):
    before = os.umask(umask)
    try:
        (tmp_path / "neighbour").write_bytes(b"")
        write_atomically(tmp_path / "file", b"")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("neighbour", "file")}
    assert modes == {0o666 & ~umask}


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    write_atomically(tmp_path / "file", b"old")

    def fail(handle):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == {"file"}


def test_leftovers_of_killed_writers_are_removed_and_files_under_way_are_not(tmp_path):
    old, young = tmp_path / ".part-old", tmp_path / ".part-young"
    for file in (old, young):
        file.write_bytes(b"half")
    hours_ago = time.time() - 3 * 3600
    os.utime(old, (hours_ago, hours_ago))
    write_atomically(tmp_path / "file", b"")
    assert names(tmp_path) == {"file", ".part-young"}


def test_what_a_writer_that_was_killed_just_now_left_is_removed(tmp_path):
    program = (
        "import os, sys; from pathlib import Path; from cpr_wrap import _files\n"
        "os.fsync = lambda _: os.kill(os.getpid(), 9)\n"
        "_files.write_atomically(Path(sys.argv[1]), b'half')"
    )
    assert run("-c", program, str(tmp_path / "file")).returncode == -9
    (left,) = names(tmp_path)
    assert left.startswith(".part-")
    mine = left.replace(f"-{left.split('-')[-2]}-", f"-{os.getpid()}-")
    (tmp_path / mine).write_bytes(b"of a writer that is alive")
    write_atomically(tmp_path / "file", b"whole")
    assert names(tmp_path) == {"file", mine}


def test_tensors_are_written_contiguous_and_readable_by_the_group(tmp_path):
    from safetensors.torch import load_file

    odd = torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)
    before = os.umask(0o027)
    try:
        write_tensors(tmp_path / "file", {"a": odd, "b": odd[:, :1]})
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
    read = load_file(tmp_path / "file")
    assert torch.equal(read["a"], odd)
    assert torch.equal(read["b"], odd[:, :1])


def test_a_leftover_that_cannot_be_removed_does_not_stop_the_writer(tmp_path):
    folder = tmp_path / ".part-folder"
    folder.mkdir()
    hours_ago = time.time() - 3 * 3600
    os.utime(folder, (hours_ago, hours_ago))
    write_atomically(tmp_path / "file", b"whole")
    assert (tmp_path / "file").read_bytes() == b"whole"


def test_sealed_content_comes_back(tmp_path):
    for content in ({}, {"text": "\n\nabc", "numbers": [1, 2.5, None, {"deep": True}]}):
        write_sealed(tmp_path / "file", LAYOUT, content)
        assert read_sealed(tmp_path / "file", LAYOUT) == content


def test_sealed_tensors_keep_their_strides(tmp_path):
    odd = torch.arange(6.0).view(2, 3).t()
    write_sealed(tmp_path / "file", LAYOUT, {"odd": odd})
    found = read_sealed(tmp_path / "file", LAYOUT)["odd"]
    assert torch.equal(found, odd)
    assert found.stride() == odd.stride()


def test_every_flipped_byte_and_every_cut_is_noticed(tmp_path):
    file = tmp_path / "file"
    write_sealed(file, LAYOUT, {"some": "data"})
    whole = file.read_bytes()
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 0x04
        for damaged in (bytes(flipped), whole[:place]):
            file.write_bytes(damaged)
            with pytest.raises(RuntimeError, match="file is damaged: its content does not match"):
                read_sealed(file, LAYOUT)


def test_another_layout_is_not_damage(tmp_path):
    write_sealed(tmp_path / "file", "cpr-wrap test, layout 2", {"some": "data"})
    with pytest.raises(ValueError, match=r"another version of cpr-wrap, not as .* layout 1'"):
        read_sealed(tmp_path / "file", LAYOUT)
    (tmp_path / "file").write_bytes(b"PK, from before files were sealed")
    with pytest.raises(ValueError, match="another version"):
        read_sealed(tmp_path / "file", LAYOUT, older=b"PK")
    with pytest.raises(RuntimeError, match="damaged"):
        read_sealed(tmp_path / "file", LAYOUT)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_sealed(tmp_path / "nowhere", LAYOUT)
