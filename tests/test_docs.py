"""The documents are right: generated pages are up to date, code blocks run, links work, the lessons' site builds."""

from __future__ import annotations

import doctest
import html
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

import ggufs
import pytest
from test_cli import embedded
from typer.testing import CliRunner

import omnidraft

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("*/*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LEARNING = (ROOT / "docs" / "learning.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
EMBEDDED = ROOT / "omnidraft" / "engine" / "embedded"
CONSOLE = [line for block in re.findall(r"```console\n(.*?)```", README + LEARNING + CONTRIBUTING, re.S)
           for line in block.splitlines()]
COMMANDS = [shlex.split(line.replace("$'", "'").replace(r"\n", "\n"), comments=True)[1:]
            for line in CONSOLE if line.startswith("omnidraft ")]


@pytest.mark.parametrize("build", [["docs/build.py"], ["docs/api.py"],
                                   ["-m", "benchmarks.report"], ["docs/reliability.py"]],
                         ids=["cli", "api", "results", "reliability"])
def test_generated_pages_are_fresh(build):
    if build == ["docs/build.py"] and tuple(map(int, version("typer").split(".")[:2])) < (0, 26):
        pytest.skip("an older typer words its help otherwise")
    done = subprocess.run([sys.executable, *build, "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_each_promise_names_tests_that_are_there():
    pytest.importorskip("resource")
    import soak

    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    there = {name for path in ROOT.glob("tests/test_*.py") for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)}
    promises = page.partition("## What is promised\n")[2].partition("\n## ")[0].strip().split("\n- ")
    for promise in promises:
        tests = re.sub(r"\s+", " ", promise).partition(" Tests: ")[2]
        named, parts = re.findall("`(test_.*?)`", tests), re.findall("`(.*?)`", tests.partition("soak ")[2])
        assert named and {*named} <= there and {*parts} <= soak.WHOLE.keys(), promise
    assert len(promises) > 9


def test_the_runs_of_the_soak_test_are_those_that_it_has_now():
    pytest.importorskip("resource")
    import soak

    runs = json.loads(soak.RECORD.read_text())
    assert {part: run["full"] for part, run in runs.items()} == soak.WHOLE
    assert all(run["run"] > 0 and run["failures"] == 0 for run in runs.values())


def test_a_run_of_the_soak_test_is_recorded(tmp_path, monkeypatch):
    pytest.importorskip("resource")
    import soak

    monkeypatch.setattr(soak, "RECORD", tmp_path / "runs.json")
    soak.RECORD.write_text('{"losses": {"run": 1}, "kills": {"run": 2}}')
    monkeypatch.setattr(sys, "argv", ["soak.py", "losses", "--scale", "0.02", "--record"])
    with pytest.raises(SystemExit) as end:
        soak.main()
    runs = json.loads(soak.RECORD.read_text())
    assert end.value.code == 0 and runs["kills"] == {"run": 2}
    assert re.fullmatch(r"\d+ steps of 4 saves", runs["losses"].pop("counts")) and runs["losses"].pop("date")
    assert runs["losses"] == {"full": 50, "run": 1, "failures": 0}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}, link


@embedded
def test_python_blocks_of_the_readme_run():
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert blocks
    for block in blocks:
        done = subprocess.run([sys.executable, "-c", block], cwd=ROOT, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0 and done.stdout.strip(), done.stderr


@pytest.mark.parametrize("module", [*(path.stem for path in sorted((ROOT / "omnidraft").glob("[a-z]*.py"))
                                      if "    >>> " in path.read_text(encoding="utf-8")), "pairs.pair"])
def test_examples_in_the_docstrings_of_the_lesson_are_right(module):
    if module.endswith("_torch"):
        pytest.importorskip("torch")
    found = doctest.testmod(importlib.import_module(f"omnidraft.{module}"), extraglobs={"omnidraft": omnidraft})
    assert found.attempted and not found.failed


def test_the_reading_order_lists_each_file_of_the_lesson_once():
    text = (ROOT / "docs" / "reading.md").read_text(encoding="utf-8").partition("<!-- files:begin -->")[2]
    listed = re.findall(r"^\| \[`([\w/]+)\.py`\]", text, re.M)
    there = {path.stem for path in (ROOT / "omnidraft").glob("[a-z]*.py") if not path.stem.endswith("_torch")}
    assert sorted(name for name in listed if "/" not in name) == sorted(there)
    assert listed[:9] == ["verification", "vocabulary", "ngram_cache", "translation", "lifting", "drafting", "decoding",
                          "losses", "stopping"]


def test_the_note_has_four_pages():
    """Four pages of 600 words; all of its figures are generated."""
    note = (ROOT / "docs" / "note.md").read_text(encoding="utf-8")
    assert len(note.split()) <= 2400
    assert not re.search(r"\d ?(%|×|µs|ms)", re.sub(r"<!-- note:begin -->.*<!-- note:end -->", "", note, flags=re.S))


def test_commands_of_the_readme_exist():
    from typer.main import get_command

    from omnidraft.cli import app

    commands = get_command(app).commands
    assert len(COMMANDS) > 10
    for words in COMMANDS:
        command = commands[words[0]]
        command = command.commands[words[1]] if hasattr(command, "commands") else command
        known = {opt for param in command.params for opt in [*param.opts, *param.secondary_opts]}
        assert {word for word in words[1:] if re.match(r"--?[a-z]", word)} <= known, words


@embedded
def test_commands_of_the_readme_run(tmp_path, monkeypatch):
    """Run one after another, shortened, with copies of shipped files in place of the reader's own."""
    from omnidraft.cli import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMNIDRAFT_HOME", str(tmp_path / "cache"))
    Path("docs").mkdir()
    for place in ("prompts.jsonl", "docs/prompts.jsonl"):
        shutil.copy(ROOT / "omnidraft" / "data" / "math.jsonl", place)
    for folders, name in ((("path/to/drafter", "my-drafter"), "draft-tasks"), (("path/to/target", "my-target"), "qwen-like")):
        for folder in folders:
            shutil.copytree(EMBEDDED / name, folder)
    Path("path/to/model.gguf").write_bytes(ggufs.install(tmp_path, monkeypatch))
    short = {"demo": ["-n", "8"], "generate": ["-n", "4"], "chat": ["-n", "4"], "adapt": ["--limit", "2", "-n", "8"],
             "bench": ["--count", "1", "--repeats", "1", "-n", "8"]}
    for words in COMMANDS:
        if {"transformers", "smollm2"} & {*words} or words[-1].endswith(".gguf"):  # not in the package
            continue
        result = CliRunner().invoke(app, [*words, *short.get(words[0], [])], input="Hello\n")
        assert result.exit_code == 0 and result.output.strip(), (words, result.stderr, result.exception)


def test_make_targets_of_the_documents_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for line in CONSOLE:
        if line.startswith("make "):
            assert re.search(rf"^{line.split()[1]}:", makefile, re.M), line


def test_names_in_backticks_of_contributing_exist():
    sources = "".join(path.read_text(encoding="utf-8") for path in (*ROOT.glob("omnidraft/**/*.py"), *ROOT.glob("tests/*.py")))
    for name in set(re.findall(r"`(?:\w+\.)?([A-Za-z_]\w+)`", CONTRIBUTING)) - {"mine", "py", "numpy"}:
        assert re.search(rf"\b{name}\b", sources), name


def test_the_sample_of_prompts_is_enough_to_measure_a_gain():
    from omnidraft.cli.adapt import ENOUGH, held_out_share
    from omnidraft.cli.prompts import read_prompts
    from omnidraft.learning.online import is_held_out

    prompts = list(read_prompts(str(ROOT / "docs" / "prompts.jsonl"))[0])
    share = held_out_share(prompts)
    assert len(set(prompts)) == 48 and sum(is_held_out(one, share) for one in prompts) >= ENOUGH


def test_the_demo_is_the_first_picture_and_terms_come_before_the_second():
    demo, page = README.index("](docs/demo.svg)"), README.index("](docs/play.png)](omnidraft/data/play.html)")
    assert demo < README.index("make demo     #") and demo < page
    assert all(README.index(f"*{term}*") < page for term in ("drafter", "target", "atoms", "trie"))
    assert README.index("P is the\ntarget's distribution") < page and README.index("Q the drafter's") < page
    picture = (ROOT / "docs" / "play.png").read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n" and len(picture) < 150_000
    drawn = ElementTree.parse(ROOT / "docs" / "demo.svg").getroot()
    assert "url(http" not in (ROOT / "docs" / "demo.svg").read_text(encoding="utf-8")
    assert "accepted" in "".join(drawn.itertext()) and "recovered" in "".join(drawn.itertext())
    drawing = (ROOT / "docs" / "demo.svg").read_text(encoding="utf-8")
    colours = re.findall(r"\.demo-r\d+ \{ fill: (#\w+)", drawing)
    assert len(colours) == 8 and len(set(colours)) == 7  # text is drawn in normal and bold; all fates differ


def test_the_readme_is_short_and_the_changelog_what_is_in_the_first_version():
    sentence = README.partition("<!-- result:begin -->")[2].partition("<!-- result:end -->")[0]
    assert len(re.findall(r"\d\.\d times", sentence)) >= 2 and len(sentence.split()) < 50
    lines = README.splitlines()
    assert len(lines) <= 150 and max(map(len, lines)) <= 200
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert len(changes.splitlines()) <= 60 and "efore:" not in changes


# ---- the lessons' site -----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def site():
    spec = importlib.util.spec_from_file_location("site_builder", ROOT / "docs" / "site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_page(text: str, folder: Path | None = None):
    assert "<script" not in text and "<link" not in text and "<img" not in text and "@import" not in text
    for link, place in re.findall(r"""(?:src|href)=["']([^"'#]*)#?([^"']*)""", text):
        assert "://" not in link and (not link or folder is None or (folder / link).is_file()), link
        assert link or f'id="{place}"' in text, place


def test_every_lesson_is_in_the_readme_and_in_the_site(site):
    index, terms = site.index_page(site.tutorial.lessons()), site.glossary_page(site.tutorial.lessons())
    check_page(index)
    check_page(terms)
    for number, path in site.tutorial.lessons().items():
        assert f"[{number}](tutorials/{path.name})" in README
        assert f'<h2><a href="{path.stem}.html">{number} · ' in index
    assert all(f'id="{place}"' in terms for place in site.glossary())


def test_output_has_colours_signs_and_python(site):
    shown = site.output("# omnidraft/a.py, line 3\ndef f():\n    return 1\n\n\x1b[32m We\x1b[0m\x1b[9;31m<b>\x1b[0m\n█ 1.0\n")
    assert '<span class="k">def</span>' in shown and "█ 1.0" in shown
    assert ' <span class="fate green" data-sign="+">We</span>' in shown
    assert '<span class="fate strike red" data-sign="-">&lt;b&gt;</span>' in shown


def test_bold_terms_lead_to_the_glossary(site):
    made = site.prose("A **false rejection** and **draft tokens**.")
    assert 'href="glossary.html#false-rejection"' in made and 'href="glossary.html#draft-token"' in made


@pytest.mark.parametrize(("line", "equations"), [
    ("draw x from q, accept it with probability   min(1, p(x) / q(x));", ["x", "q", "min(1,p(x)q(x))"]),
    ("r(x) = max(0, p(x) - q(x)) / sum_y max(0, q(y))", ["r(x)=max(0,p(x)−q(x))∑ymax(0,q(y))"]),
    ("P(stop) = the rest       t is the token of a node", ["P(stop)=", "t"]),
    ("each I-th prompt for t   theta_t <- theta_t - step", ["t", "θt←θt−"])])
def test_equations_become_mathml_and_words_stay(site, line, equations):
    shown = site.prose(f"Text:\n\n    {line}\n").partition("<table>")[2]
    found = re.findall(r"<math.*?</math>", shown)
    assert [html.unescape(re.sub("<.*?>", "", one)) for one in found] == equations
    assert ["<mfrac>" in one for one in found] == [" / " in line and len(one) > 500 for one in found]
    assert ["<munder>" in one for one in found] == ["∑" in text for text in equations]
    for words in ("accept it with probability", "the rest", "is the token of a node", "each I-th prompt for", "step"):
        assert (words in shown) == (words in line)


def test_among_words_only_whole_equations_are_set(site):
    made = site.prose("UTF-8, lesson 2 · An a after a b: p(x) and beta = 0.2 +\n0.4, so k - 1; P_i; p = nothing; docs/a.md.")
    assert [html.unescape(re.sub("<.*?>", "", one)) for one in re.findall(r"<math.*?</math>", made)] == [
        "p(x)", "β=0.2+0.4", "k−1", "Pi"]
    assert "An a after a b: " in made and "UTF-8, lesson 2 · An" in made and "docs/a.md" in made


def test_a_drawing_stays_a_drawing(site):
    assert '<pre class="equation">root ─ a &lt;</pre>' in site.prose("Text:\n\n    root ─ a <\n")


@embedded
def test_a_lesson_becomes_a_page(tmp_path):
    done = subprocess.run([sys.executable, "docs/site.py", "2", "--out", tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"index.html", "glossary.html", "play.html", "02_two_tokenizers.html"}
    for path in tmp_path.iterdir():
        if path.name != "play.html":  # that page has its own script, and is tested by tests/test_play.py
            check_page(path.read_text(encoding="utf-8"), tmp_path)
    page = (tmp_path / "02_two_tokenizers.html").read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in page and "2.1 open." in page and '<span class="underline cyan">' in page
