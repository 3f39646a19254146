"""Files are checked before they are read, and written in one step."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from omnidraft.text.errors import OmnidraftError
from omnidraft.text.files import check_readable, check_writable, default_folder, make_folder_of, read_json, write_text


def test_a_text_is_on_the_disk_before_its_name_is(tmp_path, monkeypatch):
    path, steps = tmp_path / "figures.json", []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, name=name, real=real: (steps.append(name), real(*a)))
    write_text(path, "new")
    assert steps == ["fsync", "replace", "fsync"]  # the file, its name, the folder that holds the name
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_text(tmp_path, monkeypatch):
    path = tmp_path / "figures.json"
    write_text(path, "old")
    for error, seen in ((OSError(28, "No space left on device"), OmnidraftError), (KeyboardInterrupt, KeyboardInterrupt)):
        def fail(*_, error=error):
            raise error

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(seen):
            write_text(path, "new")
        assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_devices_and_pipes(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OmnidraftError, match="not an ordinary file"):
        read_json(pipe)
    with pytest.raises(OmnidraftError, match="cannot write"):  # a pipe that nobody reads
        write_text(pipe, "text")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "text")
    assert os.read(reader, 9) == b"text"
    os.close(reader)
    check_writable(pipe, None)
    write_text(check_null := tmp_path / "null", "")
    check_null.unlink()
    check_null.symlink_to(os.devnull)
    write_text(check_null, "text")
    assert check_null.is_symlink()


def test_a_file_without_permission(tmp_path, monkeypatch):
    (tmp_path / "weights").write_text("x")
    check_readable(tmp_path / "weights")
    monkeypatch.setattr(os, "access", lambda path, how: False)  # because root may read everything
    with pytest.raises(OmnidraftError, match="not readable"):
        check_readable(tmp_path / "weights")


def test_what_cannot_be_written_is_found_before(tmp_path):
    (tmp_path / "file").write_text("kept")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for path in (tmp_path, tmp_path / "none" / "a", tmp_path / "file" / "a", tmp_path / "circle"):
        with pytest.raises(OmnidraftError, match="cannot write") as caught:
            check_writable(None, path)
        assert "\n" not in str(caught.value)
    check_writable(tmp_path / "file", tmp_path / "new")
    assert (tmp_path / "file").read_text() == "kept" and not (tmp_path / "new").exists()


def test_a_name_may_be_as_long_as_the_system_allows(tmp_path):
    for name in ("j" * 250 + ".json", "日" * 83 + ".json"):
        check_writable(tmp_path / name)
        write_text(tmp_path / name, "text")
        assert (tmp_path / name).read_text() == "text"
    for check in (check_writable, make_folder_of):
        with pytest.raises(OmnidraftError, match="cannot write .*: File name too long; choose another place"):
            check(tmp_path / ("j" * 256))


def test_files_without_a_size_are_not_read(tmp_path):
    """Some files of /proc are waited for without end; some have no end."""
    (tmp_path / "config.json").symlink_to("/proc/self/maps")
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "gone.json").symlink_to("nowhere")  # as in a hub's cache whose files were removed
    for name in ("config.json", "empty.json", "gone.json"):
        if os.path.lexists(tmp_path / name):
            with pytest.raises(OmnidraftError, match="is missing, empty, not an ordinary file"):
                read_json(tmp_path / name)


def test_json_of_another_kind(tmp_path):
    path = tmp_path / "config.json"
    assert read_json(path) == {}
    for text in ("{", "[]", "[" * 100_000, '{"a": 1}x'):
        path.write_text(text)
        with pytest.raises(OmnidraftError, match="not readable JSON"):
            read_json(path)
    path.write_text("[" + "[]," * 2**24 + "[]]")
    with pytest.raises(OmnidraftError, match="bytes"):
        read_json(path)


def test_without_a_home_folder(monkeypatch):
    def unknown():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    monkeypatch.delenv("OMNIDRAFT_HOME", raising=False)
    nowhere = default_folder()
    assert not nowhere.exists() and not [*nowhere.glob("*/*")]
    with pytest.raises(OmnidraftError, match="cannot write .*set-OMNIDRAFT_HOME"):
        make_folder_of(nowhere / "any")
    monkeypatch.setenv("OMNIDRAFT_HOME", "home")
    assert default_folder() == Path("home")
