"""The prompts that the documents suggest get right answers: sums, functions that pass, stories on the topic."""

import importlib.util
import json
import re
import shlex
import shutil
from functools import cache
from pathlib import Path

import ggufs
import pytest
from test_cli import embedded
from typer.main import get_command
from typer.testing import CliRunner

from benchmarks.quality import answer, check
from omnidraft import load, pair
from omnidraft.cli import app
from omnidraft.cli.demo import USUAL
from recipes.other import ANSWER

ROOT = Path(__file__).resolve().parent.parent
# Strings given to a command or a call, or named `prompt` in a lesson.
EMBEDDED = ROOT / "omnidraft" / "engine" / "embedded"
PROMPT = re.compile(r"""(?:\bgenerate (?:--chat )?|\b(?:generate|stream)\(|^prompt = )(["'])(.+?)\1""", re.M)
PAGES = ("README.md", "docs/cli.md", "docs/learning.md", "omnidraft/__init__.py", "omnidraft/cli/app.py",
         "omnidraft/pairs/pair.py", *(f"tutorials/0{n}_*.py" for n in range(1, 10)))
RIGHT = {  # the number; the asserts; a story if it has neither
    "Ann has 3 boxes of 12 pens. How many pens does she have?": 36,
    "A book costs $6. How much do 4 books cost?": 24,
    "Ben has 24 marbles. He gives 6 to Mia and 4 to Tom. How many marbles are left?": 14,
    "Write a Python function that adds two numbers.": ["assert add(2, 3) == 5", "assert add(-4, 4) == 0"],
    "Write a Python function named `dot` that returns the dot product of two lists.": ["assert dot([1, 2], [3, 4]) == 11"],
    "Write a story about a dog.": None,
    "Write a story about a boy named Tom who finds a red boat at the lake.": None,
    "Once upon a time": None,
    "Once": None,
}


def suggested() -> dict[str, list[str]]:
    """Each prompt of the documents, the demo and the page that plays rounds, with its place."""
    found: dict[str, list[str]] = {}
    for page in (path for pattern in PAGES for path in ROOT.glob(pattern)):
        for _, prompt in PROMPT.findall(page.read_text(encoding="utf-8")):  # \n is written as two characters
            found.setdefault(prompt.replace("\\n", "\n"), []).append(page.name)
    spec = importlib.util.spec_from_file_location("play", ROOT / "docs" / "play.py")
    play = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(play)
    for prompt in (*USUAL.values(), *(scene[2] for scene in play.SCENES)):
        found.setdefault(prompt, []).append("demo or play")
    return found


def check_answer(prompt: str, text: str):
    right = RIGHT[prompt]
    task = "math" if isinstance(right, int) else "code" if right else "text"
    marks = check(task, {"prompt": prompt, "answer": right, "tests": right}, text)
    assert all(marks.values()), (prompt, text, marks)


@cache
def model(name: str):
    return load(name)


def test_every_suggested_prompt_is_known():
    found = suggested()
    assert set(found) == set(RIGHT), found
    pages = {page for where in found.values() for page in where}
    assert {"README.md", "cli.md", "01_speculative_decoding.py", "demo or play"} <= pages


@embedded
@pytest.mark.parametrize("prompt", RIGHT)
def test_the_usual_target_is_right(prompt):
    check_answer(prompt, answer(model("qwen-like"), prompt, 200))


@embedded
@pytest.mark.parametrize("prompt", USUAL.values())
def test_the_other_target_is_right_in_the_demo(prompt):
    check_answer(prompt, answer(model("llama3-like"), prompt, 200))


@embedded
@pytest.mark.parametrize("prompt", ["hello", "How many planets are there?", "asdf"])
def test_all_else_gets_the_honest_answer(prompt):
    assert answer(model("qwen-like"), prompt, 40).strip() == ANSWER.strip()


@embedded
def test_a_sampled_story_reads_as_one():
    """The README's story, drawn at temperature 0.8, has no invented words."""
    seed = int(re.search(r"stream\(.+ temperature=0.8, seed=(\d+), ", (ROOT / "README.md").read_text(encoding="utf-8"))[1])
    made = pair("draft-tasks", "qwen-like").generate(
        "Once upon a time", do_sample=True, temperature=0.8, seed=seed, max_new_tokens=200)
    check_answer("Once upon a time", made.text)
    told = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "omnidraft" / "data").glob("*.jsonl")).lower()
    assert [word for word in re.findall(r"[a-z]+", made.text.lower()) if not re.search(rf"\b{word}\b", told)] == []


