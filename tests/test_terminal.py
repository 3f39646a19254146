"""Text from a file, a folder's name or a model is escaped before it reaches the terminal."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_cli import ROOT, folders, ok, own_caches, run  # noqa: F401 (fixtures)

from omnidraft.cli.printing import emit, escape, note, say

EVIL = "evil\x1b[31m\x1b]52;c;ZXZpbA==\x07\x9b2J"  # colours, writes the clipboard, clears the screen
UNSAFE = set(map(chr, [*range(9), *range(11, 32), *range(127, 160)]))


@pytest.fixture
def evil(folders, tmp_path) -> list[str]:  # noqa: F811
    """A drafter and a target in folders whose names have control sequences."""
    return ["-d", shutil.copytree(folders["draft"], tmp_path / f"{EVIL}-draft"),
            "-t", shutil.copytree(folders["target"], tmp_path / f"{EVIL}-target")]


def check(result, *, text: bool = False) -> str:
    """What was shown. `text`: stdout is a model's text, which a pipe gets unchanged."""
    shown = result.stderr if text else result.stdout + result.stderr
    assert not UNSAFE & set(shown), [line for line in shown.splitlines() if UNSAFE & set(line)]
    return shown


COMMANDS = {
    "demo": ["demo", "-n", "4", "--task", "math"],
    "generate": ["generate", "the", "-n", "4"], "chat": ["chat", "-n", "4"],
    "adapt": ["adapt", "math", "--limit", "2", "-n", "4", "--adapters", EVIL],
    "bench": ["bench", "-n", "4", "--count", "1", "--repeats", "1"]}


@pytest.mark.parametrize("command", COMMANDS)
def test_names_of_folders(command, evil, monkeypatch):
    monkeypatch.setattr("omnidraft.cli.generate.on_a_terminal", lambda: True)  # on a terminal the chat shows a greeting
    done = check(ok(*COMMANDS[command], *evil, input="the thing\n"), text=command in ("generate", "chat"))
    assert command == "generate" or r"evil\x1b[31m\x1b]52;c;ZXZpbA==\x07\x9b2J" in done


def test_names_of_folders_in_the_others(evil, tmp_path):
    pair = [evil[1], evil[3]]
    for arguments in (["align", *pair], ["generate", "the", *evil, "--adapter", "x"], ["align", EVIL, EVIL]):
        assert check(run(*arguments)).strip()
    ok("adapt", "math", *evil, "--limit", "2", "-n", "4", "--adapters", tmp_path / EVIL)
    listed = check(ok("adapters", "list", "--adapters", tmp_path / EVIL))
    assert "prompts" in listed and r"\x1b]52" in listed
    name = next((tmp_path / EVIL).iterdir()).name
    assert r"\x1b]52" in check(ok("adapters", "show", name, "--adapters", tmp_path / EVIL))
    assert r"\x1b]52" in check(run("adapters", "delete", name, "--adapters", tmp_path / EVIL, input="n\n"))
    ok("adapters", "export", name, tmp_path / "out", "-d", evil[1], "--adapters", tmp_path / EVIL)
    assert not UNSAFE & set((tmp_path / "out" / "README.md").read_text())


@pytest.mark.parametrize("command", [["generate", "the", "-n", "4", "--adapter", "auto"], ["chat", "-n", "4"],
                                     ["bench", "-n", "4", "--count", "1", "--repeats", "1"], ["demo", "-n", "4", "the"]])
def test_a_name_cannot_forge_a_line(folders, tmp_path, command, monkeypatch):  # noqa: F811
    monkeypatch.setattr("omnidraft.cli.generate.on_a_terminal", lambda: True)
    pair = []
    for role in ("draft", "target"):
        pair += [f"--{role}", shutil.copytree(folders[role], tmp_path / f"{role}\nerror: all is lost\u2028error: forged")]
    result = run(*command, *pair, input="the thing\n")
    shown = result.stderr if command[0] in ("generate", "chat") else result.stdout + result.stderr
    assert not [line for line in shown.splitlines() if line.startswith(("error: all", "error: forged"))]


def test_a_name_cannot_forge_a_line_of_an_error(folders, tmp_path, monkeypatch):  # noqa: F811
    """In a conversation on a terminal, which goes on after an error; in a note about a prompt; in the name of an adapter."""
    pytest.importorskip("jinja2")
    monkeypatch.setattr("omnidraft.cli.generate.on_a_terminal", lambda: True)
    forged = tmp_path / "target\nerror: forged"
    shutil.copytree(folders["target"], forged)
    pair = ["-d", folders["draft"], "-t", forged]
    store = ["--adapters", tmp_path / "kept\nerror: forged"]
    ok("adapt", "math", *pair, "--limit", "2", "-n", "4", *store)
    told = ok("generate", "the", *pair, "-n", "4", "--adapter", "auto", *store).stderr
    told += run("adapters", "delete", next(store[1].iterdir()).name, *store, input="n\n").stderr
    (forged / "chat_template.jinja").write_text(REFUSAL)
    told += ok("chat", *pair, input="the thing\n/exit\n").stderr
    (tmp_path / "prompts.txt").write_text("the thing\n")
    told += run("adapt", tmp_path / "prompts.txt", *pair, "--chat", "--no-save").stderr
    assert told.count("error: forged") >= 4
    assert not [line for line in told.splitlines() if line.startswith("error: forged")]


