"""A long stress test: broken files, killed writers, power loss, two writers at once, long texts with learning, many worlds.

`make soak` runs all of it (20 minutes or more); `python tests/soak.py --scale 0.1 mutations kills` runs a tenth of two parts.
Each part prints what it tried and what failed, with the seed of each failure; exit status 1 if anything failed. With
`--record` the counts go to docs/reliability.json, from which docs/reliability.md has its table. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import ggufs
import numpy as np
from fakes import interrupted
from test_cli import LETTERS, write_model
from typer.testing import CliRunner
from vocabularies import byte_level, sentencepiece

from omnidraft import Options, Pair, Uniforms, load, plain, speculative
from omnidraft.cli import app
from omnidraft.decoding import Text
from omnidraft.engine.gguf import Gguf
from omnidraft.engine.weights import load_tensors, save_tensors
from omnidraft.exactness import TOLERANCE, check
from omnidraft.learning import online
from omnidraft.learning.adapters import Adapters, checksum, manifest_of, seal
from omnidraft.learning.online import Learner, Schedule
from omnidraft.learning.training import Recipe
from omnidraft.ngram_cache import NGramCache
from omnidraft.pairs import ngram_files
from omnidraft.stopping import FixedLength

WHOLE = {"mutations": 10_000, "kills": 200, "losses": 50, "writers": 100, "interrupts": 700,
         "adapt": 100_000, "tokens": 1_000_000, "worlds": 2000}  # at --scale 1
RECORD = Path(__file__).resolve().parents[1] / "docs" / "reliability.json"
PROMPTS = ["the thing", "in the house", "a thin line", "and then the other", "ten things", "on the inside", "this",
           "that is it"]


def models(base: Path, **config) -> Path:
    """A tiny drafter and a tiny target."""
    base.mkdir(parents=True, exist_ok=True)
    write_model(base / "draft", sentencepiece(LETTERS, "▁ t, ▁t h, ▁th e, i n, o u", name="draft"), 1, **config)
    write_model(base / "target", byte_level("Ġ t, h e, Ġt he, i n, in g, Ġ a", name="target"), 2, **config)
    (base / "prompts.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS * 5))
    return base


AFTER = dict(zip(b" theingoubcdfjklmpqrsvwxyza", b"theingoubcdfjklmpqrsvwxyza ", strict=True))  # of each letter


def agreeing(base: Path) -> Path:
    """A tiny drafter and a tiny target that mostly write the same letters, in other tokens: " the" "ing", or " the" "in" "g".

    The head finds the last letter in the residual stream, and prefers the longest token that continues AFTER it. The layers
    add a little. The drafter is wrong about what follows "d", "m" and "v".
    """
    models(base, hidden_size=32)
    letters = np.linalg.qr(np.random.default_rng(0).standard_normal((32, 32)))[0].astype(np.float32)
    numbers = {letter: number for number, letter in enumerate(AFTER)}
    for name, wrong in (("draft", b"dmv"), ("target", b"")):
        tensors = dict(load_tensors(base / name))
        spelled = load(base / name).tokenizer.token_bytes
        head = np.zeros_like(tensors["lm_head.weight"])
        for letter, number in numbers.items():
            course = b"x" if letter in wrong else bytes(islice(course_after(letter), 9))
            fitting = [token for token, text in enumerate(spelled) if text and course.startswith(text)]
            head[max(fitting, key=lambda token: len(spelled[token]))] += letters[number]
        last = [numbers.get(text[-1], 31) if text else 31 for text in spelled]
        tensors |= {"lm_head.weight": head, "model.embed_tokens.weight": letters[last]}
        for part in ("self_attn.o_proj", "mlp.down_proj"):
            tensors[f"model.layers.0.{part}.weight"] = tensors[f"model.layers.0.{part}.weight"] * 0.04
        save_tensors(base / name / "model.safetensors", tensors)
    return base


def course_after(letter: int) -> Iterator[int]:
    """The letters that follow, without end."""
    while True:
        letter = AFTER[letter]
        yield letter


def run(base: Path, command: str, *arguments: str):
    """Run a command in this process; returns its output and exit status."""
    places = []
    if command in ("generate", "adapt", "chat"):
        places = ["-d", base / "draft"] + ["-t", base / "target"] * ("-t" not in arguments)
    return CliRunner().invoke(app, [*map(str, (command, *arguments, *places))], input="the thing\n")


def resume(base: Path, seed: int = 0) -> tuple[Adapters, Learner]:
    """A learner of the tiny pair that continues from the saved adapter."""
    pair, store = Pair(load(base / "draft"), load(base / "target")), Adapters(base / "adapters")
    return store, store.resume(pair, Recipe(rank=2), Schedule(every=2, guard=0), np.random.default_rng(seed))


def serve(learner: Learner, count: int, seed: int = 0) -> None:
    """Serve some prompts and learn from them."""
    from omnidraft.learning.online import learn

    options, rng = Options(temperature=1.0, max_new_tokens=8, stop=FixedLength(4)), random.Random(seed)
    list(learn(learner, rng.choices(PROMPTS, k=count), options, Uniforms(np.random.default_rng(seed))))


# -------------------------------------------------------------------------------------------------------- mutations

ODD = [None, True, -1, 0, 1, 7, 2**31, 2**63, 10**30, 1e308, float("nan"), float("inf"), "", "x", "\x1b[31m\n", "\ud800", [],
       [[]], {}, {"a": 1}, 0.5, -0.0, "9" * 5000, "../x", ["x"] * 1000]


def odd_json(rng: random.Random, content: bytes) -> bytes:
    """The JSON with one to three values replaced or removed."""
    whole = [json.loads(content)]
    for _ in range(rng.randint(1, 3)):
        places, waiting = [], [whole]
        while waiting and len(places) < 20_000:
            part = waiting.pop()
            for key, value in part.items() if isinstance(part, dict) else enumerate(part):
                places.append((part, key))
                if isinstance(value, (dict, list)):
                    waiting.append(value)
        part, key = rng.choice(places)
        value = rng.choice(ODD)
        if isinstance(part, dict) and rng.random() < 0.2:
            del part[key]
        else:
            part[key] = value
    return json.dumps(whole[0]).encode()


def mutated(rng: random.Random, content: bytes) -> bytes:
    """The file's content with a random fault."""
    data, place = bytearray(content), rng.randrange(max(1, len(content)))
    kind = rng.choice(["json", "json", "json", "header", "flip", "flip", "cut", "grow", "insert", "swap", "deep", "random"])
    try:
        if kind == "json":
            return odd_json(rng, content)
        if kind == "header":
            size = struct.unpack("<Q", content[:8])[0]
            header = odd_json(rng, content[8:8 + size])
            return struct.pack("<Q", len(header)) + header + content[8 + size:]
    except (ValueError, struct.error, IndexError):
        kind = "flip"
    if kind == "flip" and data:
        for _ in range(rng.choice([1, 1, 8])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        return content[:place]
    elif kind == "grow":
        return content + rng.randbytes(rng.randint(1, 100))
    elif kind == "insert":
        data[place:place] = rng.randbytes(rng.randint(1, 20))
    elif kind == "swap":
        other = rng.randrange(max(1, len(content)))
        data[place:place + 8], data[other:other + 8] = data[other:other + 8], data[place:place + 8]
    elif kind == "deep":
        return rng.choice([b"[", b'{"a":']) * rng.choice([100, 5000, 100_000])
    elif kind == "random":
        return rng.randbytes(rng.randint(0, 3000))
    return bytes(data)


def odd_gguf(rng: random.Random, path: Path) -> None:
    """Write a GGUF again with one to three settings or tensors replaced or removed."""
    file = Gguf(path)
    settings = {name: one.tolist() if isinstance(one, np.ndarray) else one for name, one in file.settings.items()}
    tensors = {name: (one.shape, one.kind, one.blocks.tobytes()) for name, one in file.tensors.items()}
    for _ in range(rng.randint(1, 3)):
        part = rng.choice([settings, settings, tensors])
        name = rng.choice(sorted(part))
        if rng.random() < 0.2:
            del part[name]
        elif part is settings:
            part[name] = rng.choice(ODD_SETTINGS)
        else:
            shape, kind, data = part[name]
            part[name] = rng.choice([(shape[::-1], kind, data), (shape, rng.randrange(40), data), ((*shape, 1), kind, data),
                                     ((2**40, *shape), kind, data), (shape, kind, data[:len(data) // 2])])
    ggufs.write(path, settings, tensors)


ODD_SETTINGS = [True, 0, 1, 7, 2**31, 2**32 - 1, 1e30, float("nan"), float("inf"), -0.5, "", "x", "\x1b[31m\n", "9" * 5000,
                [1, 2], [0.5], [-1] * 300, ["x"] * 1000, ["▁x"] * 300, ["a b", "b"]]
OF_A_GGUF = [("generate", "the thing", "-n", "3", "-t", "G"), ("align", "D", "G", "the thing"), ("info", "G"),
             ("adapt", "P", "--limit", "2", "-n", "3", "--adapters", "A", "-t", "G")]
COMMANDS = [("generate", "the thing", "-n", "3"), ("generate", "the thing", "-n", "3", "--adapter", "auto", "--adapters", "A"),
            ("adapt", "P", "--limit", "2", "-n", "3", "--adapters", "A"), ("chat", "-n", "3"),
            ("adapters", "list", "--adapters", "A"), ("align", "D", "T", "the thing")]


def one_mutation(base: Path, seed: int) -> str:
    """What went wrong with a mutated file, or an empty text."""
    rng, work = random.Random(seed), base / "work"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(base / "good", work)
    os.environ["OMNIDRAFT_HOME"] = str(work / "home")
    paths = [path for path in sorted(work.rglob("*")) if path.is_file() and path.name != "lock"]
    file = work / "target.gguf"
    path = file if rng.random() < 0.3 else rng.choice(paths)
    if path == file and rng.random() < 0.7:
        odd_gguf(rng, path)
    else:
        path.write_bytes(mutated(rng, path.read_bytes()))
    current = next((work / "adapters").glob("*/current.json"))
    if current.parent in path.parents and rng.random() < 0.7:  # with correct checksums, as an attacker would write them
        try:
            manifest = json.loads(current.read_bytes())
            for name in manifest["files"]:
                manifest["files"][name] = checksum(current.parent / manifest["folder"] / name)
            manifest.pop("checksum", None)
            current.write_text(json.dumps(manifest | {"checksum": seal(manifest)}))
        except (ValueError, KeyError, TypeError, OSError, AttributeError, RecursionError):
            pass
    names = {"A": work / "adapters", "P": work / "prompts.jsonl", "D": work / "draft", "T": work / "target", "G": file}
    command = [str(names.get(word, word)) for word in rng.choice(OF_A_GGUF if path == file else COMMANDS)]
    result = run(work, *command)
    said = (result.stderr.strip().splitlines() or [""])[-1]
    what = f"{path.relative_to(work)}, {' '.join(command[:2])}: exit {result.exit_code}, {said[:150]!r}"
    if result.exit_code not in (0, 1, 2) or "Traceback" in result.stderr or "a bug in omnidraft" in result.stderr:
        return what
    if result.exit_code and not said.lower().startswith("error: "):
        return what
    return what if {*result.stderr} & {*map(chr, (*range(9), *range(11, 32), 127))} else ""


def mutations(base: Path, count: int, first: int = 0) -> tuple[list[str], str]:
    """Damaged files, each read in a process that is ended after 10 s of CPU time or 1 GB of memory."""
    good = models(base / "good")
    with open(good / "prompts.jsonl", "a") as file:  # enough for the sums of held-out ones
        file.writelines(json.dumps({"prompt": f"{number} {prompt}"}) + "\n" for number in (1, 2) for prompt in PROMPTS)
    ngram_files.LARGE = 0  # then these small vocabularies, too, have their n-grams in files
    os.environ["OMNIDRAFT_HOME"] = str(good / "home")
    assert run(good, "adapt", str(good / "prompts.jsonl"), "--limit", "54", "-n", "8", "--adapters", str(good / "adapters"),
               "--rank", "2", "--head", "joint").exit_code == 0
    statistics = manifest_of(next((good / "adapters").iterdir()))["statistics"]
    assert statistics["prompts"] == 54 and statistics["held_out"] > 1 and [*(good / "home").glob("*.json")]
    (good / "target" / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}")
    sizes = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1)
    ggufs.tiny(good / "target.gguf", "Q8_0", settings={"llama.rope.scaling.factor": 2.0}, **sizes)
    (good / "target" / "generation_config.json").write_text('{"eos_token_id": 1}')
    (good / "target" / "tokenizer_config.json").write_text('{"eos_token": "x"}')
    failures, seed, count = [], first, first + count
    while seed < count:
        read, write = os.pipe()
        if not (child := os.fork()):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 2)  # a panic in the tokenizers library prints directly to stderr
            resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for number in range(seed, min(seed + 100, count)):
                signal.setitimer(signal.ITIMER_PROF, 10)  # seconds of CPU time; then the signal ends the process
                try:
                    found = one_mutation(base, number)
                except BaseException as error:
                    found = repr(error)
                if (taken := resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) > 1 << 20:
                    found = f"{taken >> 10} MB; {found}"
                os.write(write, json.dumps([number, found]).encode() + b"\n")
                if taken > 1 << 20:
                    break
            os._exit(0)
        os.close(write)
        with open(read) as lines:
            for line in lines:
                number, found = json.loads(line)
                seed = number + 1
                failures += [f"seed {number}: {found}"] * bool(found)
        status = os.waitpid(child, 0)[1]
        if status:
            failures.append(f"seed {seed}: the process ended by {signal.Signals(os.WTERMSIG(status)).name}")
            seed += 1
        if seed % 100 == 0:
            print(f"  {seed} mutations, {len(failures)} failures", flush=True)
    return failures, ""


# -------------------------------------------------------------------------------- killed, power loss, two at once

def whole(base: Path, least: int) -> int:
    """The adapter's version; raises if the adapter or its cache does not load, or if the version is below `least`."""
    pair, store = Pair(load(base / "draft"), load(base / "target")), Adapters(base / "adapters")
    version = (manifest_of(store.folder(pair)) or {"version": 0})["version"]
    assert version >= least, f"version {version} after {least}"
    assert (store.load(pair) is None) == (version == 0)
    if (base / "ngrams.json").exists():
        ngram_files.load(base / "ngrams.json", pair.draft.tokenizer, pair.target.tokenizer)
    return version


def save_for_ever(base: Path) -> None:
    """Learn a little, then save everything again and again."""
    store, learner = resume(base)
    with store.writing(learner.pair):
        serve(learner, 2)
        while True:
            store.keep(learner)
            ngram_files.save(learner.pair.cache, base / "ngrams.json")
            os.write(1, b".")


def kills(base: Path, count: int) -> tuple[list[str], str]:
    """kill -9 of a process that saves an adapter and a cache without end."""
    models(base)
    failures, version, rng, saved = [], 0, random.Random(0), 0
    for number in range(count):
        read, write = os.pipe()
        if not (child := os.fork()):
            os.dup2(write, 1)
            save_for_ever(base)
        os.close(write)
        os.read(read, 1)  # wait until it has begun to save
        time.sleep(rng.uniform(0, 0.2))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.set_blocking(read, False)
        saved += 1 + len(os.read(read, 1 << 20) or b"")
        os.close(read)
        try:
            version = whole(base, version)
        except Exception as error:
            failures.append(f"kill {number}: {error!r}")
    return failures, f"{saved} finished saves"


class Disk:
    """What a disk holds after a power loss: all synced names and contents; others may be there or not.

    It records `mkdir`, `replace`, `unlink`, `rmtree` and `fsync` of this process under a folder. Names in a folder become
    safe, in order, when the folder is synced; a file's contents when the file is synced.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.log = root, []

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record what is done in this context."""
        real = {name: getattr(os, name) for name in ("mkdir", "replace", "unlink", "fsync")}
        rmtree = shutil.rmtree

        def note(name: str) -> Callable:
            def done(*given, **more):
                if name == "fsync":
                    path = Path(os.readlink(f"/proc/self/fd/{given[0]}"))
                    real[name](*given)
                    self.log.append(("sync", path, None if path.is_dir() else path.read_bytes()))
                    return
                content = Path(given[0]).read_bytes() if name == "replace" else None
                real[name](*given, **more)
                self.log.append((name, *map(Path, given[:2 if name == "replace" else 1]), content))
            return done

        def removed(path, *given, **more):
            rmtree(path, *given, **more)
            self.log.append(("unlink", Path(path), None))

        try:
            for name in real:
                setattr(os, name, note(name))
            shutil.rmtree = removed
            yield
        finally:
            shutil.rmtree = rmtree
            for name, one in real.items():
                setattr(os, name, one)

    def after_a_loss(self, at: int, rng: random.Random, to: Path) -> None:
        """Write to `to` what may be left if the power fails after `at` steps."""
        synced, contents, waiting = defaultdict(list), {}, defaultdict(list)
        for step in self.log[:at]:
            if step[0] == "sync" and step[2] is None:
                synced[step[1]] += waiting.pop(step[1], [])
            elif step[0] == "sync":
                contents[step[1]] = step[2]
            else:
                waiting[step[-2].parent].append((*step, contents.get(step[1]) == step[-1]))
        entries = {}
        for place in synced.keys() | waiting.keys():
            late = waiting[place]
            for step in [*synced[place], *late[:rng.randint(0, len(late))]]:  # a journal keeps their order
                if step[0] == "unlink":
                    entries.pop(step[1], None)
                elif step[0] == "mkdir":
                    entries[step[1]] = None
                else:  # contents that were not synced may be cut anywhere
                    entries[step[2]] = step[3] if step[4] else step[3][:rng.randint(0, len(step[3]))]
        for path, content in sorted(entries.items(), key=lambda entry: len(entry[0].parts)):
            there = to / path.relative_to(self.root)
            if there.parent.is_dir() and content is None:
                there.mkdir(exist_ok=True)
            elif there.parent.is_dir():
                there.write_bytes(content)


def losses(base: Path, count: int) -> tuple[list[str], str]:
    """Power losses during saves: what was not synced is lost, partly or completely."""
    models(base)
    disk, (store, learner), failures, marks = Disk(base), resume(base), [], []
    with disk.recorded():
        for seed in range(4):
            serve(learner, 2, seed)
            store.keep(learner)
            ngram_files.save(learner.pair.cache, base / "ngrams.json")
            marks.append(len(disk.log))
    rng = random.Random(0)
    for number in range(count):
        at, to = rng.randint(0, len(disk.log)), base.with_name("after")
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir()
        disk.after_a_loss(at, rng, to)
        for name in ("draft", "target"):
            shutil.copytree(base / name, to / name, dirs_exist_ok=True)
        try:
            whole(to, sum(mark <= at for mark in marks))  # nothing that was reported as saved is lost
        except Exception as error:
            failures.append(f"loss {number} after step {at}: {error!r}")
    return failures, f"{len(disk.log)} steps of 4 saves"


def writers(base: Path, count: int) -> tuple[list[str], str]:
    """Two processes that learn into one adapter: with `adapt`, or with two learners of the library, without the lock."""
    models(base)
    os.environ["OMNIDRAFT_HOME"] = str(base / "home")
    failures, outcomes, prompts = [], Counter(), 0
    for number in range(count):
        by_command, children = number % 2 == 0, []
        for who in range(2):
            read, write = os.pipe()
            if not (child := os.fork()):
                try:
                    if by_command:
                        result = run(base, "adapt", str(base / "prompts.jsonl"), "--limit", "4", "-n", "4", "--rank", "2",
                                     "--adapters", str(base / "adapters"), "--seed", str(who))
                        said = result.stderr
                    else:
                        store, learner = resume(base, who)
                        time.sleep(random.Random(3 * number + who).uniform(0, 0.02))
                        serve(learner, 4, who)
                        said = f"saved to {store.keep(learner)}"
                except BaseException as error:
                    said = f"{type(error).__name__}: {error}"
                os.write(write, said.encode()[-4000:])
                os._exit(0)
            os.close(write)
            children.append((child, read))
        for child, read in children:
            with open(read) as file:
                said = file.read()
            os.waitpid(child, 0)
            if "; what was learned is in " in said:
                rescued = Adapters(said.rsplit("--adapters ", 1)[1].strip())
                found = rescued.load(Pair(load(base / "draft"), load(base / "target")))
                outcomes["rescued"] += found is not None and found.lora is not None
                shutil.rmtree(rescued.root)
            elif "saved to" in said:
                outcomes["saved"], prompts = outcomes["saved"] + 1, prompts + 4
            elif by_command and "another process is learning" in said:
                outcomes["refused at once"] += 1
            else:
                failures.append(f"pair {number}: {said[-200:]!r}")
        whole(base, 0)
        [folder] = (base / "adapters").iterdir()
        if (served := manifest_of(folder)["statistics"]["prompts"]) != prompts:
            failures.append(f"pair {number}: {served} prompts are in the adapter, {prompts} were saved")
            prompts = served
    return failures, ", ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items()))


SAVING = ("omnidraft.learning.adapters", "omnidraft.text.files")


def interrupts(base: Path, count: int) -> tuple[list[str], str]:
    """Ctrl-C at lines of a save, no two alike: then the learner saves as before, and nothing is left over or rescued."""
    models(base)
    (store, learner), failures, rng = resume(base), [], random.Random(0)
    serve(learner, 2)
    store.keep(learner)
    lines = interrupted(lambda: store.keep(learner), 0, SAVING)
    moments = rng.sample(range(1, lines + 1), min(count, lines))
    for number, at in enumerate(moments):
        interrupted(lambda: store.keep(learner), at, SAVING)
        try:
            whole(base, 1)
            folder = store.keep(learner)
            left = [path.name for path in folder.glob("v*")]
            assert left == [manifest_of(folder)["folder"]], f"left over: {left}"
            assert not [*base.glob("adapters-rescued*")], "rescued"
        except Exception as error:
            failures.append(f"interrupt {number} at line {at} of {lines}: {error!r}")
    return failures, f"at {len(moments)} different lines of the {lines} that a save runs"


# ------------------------------------------------------------------------------------------------------- long texts

def adapt(base: Path, count: int) -> tuple[list[str], str]:
    """The command `adapt` with prompts without end: its memory stays as it is after a quarter of the run."""
    models(base)
    os.environ["OMNIDRAFT_HOME"] = str(base / "home")
    real, done, levels, draw = online.learn, [0], [], random.Random(0)

    def learn(*given):
        for learned in real(*given):
            done[0] += sum(len(record.emitted) for record in learned.rounds)
            levels.append(memory())
            yield learned
            if done[0] >= count:
                return

    words = " ".join(PROMPTS).split()
    (base / "more.txt").write_text("\n".join(" ".join(draw.choices(words, k=4)) for _ in range(count // 100 + 10)))
    try:
        online.learn = learn
        # texts for replay are kept up to a limit, which is reached soon
        result = run(base, "adapt", str(base / "more.txt"), "-n", "250", "--rank", "2", "--replay-mb", "8",
                     "--adapters", str(base / "adapters"))
    finally:
        online.learn = real
    warm_up = max(levels[:max(1, len(levels) // 4)])
    failures = [f"exit status {result.exit_code}: {result.stderr[-200:]!r}"] * (result.exit_code != 0)
    failures += [f"memory grew from {warm_up} to {max(levels)} MB"] * (max(levels) > 1.05 * warm_up + 8)
    return failures, f"{done[0]:,} tokens, {len(levels)} prompts; {warm_up} MB after a quarter, {max(levels)} MB at most"


def memory() -> int:
    """Megabytes of memory that this process uses."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def same_cache(model, reader) -> bool:
    """Whether a reader's cache equals that of one new pass over the ids that it says."""
    fresh, cache, ids = model.new_cache(), reader.cache, reader.ids[:reader.held] + reader.ahead
    length = len(ids)
    if length:
        model.forward(ids, fresh)
    return all(np.allclose(a, b, rtol=1e-2, atol=1e-3 * (1 + np.abs(b).max(initial=0))) for a, b in (
        (cache.keys[..., :length], fresh.keys[..., :length]), (cache.values[:, :, :length], fresh.values[:, :, :length])))


def decided(model, ids: list[int]) -> bool:
    """Whether the target's greedy choice after `ids` is certain in spite of rounding."""
    best = np.sort(model.forward(ids, model.new_cache())[0])[-2:]
    return best[1] - best[0] > 1e-3


def tokens(base: Path, count: int) -> tuple[list[str], str]:
    """Greedy texts while drafter and n-gram cache learn: equal to plain decoding's, with constant memory."""
    agreeing(base)
    from omnidraft.learning.training import Trainer

    capacity, rng = 64, np.random.default_rng(0)
    pair = Pair(load(base / "draft"), load(base / "target"), NGramCache(capacity, "lru"))
    learner = Learner(pair, Trainer(pair.draft, Recipe(rank=2), rng), rng, Schedule(every=8, replay=2, memory=64))
    options, uniforms = Options(temperature=0.0, max_new_tokens=256, stop=FixedLength(4), learn=True), Uniforms(rng)
    failures, done, rounds, checks, ties, levels, draw = [], 0, 0, 0, 0, [], random.Random(0)
    drafted = kept = 0
    while done < count:
        prompt = " ".join(draw.choices(" ".join(PROMPTS).split(), k=draw.randint(1, 12)))
        written, records, before = Text(pair), [], pair.draft
        learner.begin(options)
        for record in speculative(pair, prompt, options, uniforms, learner, written):
            records.append(record)
            rounds += 1
            drafted += len(record.draft_tokens)
            kept += record.draft_kept
            if len(pair.cache) > capacity:
                failures.append(f"{len(pair.cache)} entries in a cache of {capacity}")
            if rounds % 1000 == 0:
                checks += 1
                if not same_cache(pair.target, written.target):
                    failures.append(f"round {rounds}: the target's cache is not that of its tokens")
                if not same_cache(before, written.drafter.reader):
                    failures.append(f"round {rounds}: the drafter's cache is not that of its tokens")
        text = [token for record in records for token in record.emitted]
        usual = [token for record in plain(pair.target, prompt, options, uniforms) for token in record.emitted]
        if text != usual:
            place = next(i for i, (a, b) in enumerate(zip(text, usual, strict=False)) if a != b)
            if decided(pair.target, pair.target.tokenizer.encode(prompt, bos=True) + usual[:place]):
                failures.append(f"after {done} tokens: {prompt!r} was continued otherwise than by plain decoding")
            ties += 1
        learner.finish(prompt, records)
        done += len(text)
        levels.append(memory())
    warm_up = max(levels[:max(1, len(levels) // 4)])
    if max(levels) > 1.1 * warm_up + 32:
        failures.append(f"memory grew from {warm_up} to {max(levels)} MB")
    if not 0.3 * drafted < kept < 0.95 * drafted:
        failures.append(f"{kept} of {drafted} draft tokens entered the text: too few, or too few others, to test much")
    return failures, (f"{done:,} tokens in {rounds:,} rounds, {kept:,} of {drafted:,} draft tokens kept, "
                      f"{learner.statistics.updates} updates, {checks} checks of both caches, rounding ties: {ties}; "
                      f"{warm_up} MB after a quarter, {max(levels)} MB at most")


def worlds(base: Path, count: int, first: int = 10_000) -> tuple[list[str], str]:
    """This many new random worlds for each exact rule: the distances that rounding does not explain."""
    failures, runs, worst = [], [], 0.0
    for rule in ("lifted", "slem", "tli"):
        found = check(rule, count, first)
        failures += [f"{rule}, world {first + i}: {distance}" for i, distance in enumerate(found.distances)
                     if not distance <= TOLERANCE]
        seen = ", ".join(f"{name} {number}" for name, number in sorted(found.conditions.items()))
        print(f"  {rule}: {found.runs:,} runs, largest distance {found.worst:.1e}; {seen}", flush=True)
        runs.append(f"`{rule}` {found.runs:,} runs")
        worst = max(worst, found.worst)
    return failures, f"{', '.join(runs)}; largest distance {worst:.1e}"


def record(part: str, count: int, failures: int, said: str) -> None:
    """Keep the counts of a run in docs/reliability.json, in place of those of the run before."""
    runs = json.loads(RECORD.read_text())
    runs[part] = {"full": WHOLE[part], "run": count, "date": time.strftime("%Y-%m-%d"), "failures": failures, "counts": said}
    RECORD.write_text(json.dumps(runs, indent=1) + "\n")


def main() -> None:
    """Run the given parts, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *WHOLE], help="by default all")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the whole numbers")
    parser.add_argument("--record", action="store_true", help="keep the counts in docs/reliability.json")
    args, failed = parser.parse_args(), 0
    for part in args.parts or WHOLE:
        count, began = max(1, round(args.scale * WHOLE[part])), time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            print(f"{part}: {count:,}", flush=True)
            failures, said = globals()[part](Path(folder) / part, count)
        for failure in islice(failures, 20):
            print(f"  FAILED {failure}")
        print(f"  {said}\n  {len(failures)} failures in {time.perf_counter() - began:.0f} s", flush=True)
        if args.record:
            record(part, count, len(failures), said)
        failed += len(failures)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