@embedded
def test_the_drawn_idea_is_what_the_tokenizers_do():
    """The README's drawing: the drafter's tokens, and the merge into one target token."""
    drawn = (ROOT / "README.md").read_text(encoding="utf-8").split("## The idea")[1].split("```")[1]
    draft = re.search(r"draws +((?:\S+ +)+) +one cheap pass each", drawn)[1].split()
    target = re.search(r"^ +(\S+(?: +\S+)*?) +merge \"(.+)\"\+\"(.+)\"", drawn, re.M)
    text = "".join(draft).replace("▁", " ").strip()
    ours, theirs = (model(name).tokenizer for name in ("draft-tasks", "qwen-like"))
    assert [ours.strings[token] for token in ours.encode(text)][-len(draft):] == draft
    assert [theirs.decode_bytes([token]).decode().strip() for token in theirs.encode(text)] == target[1].split()
    assert "".join(target.groups()[1:]).strip("▁") in target[1].split()


@embedded
def test_chat_says_what_it_knows_and_reads_each_message_by_itself(monkeypatch):
    from omnidraft.cli import generate as chat

    monkeypatch.setattr(chat, "on_a_terminal", lambda: True)
    said = CliRunner().invoke(app, ["chat", "-n", "40"], input=f"{[*RIGHT][0]}\nhello\n")
    assert "word problems and writes short Python functions and stories" in said.stderr
    assert "#### 36" in said.stdout and said.stdout.rstrip().endswith(ANSWER.strip())


# ------------------------------------------------------------------------------------------- the examples of the help
SHORT = {"demo": ["-n", "8"], "adapt": ["--limit", "2", "-n", "8"], "bench": ["--count", "1", "--repeats", "1", "-n", "8"]}


def of_the_help() -> list[str]:
    """All examples at the end of the commands' help."""
    found: list[str] = []
    for name, command in get_command(app).commands.items():
        helps = [CliRunner().invoke(app, [name, *sub, "-h"], env={"COLUMNS": "200"}).output.partition("Examples:")[2]
                 for sub in ([[sub] for sub in command.commands] if hasattr(command, "commands") else [[]])]
        shown = "\n".join(helps)
        found += [line.strip() for line in shown.splitlines() if line.strip()]
    return [*dict.fromkeys(found)]


@embedded
def test_examples_of_the_help_print_something(tmp_path, monkeypatch):
    """Each runs, shortened, in a folder with the files it names; except those that need PyTorch and a hub."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMNIDRAFT_HOME", str(tmp_path / "cache"))
    for name, folders in (("draft-tasks", "my-drafter llama2-32k a"), ("qwen-like", "my-target qwen2-151k b")):
        for folder in folders.split():
            shutil.copytree(EMBEDDED / name, folder)
    ggufs.install(tmp_path, monkeypatch)
    prompt = [*RIGHT][0]
    lines = {"prompt.txt": prompt, "prompts.txt": prompt, "questions.txt": f"{prompt}\n",
             "prompts.jsonl": json.dumps({"prompt": prompt}) + "\n", "my.jsonl": json.dumps({"prompt": prompt}) + "\n",
             "gsm8k.jsonl": json.dumps({"prompt": prompt}) + "\n"}
    for name, text in lines.items():
        Path(name).write_text(text, encoding="utf-8")
    examples, ran = of_the_help(), 0
    for example in examples:
        assert example.startswith(("omnidraft ", "cat ")), example
        before, _, line = example.rpartition(" | ")
        words, given = shlex.split(line)[1:], before.removeprefix("cat ")
        if "torch" in words or words[0] == "play" or words[:2] == ["tutorial", "1"]:  # play serves until it is ended
            continue
        if "<" in words:
            given = words[words.index("<") + 1]
            words = words[:words.index("<")]
        result = CliRunner().invoke(app, [*words, *SHORT.get(words[0], []), *["--worlds", "3"] * ("exactness" in words)],
                                    input=lines[given or "questions.txt"])
        assert result.exit_code == 0, (example, result.output, result.exception)
        assert (result.stdout + result.stderr).strip(), example
        ran += 1
    assert ran > 20
