"""The command line: each command on tiny random models and on the embedded ones, and one line for every bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner
from vocabularies import byte_level, sentencepiece

import omnidraft
from omnidraft.cli import app
from omnidraft.cli.generate import write
from omnidraft.decoding import Round
from omnidraft.engine.config import ModelConfig
from omnidraft.engine.load import EMBEDDED
from omnidraft.learning.online import learn as real
from omnidraft.pairs import ngram_files

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ROOT / "omnidraft" / "engine" / "embedded"
LETTERS = "▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;?!'\"()[]{}<>=+-*/_$%#@&`|~^\\\n"
CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
          "num_attention_heads": 2, "max_position_embeddings": 768}
embedded = pytest.mark.skipif(not all((SHIPPED / name).is_dir() for name in ("draft-tasks", "qwen-like")),
                              reason="the embedded models are not made yet: run `make models`")


def write_model(folder: Path, tokenizer, seed: int, **more) -> Path:
    """A Hugging Face folder with a random model."""
    folder.mkdir()
    config = CONFIG | {"vocab_size": tokenizer.size} | more
    rng = np.random.default_rng(seed)
    shapes = ModelConfig.parse(config).tensor_shapes()
    tensors = {name: (rng.standard_normal(shape) * 0.3 + ("norm" in name)).astype(np.float32)
               for name, shape in shapes.items()}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    tokenizer.raw.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    base = tmp_path_factory.mktemp("models")
    pieces = sentencepiece(LETTERS, "▁ t, ▁t h, ▁th e, i n, o u", name="draft")
    data = byte_level("Ġ t, h e, Ġt he, i n, in g, Ġ a", name="target")
    return {"draft": str(write_model(base / "tiny-draft", pieces, 1)),
            "target": str(write_model(base / "tiny-target", data, 2)),
            "short": str(write_model(base / "short", data, 3, max_position_embeddings=32))}


@pytest.fixture(autouse=True)
def own_caches(tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("OMNIDRAFT_HOME", str(tmp_path_factory.mktemp("caches")))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)


def run(*arguments: str, input: str | None = None):
    return CliRunner().invoke(app, list(map(str, arguments)), input=input)


def ok(*arguments: str, input: str | None = None):
    result = run(*arguments, input=input)
    assert result.exit_code == 0, result.output
    return result


def pair(folders) -> list[str]:
    return ["--draft", folders["draft"], "--target", folders["target"], "-n", "24"]


# ------------------------------------------------------------------------------------------------------------ help

@pytest.mark.parametrize("arguments", [["--help"], ["-h"], [], ["demo", "-h"], ["generate", "-h"], ["align", "-h"],
                                       ["models", "-h"], *([["adapters", one, "-h"] for one in (
                                           "list", "show", "delete", "export")])])
def test_help_ends_with_examples(arguments):
    result = run(*arguments)
    assert result.exit_code in (0, 2 if not arguments else 0)
    assert "Usage:" in result.output and "omnidraft " in result.output.split("Examples:")[1]


def test_help_lists_the_commands_from_the_first_one_to_try_on():
    lines = ok("--help").output.split("Commands:")[1].split("Examples:")[0].splitlines()
    listed = [line.split()[0] for line in lines if line.strip()]
    assert listed == ["demo", "play", "generate", "chat", "adapt", "adapters", "bench", "align", "check", "models", "info",
                      "tutorial"]


def test_version():
    assert ok("--version").stdout.strip() == f"omnidraft {omnidraft.__version__}"


# -------------------------------------------------------------------------------------------------------- generate

def test_generate_prints_the_text_only(folders):
    text = ok("generate", "the thing", *pair(folders))
    assert text.stdout.strip("\n") and "tokens/s" in text.stderr and "tokens/s" not in text.stdout
    for same in (["--verify", "slem"], ["-k", "0"], ["-k", "3", "--threshold", "0"], ["--adapter", "none"]):
        assert ok("generate", "the thing", *pair(folders), *same).stdout == text.stdout


def test_generate_reads_the_prompt_from_a_pipe(folders):
    text = ok("generate", "the thing", *pair(folders)).stdout
    assert ok("generate", *pair(folders), input="the thing\n").stdout == text
    assert ok("generate", "-", *pair(folders), input="the thing").stdout == text
    done = subprocess.run([sys.executable, "-m", "omnidraft", "generate", *pair(folders)], capture_output=True,
                          env=os.environ | {"PYTHONPATH": str(ROOT)}, input=b"the thing\r\n")  # as Windows writes it
    assert done.stdout.decode() == text


def test_generate_json_has_a_line_per_round_and_a_summary(folders):
    text = ok("generate", "the thing", *pair(folders)).stdout
    lines = [json.loads(line) for line in ok("generate", "the thing", "--json", *pair(folders)).stdout.splitlines()]
    *rounds, summary = lines
    assert {line["type"] for line in rounds} == {"round"} and summary["type"] == "summary"
    assert summary["rounds"] == len(rounds) and summary["tokens"] == sum(len(r["emitted"]) for r in rounds) <= 24
    assert summary["text"] + "\n" == text and rounds[-1]["done"]


def test_generate_ends_with_a_stop_string(folders):
    text = ok("generate", "the thing", *pair(folders)).stdout.rstrip("\n")
    stop = next(character for character in text if character.isascii())
    cut = ok("generate", "the thing", "--stop", "no such", "--stop", stop, *pair(folders)).stdout.rstrip("\n")
    assert stop in cut and text.startswith(cut) and len(cut) < len(text)
    assert ok("generate", "the thing", "-k", "0", "--stop", stop, *pair(folders)).stdout.rstrip("\n") == cut


def test_the_texts_of_the_json_rounds_add_up_to_the_text(capsys):
    """Also where a character begins in one round and ends in the next."""
    tokens = SimpleNamespace(decode_bytes=lambda ids: b"".join([b"\xe6", b"\x97\xa5", b"x"][i] for i in ids))
    first, last = Round(emitted=[0], kinds=["bonus"]), Round(emitted=[1, 2], kinds=["bonus"] * 2, done=True)
    write([first, last], tokens, as_json=True)
    assert [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()] == ["", "日x", "日x"]


def test_generate_samples_by_its_seed(folders):
    drawn = [ok("generate", "the thing", *pair(folders), "--temperature", "1", "--seed", seed, "--top-k", "50").stdout
             for seed in "112"]
    assert drawn[0] == drawn[1] != drawn[2]


# ------------------------------------------------------------------------------------------------------------ demo

def check_demo(arguments: list[str], rows: int) -> dict:
    result = ok("demo", *arguments, "--json", "figures.json")
    found = json.loads(Path("figures.json").read_text())
    assert os.listdir() == ["figures.json"]
    assert len(found["tasks"]) == rows and found["machine"]["cpu"] and found["settings"]["verify"]
    for row in found["tasks"]:
        assert row["plain"]["tokens"] > 0 and row["speedup"] > 0 and row["task"] in result.stderr
        assert row["prompt"].splitlines()[0] in result.stdout
        assert f"{row['speedup']:.2f}x" in result.stderr
    assert result.stderr.count("accepted merge") == 1  # the legend is shown once
    return found


def test_demo_on_other_models(folders):
    found = check_demo([*pair(folders)], 3)
    assert [row["task"] for row in found["tasks"]] == ["math", "code", "text"]
    assert all(row["same_text"] or row["tie"] for row in found["tasks"])


def test_demo_continues_a_prompt_of_ones_own(folders):
    shown = ok("demo", "one two", *pair(folders), "--plain", "-n", "6")
    assert "one two[" in shown.stdout.replace("\n", "") and "--- yours ---" in shown.stderr
    assert "--- math ---" not in shown.stderr and "passes ->" in shown.stderr
    check_refused(run("demo", "one two", *pair(folders), "--task", "math"), "or give a prompt instead")


@pytest.mark.parametrize(("rule", "expected"), [
    ("lossless", "exact (lifted)"), ("lifted", "exact (lifted)"), ("omnidraft", "biased (omnidraft)"),
    ("slem", "exact (slem)"), ("tli", "exact (tli)")])
def test_demo_at_a_temperature_names_the_distribution(folders, rule, expected):
    found = check_demo([*pair(folders), "--temperature", "1", "--task", "text", "--verify", rule, "--seed", "5"], 1)
    assert found["tasks"][0]["distribution"] == expected and "same_text" not in found["tasks"][0]


def test_demo_shows_signs_when_asked_or_without_colour(folders):
    for more in ([], ["--plain"]):
        result = ok("demo", *pair(folders), "--task", "math", *more)
        assert "[^" in result.stdout + result.stderr and "\x1b" not in result.stdout + result.stderr


def test_demo_without_drafting_is_plain_decoding_twice(folders):
    row = check_demo([*pair(folders), "--task", "code", "-k", "0"], 1)["tasks"][0]
    assert row["same_text"] and row["speculative"]["block_efficiency"] == 1 and row["speculative"]["drafted"] == 0


def test_demo_pauses_when_slow(folders, monkeypatch):
    pauses = []
    monkeypatch.setattr("time.sleep", pauses.append)
    ok("demo", *pair(folders), "--task", "math", "--slow")
    assert pauses and min(pauses) > 0


def test_slow_shows_each_draft_and_then_the_verdict(monkeypatch):
    """Each on a line of its own; a round without a draft has one line."""
    import io

    from rich.console import Console

    from omnidraft.cli import demo
    from omnidraft.cli.render import Painter

    words = SimpleNamespace(decode_bytes=lambda ids: b"".join([b" We", b" know", b" it", b"\n"][i] for i in ids))
    kinds = ["accepted", "recovered"]
    rounds = [omnidraft.Round(draft_tokens=[0, 2], proposals=[0, 2], accepted=1, emitted=[0, 1], kinds=kinds),
              omnidraft.Round(emitted=[1, 2], kinds=["bonus", "bonus"], done=True)]
    out = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=40)
    seen = []
    monkeypatch.setattr("time.sleep", lambda seconds: seen.append(out.file.getvalue()))
    assert demo.play(out, iter(rounds), Painter(words), words, slow=True) == rounds
    assert len(seen) == 3  # before the draft, the verdict, and the round without a draft
    _, draft, verdict, last, end = out.file.getvalue().split("\n")
    assert draft == "\x1b[2m·We|·it\x1b[0m" and seen[1].endswith(draft + "\n")
    assert all(part in verdict for part in ("\x1b[32m We", "\x1b[9;31m it", "\x1b[1;33m know", "│"))
    assert (last, end) == (" know it", "")


def test_the_headline_of_the_demo_follows_from_its_rounds(folders):
    found = check_demo([*pair(folders)], 3)["tasks"]
    shown = ok("demo", *pair(folders)).stderr
    passes = [sum(row[way]["rounds"] for row in found) for way in ("plain", "speculative")]
    assert f"{passes[0]} target passes -> {passes[1]}, same text" in shown.splitlines()[-1] + shown.splitlines()[-2]


# ------------------------------------------------------------------------------------------------------ the others

def test_align_shows_both_tokenizations(folders):
    shown = ok("align", folders["draft"], folders["target"], "the thing\n[b]").stdout
    header, *lines = (line.split(maxsplit=2) for line in shown.splitlines())
    assert header == ["draft", "target"]
    merged, split, same = "several draft tokens, one target token", "one draft token, several target tokens", "same token"
    assert lines == [["t", "t", same], ["h|e", "he", merged], ["·th", "·t|h", split], ["in|g", "ing", merged],
                     *([one, one, same] for one in ("\\n", "[", "b", "]"))]  # without a dummy space


def test_align_says_where_a_side_cannot_spell_the_text(folders, tmp_path):
    poor = sentencepiece("▁ab", fallback=False)
    folder = write_model(tmp_path / "poor", poor, 0)
    shown = ok("align", folder, folders["target"], "ab日b").stdout
    assert "cannot spell" in shown and "target side has 日b" in shown
    assert [line.split()[:2] for line in shown.splitlines()] == [["draft", "target"], ["a", "a"], ["b", "b"],
                                                             *[["one", "side"]] * 2]


def test_what_large_vocabularies_decide_is_kept_and_checked_before_use(folders, monkeypatch):
    caches, ask = Path(os.environ["OMNIDRAFT_HOME"]), ("generate", "the thing", *pair(folders))
    first, line = ok(*ask), "computing once"
    assert line not in first.stderr and not [*caches.glob("s*.json")]  # small vocabularies do not need a cache on disk
    monkeypatch.setattr("omnidraft.pairs.ngram_files.LARGE", 0)
    cold = ok(*ask)
    files = sorted(caches.glob("s*.json"))
    assert [file.name.split("-")[0] for file in files] == ["spellings", "splits"]
    assert cold.stderr.count(line) == 2 and cold.stdout == first.stdout
    both = [folders["draft"], folders["target"]]
    plain = omnidraft.pair(*both)
    for file, what in zip(files, ("spellings", "splits"), strict=True):
        entries, sides = [*plain.cache.items()], [plain.target.tokenizer, plain.draft.tokenizer]
        if what == "spellings":
            entries = [(spelling, token, 0) for token, spelling in plain.spellings.items()]
        assert [*ngram_files.load(file, *sides[::1 if what == "spellings" else -1]).items()] == entries
    warm = ok(*ask)
    assert line not in warm.stderr and warm.stdout == first.stdout
    whole = files[1].read_text()
    saved = json.loads(whole)
    ids, lengths, tokens, hits = saved["columns"]
    for columns in ([ids, lengths, [10**6, *tokens[1:]], hits], [[10**6, *ids[1:]], lengths, tokens, hits],
                    [[-1, *ids[1:]], lengths, tokens, hits], [[1.5, *ids[1:]], lengths, tokens, hits],
                    [ids, [lengths[0] + 1, *lengths[1:]], tokens, hits], [ids, lengths, ["1", *tokens[1:]], hits],
                    [ids, lengths, tokens], None):
        files[1].write_text(json.dumps(saved | {"columns": columns}))
        assert line in (done := ok(*ask)).stderr and done.stdout == first.stdout
        assert files[1].read_text() == whole  # the damaged file was repaired
    for broken in ("{", json.dumps(saved | {"pair": "another"}), json.dumps(saved | {"format": "x"})):
        files[1].write_text(broken)
        assert line in ok(*ask).stderr and files[1].read_text() == whole
    monkeypatch.setenv("OMNIDRAFT_HOME", str(files[0] / "no folder"))  # a folder that cannot be written
    done = ok(*ask)
    assert done.stderr.count(line) == 2 and done.stdout == first.stdout


@embedded
def test_models_lists_what_ships():
    shown = ok("models").stdout
    assert all(f"`{name}`" in shown for name in EMBEDDED) and "license:" not in shown
    assert "SentencePiece" in shown and "byte-level" in shown and "They cannot" in shown


@embedded
@pytest.mark.parametrize("target", ["qwen-like", "llama3-like"])
def test_demo_on_what_ships(target):
    found = check_demo(["--target", target, "-n", "64"], 3)
    assert all(row["same_text"] or row["tie"] for row in found["tasks"])
    assert all(row["speculative"]["block_efficiency"] > 1 for row in found["tasks"])
    assert found["settings"]["draft"] == "draft-general with its adapter"
    asked = check_demo(["--target", target, "-n", "64", "--task", "text", "--adapter", "auto"], 1)
    bare = check_demo(["--target", target, "-n", "64", "-d", "draft-general", "--task", "text", "--adapter", "none"], 1)
    assert bare["settings"]["draft"] == "draft-general"
    assert asked["tasks"][0]["text"] == next(row["text"] for row in found["tasks"] if row["task"] == "text")
    offline = check_demo(["--target", target, "-n", "64", "-d", "draft-tasks"], 3)
    assert offline["settings"]["draft"] == "draft-tasks" and all(
        row["speculative"]["block_efficiency"] > 1.5 for row in (*offline["tasks"], *found["tasks"]))


@embedded
def test_demo_says_whose_adapter_it_uses(tmp_path):
    shown = ok("demo", "--task", "text", "-n", "4").stderr
    assert "draft-general drafts with the shipped adapter" in shown
    ok("adapt", "math", "--limit", "2", "-n", "4")
    shown = ok("demo", "--task", "text", "-n", "4").stderr
    assert "draft-general drafts with your own adapter in " in shown and "draft-general--qwen-like" in shown
    shown = ok("demo", "--task", "text", "-n", "4", "--adapter", "none").stderr
    assert shown.startswith("draft-general (2,048 entries) drafts for qwen-like")


def test_paper_sets_the_options_of_the_paper(folders, monkeypatch):
    """Its rule, an empty cache that learns, its loss, head, rank, schedule and threshold; no guard and no replay."""
    learners = []
    monkeypatch.setattr("omnidraft.learning.online.learn", lambda learner, prompts, options, uniforms: (
        learners.append((learner, options)), real(learner, prompts, options, uniforms))[1])
    ok("adapt", "math", *pair(folders), "--paper", "--limit", "9")
    assert Path(os.environ["OMNIDRAFT_HOME"], "paper", "tiny-draft--tiny-target").exists()  # not among the others
    [(learner, how)] = learners
    recipe, schedule = learner.trainer.recipe, learner.schedule
    assert (recipe.loss, recipe.weight, recipe.rank) == ("hybrid", 0.2, 32)
    assert (schedule.every, schedule.steps, schedule.replay, schedule.guard, schedule.head) == (8, 1, 0, 0, "joint")
    assert how.verify == "omnidraft" and how.learn and how.stop.threshold == 0.3 and how.stop.head is learner.head
    assert learner.statistics.updates == 2 and learner.pair.cache.version
    met = omnidraft.pair(folders["draft"], folders["target"])
    assert 0 < len(learner.pair.cache) < len(met.cache)  # it holds what was written
    found = check_demo([*pair(folders), "--paper", "--threshold", "0.7", "--verify", "omnidraft", "--task", "math"], 1)
    assert (found["settings"]["verify"], found["settings"]["threshold"]) == ("omnidraft", 0.7)
    assert found["settings"]["draft"] == "tiny-draft with its adapter"


@embedded
def test_learning_continues_from_the_adapter_in_the_package(tmp_path):
    serve, seen = ("adapt", "math", "-t", "qwen-like", "--limit", "2", "-n", "16", "--adapters"), {}
    for folder, more in (("continued", ()), ("new", ("--rank", "4"))):
        assert ("starting from the shipped adapter" in ok(*serve, folder, *more).stderr) == (not more)
        [found] = Path(folder).glob("*/v1-*/adapter_config.json")
        seen[folder] = json.loads(found.read_text())["r"], \
            omnidraft.Adapters(folder).all()[found.parent.parent.name]["statistics"]["updates"]
    assert seen["new"] == (4, 1) and seen["continued"][0] == 64 and seen["continued"][1] > 1000
    refused = run(*serve, "continued", "--rank", "4")
    assert refused.exit_code == 1 and "has rank 64, not 4: give rank 64 to continue it" in refused.stderr


# ------------------------------------------------------------------------------------------------------- bad input

BAD = {
    "unknown target": (["-t", "gpt-5"], "gpt-5"),
    "missing folder": (["-t", "./no/such/folder"], "no/such/folder"),
    "empty folder": (["-t", "{empty}"], "config.json"),
    "broken config": (["-t", "{broken}"], "config.json"),
    "unsupported architecture": (["-t", "{gpt}"], "GPTNeoXForCausalLM"),
    "weights missing": (["-t", "{weightless}"], "model.safetensors"),
    "negative draft length": (["-k", "-1"], "draft length is -1"),
    "negative temperature": (["--temperature", "-0.5"], "temperature is -0.5"),
    "no temperature": (["--temperature", "nan"], "temperature"),
    "threshold": (["--threshold", "2"], "threshold is 2.0"),
    "unknown rule": (["--verify", "magic"], "magic"),
    "no tokens": (["-n", "0"], "number of new tokens is 0"),
    "negative seed": (["--seed", "-3"], "seed is -3"),
    "prompt too long": (["-t", "{short}"], "the prompt has"),
    "name too long": (["-t", "x" * 300], "unknown model"),
    "unknown user": (["-t", "~no-such-user/model"], "unknown model"),
    "escapes in a stranger's file": (["-t", "{evil}"], r"\x1b[31mEvil\x07"),
}


@pytest.fixture
def bad_folders(folders, tmp_path):
    made = dict(folders)
    for name, config in (("empty", None), ("broken", "{"), ("gpt", '{"architectures": ["GPTNeoXForCausalLM"]}'),
                         ("evil", json.dumps({"architectures": ["\x1b[31mEvil\x07"]})),
                         ("weightless", json.dumps(CONFIG | {"vocab_size": 9}))):
        (tmp_path / name).mkdir()
        made[name] = str(tmp_path / name)
        if config:
            (tmp_path / name / "config.json").write_text(config)
    return made


def check_refused(result, expected: str):
    assert result.exit_code == 1, result.output
    assert not result.stdout, result.stdout
    assert len(result.stderr.splitlines()) == 1 and result.stderr.startswith("error: ") and expected in result.stderr


@pytest.mark.parametrize("command", ["generate", "demo"])
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(command, case, bad_folders, tmp_path):
    arguments, expected = BAD[case]
    arguments = [argument.format(**bad_folders) for argument in arguments]
    target = [] if "-t" in arguments else ["-t", bad_folders["target"]]
    start = ["generate", "word " * 60] if command == "generate" else ["demo", "--json", "out.json"]
    before = sorted(tmp_path.rglob("*"))
    check_refused(run(*start, "-d", bad_folders["draft"], *target, *arguments), expected)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("arguments", "expected"), [
    (["generate", ""], "prompt is empty"), (["generate", "-"], "prompt is empty"), (["generate"], "prompt is empty"),
    (["generate", "x", "--top-k", "-1"], "top-k"), (["generate", "x", "--top-p", "0"], "top-p"),
    (["demo", "--task", "chess"], "chess"),
    (["demo", "--json", "no/such/folder/out.json"], "no/such/folder/out.json"), (["demo", "--json", "."], "folder"),
    (["demo", "--json", "/proc/out.json"], "/proc/out.json"), (["demo", "--json", "x" * 300], "cannot write"),
    (["demo", "--paper", "--verify", "slem"], "--verify slem is not the paper's (omnidraft): drop it, or --paper"),
    (["adapt", "math", "--paper", "--rank", "8"], "--rank 8 is not the paper's (32)"),
])
def test_more_bad_input(arguments, expected, folders, tmp_path):
    check_refused(run(*arguments, "-d", folders["draft"], "-t", folders["target"]), expected)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("arguments", "expected"), [
    (["align", "gpt-5", "{draft}"], "gpt-5"), (["align", "{draft}", "{empty}"], ""),
    (["check", "{draft}"], "give two"), (["check", "exactness", "{draft}"], "only `exactness`"),
    (["check", "exactness", "--text", "math"], "--text and --backend are for two models"),
    (["check", "{draft}", "{draft}", "--worlds", "9"], "are for `check exactness` only"),
    (["bench", "--prompts", ".", "-d", "{draft}"], "directory"),
])
def test_bad_input_of_the_others(arguments, expected, bad_folders):
    check_refused(run(*[argument.format(**bad_folders) for argument in arguments]), expected)


def test_an_existing_result_is_replaced_whole_or_kept(folders):
    Path("out.json").write_text("old")
    check_refused(run("demo", *pair(folders), "--json", "out.json", "-n", "0"), "number of new tokens")
    assert Path("out.json").read_text() == "old"
    ok("demo", *pair(folders), "--task", "text", "--json", "out.json")
    assert json.loads(Path("out.json").read_text())["tasks"]


def test_debug_shows_where_an_error_comes_from():
    result = run("--debug", "generate", "x", "-k", "-1")
    assert isinstance(result.exception, omnidraft.OmnidraftError)
    for program, more, lines in ((["cli.py"], [], 1), (["-m", "omnidraft"], ["--debug"], 9)):
        done = subprocess.run([sys.executable, *program, *more, "generate", "x", "-k", "-1"], cwd=ROOT, capture_output=True,
                              text=True, check=False)
        assert done.returncode == 1 and done.stderr.count("\n") >= lines
        assert ("Traceback" in done.stderr) == bool(more) == (done.stderr.count("\n") > 1)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_is_full_or_closed_is_no_traceback(folders, unbuffered: str):
    command = f"{sys.executable} cli.py generate 'the thing' -d {folders['draft']} -t {folders['target']} -n 4"
    for redirection, code in (("> /dev/full", 1), (">&-", 0), ("2>&-", 0)):
        done = subprocess.run(f"{command} {redirection}", shell=True, cwd=ROOT, capture_output=True, text=True,
                              env=os.environ | {"PYTHONUNBUFFERED": unbuffered})
        assert done.returncode == code and "Traceback" not in done.stderr, redirection
        said = [line for line in done.stderr.splitlines() if not line.startswith("no drafts: ")]  # of such small models
        assert "tokens/s" not in done.stdout and len(said) <= 1
    done = subprocess.run(f"{sys.executable} cli.py models > /dev/full", shell=True, cwd=ROOT, capture_output=True, text=True,
                          env=os.environ | {"PYTHONUNBUFFERED": unbuffered})  # buffered output is written only at the end
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(os.name == "nt", reason="the shell is another there")
@pytest.mark.parametrize(("arguments", "code", "says"), [
    ("tutorial", 0, ""), ("adapters delete {own} --adapters .", 1, "Aborted!"), ("chat", 1, "error: no message"),
    ("generate", 1, "error: the prompt is empty")])
def test_a_closed_stdin_is_an_empty_one(folders, arguments, code, says):
    own = Path("own")
    own.mkdir()
    (own / "current.json").write_text("{")  # damaged: it can still be deleted
    models = f"-d {folders['draft']} -t {folders['target']}" * (arguments in ("chat", "generate"))
    for redirection in ("<&-", "</dev/null"):
        done = subprocess.run(f"{sys.executable} -m omnidraft {arguments.format(own='own')} {models} {redirection}", shell=True,
                              env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
        assert done.returncode == code and says in done.stderr and "bug" not in done.stderr, (redirection, done.stderr)
    assert own.exists()


# ------------------------------------------------------------------------------------------------ imported modules

def loaded_by(code: str) -> set[str]:
    """The modules that a new interpreter has imported after `code`."""
    code += "\nimport sys; print(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def command(*arguments: str) -> str:
    return f"from omnidraft.cli import app\ntry: app({list(arguments)!r})\nexcept SystemExit as e: assert not e.code"


# before 0.26 typer is built on click, and imports rich for its help; since then it brings its own copy
CLICK = {"click"} if tuple(map(int, version("typer").split(".")[:2])) >= (0, 26) else set()


def test_help_loads_no_framework():
    assert not loaded_by(command("--help")) & ({"torch", "transformers", "jinja2"} | (CLICK and {"click", "rich.console"}))


def test_generate_and_demo_never_load_torch(folders):
    for arguments in (["generate", "the thing", *pair(folders)], ["demo", *pair(folders)]):
        modules = loaded_by(command(*arguments))
        assert "numpy" in modules and not modules & ({"torch", "transformers"} | CLICK)


def test_every_public_name_is_there():
    assert all(getattr(omnidraft, name) is not None for name in omnidraft.__all__)
    with pytest.raises(AttributeError):
        omnidraft.nothing  # noqa: B018