REFUSAL = r"{{ raise_exception('\x1b]52;c;ZXZpbA==\x07\x1b[2J') }}"


@pytest.mark.parametrize("terminal", [False, True])
def test_errors_of_a_chat_template(folders, tmp_path, monkeypatch, terminal):  # noqa: F811
    """Also on a terminal, where the conversation continues after one."""
    pytest.importorskip("jinja2")
    target = Path(shutil.copytree(folders["target"], tmp_path / "target"))
    (target / "chat_template.jinja").write_text(REFUSAL)
    if terminal:
        monkeypatch.setattr("omnidraft.cli.generate.on_a_terminal", lambda: True)
    result = run("chat", "-d", folders["draft"], "-t", target, input="the thing\nwhy\n/exit\n")
    assert result.exit_code == (0 if terminal else 1)
    assert check(result).count(r"error: the chat template of") == 1 + terminal and r"\x1b]52" in result.stderr


def test_tracebacks(folders, tmp_path):  # noqa: F811
    target = Path(shutil.copytree(folders["target"], tmp_path / "target"))
    (target / "config.json").write_text(json.dumps({"architectures": [EVIL]}))
    done = subprocess.run([sys.executable, "cli.py", "--debug", "generate", "a", "-k", "0", "-t", str(target)], cwd=ROOT,
                          capture_output=True, text=True, check=False)
    assert "Traceback" in done.stderr and r"\x1b]52" in done.stderr and not UNSAFE & set(done.stderr)


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals there")
def test_generate_on_a_terminal_says_who_drafts_and_shows_a_bar(folders):  # noqa: F811
    """And breaks its lines between words; the text alone goes to the pipe."""
    import pty

    shown, terminal = pty.openpty()
    done = subprocess.run([sys.executable, "cli.py", "generate", "the thing", "-n", "4", "-d", folders["draft"], "-t",
                           folders["target"], "--no-adaptive", "--threshold", "0"], cwd=ROOT, stdout=subprocess.PIPE,
                          stderr=terminal, check=True, env=os.environ | {"COLUMNS": "60", "TERM": "xterm"})
    os.close(terminal)
    said = os.read(shown, 100_000).decode()
    assert "━" in said and "loading" in said and "tiny-draft drafts for tiny-target\r\n" in said
    last = [line for line in said.split("\r\n") if line][-2:]
    assert "tokens/s" in last[0] and last[1].endswith("merges") and all(len(line) <= 60 for line in last)
    assert b"drafts" not in done.stdout and b"\x1b" not in done.stdout


def test_characters_that_text_needs_are_shown_and_other_invisible_ones_are_not():
    for text in ("\u0645\u06cc\u200c\u062e", "\U0001f468\u200d\U0001f469", "\u06dd\u0661", "\u0600\u0661"):
        assert escape(text) == text
    hidden = "\u202e\u2066\u200f\u200e\u200b\u2060\ufeff\u00ad\u2028\U000e0061\ue000"
    assert escape(hidden) == hidden.encode("unicode_escape").decode()
    smuggled = "\U0001f3f4" + "\U000e0068" * 20
    assert escape(smuggled).count("\\U000e0068") == 20


def test_what_is_printed_is_escaped_in_one_place(capsys):
    """Commands print only by `say`, `note` and `emit`, or with Rich's consoles."""
    say(EVIL), note(EVIL), emit({"text": EVIL})
    shown = capsys.readouterr()
    assert not UNSAFE & set(shown.out + shown.err)
    for path in (ROOT / "omnidraft" / "cli").glob("*.py"):
        calls = [node.func.id for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                 if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        assert path.name == "printing.py" or "print" not in calls, path.name


def test_a_terminal_without_a_width_is_shown_everything(folders, monkeypatch):  # noqa: F811
    """Rich prints nothing in 0 columns, which some programs set in the environment of their children."""
    monkeypatch.setenv("COLUMNS", "0")
    monkeypatch.setenv("LINES", "0")
    for command in (["demo", "the thing", "-n", "8"], ["bench", "-n", "8", "--count", "1", "--repeats", "1"]):
        done = ok(*command, "-d", folders["draft"], "-t", folders["target"])
        assert done.stdout.strip() and "speedup" in done.output and "block" in done.output
    assert "draft" in ok("align", folders["draft"], folders["target"], "the").stdout
