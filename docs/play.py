"""Record rounds of speculative decoding for docs/play.html, a page that plays them step by step.

    python docs/play.py [--out docs/play.html] [--picture docs/play.png] [--stored]

It records the embedded pairs, with the time that each round took, and one pair of toy vocabularies whose whole trie can be
drawn. The recording is one line of the page, `const scenes = ...`, and only that line is renewed; the page loads nothing else,
and opens from disk. `--stored` keeps the recording. The picture shows one step of the toy pair (drawn by Chromium).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import process_time
from typing import Any
from unittest import mock

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy: as `omnidraft demo` runs

import numpy as np  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import tokenizers  # noqa: E402
from tokenizers import AddedToken, decoders, models, pre_tokenizers  # noqa: E402

import omnidraft  # noqa: E402
from omnidraft import Adapters, Options, Pair, Uniforms, decoding, plain, speculative, verification  # noqa: E402
from omnidraft.learning.adapters import SHIPPED  # noqa: E402
from omnidraft.lifting import ROOT as TOP  # noqa: E402
from omnidraft.sampling import process  # noqa: E402
from omnidraft.stopping import Confidence  # noqa: E402
from omnidraft.text.files import write_text  # noqa: E402
from omnidraft.text.tokenizer import Tokenizer  # noqa: E402

QUESTION = "Ann has 3 boxes of 12 pens. How many pens does she have?"
REQUEST = "Write a Python function that adds two numbers."
SCENES = [  # drafter, target, prompt, temperature
    ("draft-tasks", "qwen-like", QUESTION, 1.0),
    ("toy drafter", "toy target", "snow", 1.0),
    ("draft-tasks", "llama3-like", REQUEST, 1.0),
    ("draft-general, adapted", "qwen-like", "Write a story about a dog.", 0.7),
]
REPEATS = 7  # of each recording: a round's time is the shortest of them, because other work can only add to it
CORPUS = "snow falls low snowflakes flow slow snow on snow fell as snowflakes fall slow flakes of snow " * 2
BARS = 6
SEEDS = {"toy drafter": 63, "draft-general, adapted": 4}  # texts that show much; 1 for the others
PAGE = ROOT / "docs" / "play.html"
SCENES_LINE = re.compile(r"^const scenes = (.*);$", re.M)
KEEP = verification.keep


def toy(name: str, merges: list[str], order: int) -> Any:
    """A model that predicts characters from the last `order` ones, with its own vocabulary of tokens."""
    letters = ["Ġ" if c == " " else c for c in sorted(set(CORPUS))]
    pairs = [tuple(merge.replace("_", "Ġ").split("+")) for merge in merges]
    vocabulary = {token: i for i, token in enumerate([*letters, *map("".join, pairs)])}
    raw = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    return Toy(Tokenizer(raw, name, {"eos_token": "<|endoftext|>"}), name, order)


class Toy:
    """A language model from counts in CORPUS; a token's probability is the product over its characters."""

    context_size, kernel = 512, "counts"

    def __init__(self, tokenizer: Tokenizer, name: str, order: int) -> None:
        self.tokenizer, self.name, self.order = tokenizer, name, order
        self.vocab_size, self.eos_ids = tokenizer.size, tokenizer.roles["eos"]

    def new_cache(self) -> Any:
        return ToyCache()

    def forward(self, ids: list[int], cache: ToyCache, rows: int = 1) -> np.ndarray:
        cache.ids += ids
        return np.stack([self.row(cache.ids[:len(cache.ids) - back]) for back in reversed(range(rows))])

    def row(self, ids: list[int]) -> np.ndarray:
        """Logits (V,) after `ids`."""
        text = self.tokenizer.decode_bytes(ids).decode()
        found = np.full(self.vocab_size, -30.0)
        for token, data in enumerate(self.tokenizer.token_bytes):
            if data:
                spelled = data.decode()
                found[token] = sum(self.log_prob(text + spelled[:i], c) for i, c in enumerate(spelled))
        return found

    def log_prob(self, text: str, character: str) -> float:
        """log p of a character after a text, from what follows the text's longest ending found in CORPUS."""
        for length in range(self.order, -1, -1):
            tail = text[len(text) - length:]
            after = [CORPUS[i + length] for i in range(len(CORPUS) - length) if CORPUS.startswith(tail, i)]
            if after:
                break
        return float(np.log((after.count(character) + 0.005) / (len(after) + 0.06)))


class ToyCache:
    """The ids that a toy model has read."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    @property
    def length(self) -> int:
        return len(self.ids)

    def rewind(self, length: int) -> None:
        del self.ids[length:]


class Recorder:
    """What the loop gives a learner, round by round, and the comparison that decided (None: all tokens were kept)."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, Any, np.ndarray, Any]] = []
        self.decided = None

    def observe(self, draft: Any, proposals: Any, logits: np.ndarray, *_: Any) -> None:
        self.seen.append((draft, proposals, np.array(logits), self.decided))
        self.decided = None

    def keep(self, steps: Any, *given: Any) -> tuple[list, Any, Any]:
        """Runs `verification.keep` and records the comparison that decided."""
        kept, self.decided, left = KEEP(steps, *given)
        return kept, self.decided, left


def text_of(tokenizer: Tokenizer, token: int) -> str:
    """A token as the page shows it."""
    if token in tokenizer.roles["eos"]:
        return "<end>"
    return tokenizer.decode_bytes([token]).decode("utf-8", "replace")


def compared(pair: Pair, step: Any, proposals: Any, rows: Any) -> dict:
    """P and Q at one comparison: of the likeliest atoms, and of tokens that end there; the drafted one is marked."""
    own = pair.draft.tokenizer
    atoms = [int(atom) for atom in pair.lifting.atoms(step.node)]
    P, Q = verification.p_and_q(step, proposals.origins, pair.lifting, rows)
    names = [text_of(own, atom) for atom in atoms]
    names.append("others" if step.node == TOP else "stop")
    order = np.argsort(-np.maximum(P, Q))[:BARS].tolist()
    drafted = proposals.atoms[step.place]
    place = atoms.index(drafted) if drafted in atoms else len(names) - 1
    order = order if place in order else [*order[:-1], place]
    reached = "".join(text_of(own, atom) for atom in step.node)
    return {"title": "of the next atom" + f" inside “{reached}”" * bool(reached), "r": float(step.before),
            "rows": [[names[i], float(P[i]), float(Q[i]), i == place] for i in order]}


def alone(pair: Pair, row: np.ndarray, token: int) -> dict:
    """P of the target's next token: of the likeliest ones, and the written one, which is marked."""
    best = np.argsort(-row)[:BARS].tolist()
    best = best if token in best else [*best[:-1], token]
    found = [[text_of(pair.target.tokenizer, t), float(row[t]), None, t == token] for t in best]
    return {"title": "of the target's next token", "r": 1.0, "rows": found}


def drawn(pair: Pair, row: np.ndarray, token: int) -> dict:
    """Q of the drafter's next token, where the target's P is never asked for."""
    best = np.argsort(-row)[:BARS].tolist()
    best = best if token in best else [*best[:-1], token]
    found = [[text_of(pair.draft.tokenizer, t), None, float(row[t]), t == token] for t in best]
    return {"title": "of the drafter's next token", "r": 1.0, "rows": found}


def frames(pair: Pair, seen: tuple, done: Any, temperature: float) -> list[dict]:
    """Probabilities for each draft token, then those at the place where the round was decided."""
    draft, proposals, logits, last = seen
    rows = process(logits[:, :pair.target.tokenizer.size], temperature)
    steps = [*verification.comparisons(proposals.atoms, proposals.origins, pair.lifting, rows)]
    found, made, number = [], {}, -1  # made: number of a draft token -> place of its first atom that is new
    for place, (_, before) in enumerate(proposals.origins):
        number += not before or place == 0  # the first atoms of a healed token are in the text already
        made.setdefault(number, place)
    for j, token in enumerate(draft.tokens):
        here = [step for step in steps if step.place == made[j]]  # *stop* of the token before, and where this one begins
        found.append(compared(pair, here[-1], proposals, rows) if here else drawn(pair, draft.probs[j], token))
    if last is None:
        return [*found, alone(pair, rows[len(done.emitted) - 1], done.emitted[-1])]
    return [*found, compared(pair, last, proposals, rows)]


def record(pair: Pair, prompt: str, temperature: float, tokens: int, seed: int = 0) -> dict:
    """A pair's text, as rounds that the page can draw."""
    recorder, rounds, text = Recorder(), [], prompt
    options = Options(temperature=temperature, max_new_tokens=tokens, stop=Confidence(8, threshold=0.2))
    draws = Uniforms(np.random.default_rng(seed))
    for done in watched(recorder, speculative(pair, prompt, options, draws, learner=recorder)):
        draft, proposals, *_ = seen = recorder.seen[-1]
        own, goal = pair.draft.tokenizer, pair.target.tokenizer
        healed = "" if draft.taken_back is None else text_of(own, draft.taken_back)
        rounds.append({
            "text": text, "healed": healed, "kept": done.draft_kept,
            "draft": [text_of(own, token) for token in draft.tokens],
            "proposals": [text_of(goal, token) for token in proposals.tokens], "accepted": done.accepted,
            "emitted": [[text_of(goal, token), kind] for token, kind in zip(done.emitted, done.kinds, strict=True)],
            "ms": [round(1e3 * done.seconds.get(part, 0.0), 3) for part in ("draft", "target", "other")],
            "bars": frames(pair, seen, done, temperature),
            "path": node_path(pair, proposals, done.accepted)})
        text += goal.decode_bytes(done.emitted).decode("utf-8", "replace")
    return {"prompt": prompt, "temperature": temperature, "rounds": rounds,
            "draft": pair.draft.name, "target": pair.target.name}


def watched(recorder: Recorder, rounds: Iterator[Any]) -> Iterator[Any]:
    """The rounds; meanwhile the recorder sees which comparison decides."""
    with mock.patch.object(verification, "keep", recorder.keep):
        yield from rounds


def node_path(pair: Pair, proposals: Any, accepted: int) -> list[int]:
    """The nodes of the trie that the accepted atoms and the next atom pass through."""
    found, node, ended, lifting, number = [], TOP, 0, pair.lifting, numbers(pair)
    for atom in proposals.atoms:
        if node != TOP and atom not in lifting.children(node):
            node, ended = TOP, ended + 1
        if atom not in lifting.children(node) or ended > accepted:
            break
        node = (*node, atom)
        found.append(number[node])
        if not lifting.children(node):
            node, ended = TOP, ended + 1
    return found


def numbers(pair: Pair) -> dict[tuple[int, ...], int]:
    """The number of each node of the trie; a parent comes before its children."""
    nodes = {split[:depth] for split in pair.lifting.token for depth in range(len(split) + 1)}
    return {node: number for number, node in enumerate(sorted(nodes))}


def trie(pair: Pair) -> list[dict]:
    """The whole trie: for each node its parent, its atom, and the target token that ends there."""
    lifting, number = pair.lifting, numbers(pair)
    return [{"parent": number[node[:-1]], "atom": "".join(text_of(pair.draft.tokenizer, atom) for atom in node[-1:]),
             "token": text_of(pair.target.tokenizer, lifting.token[node]) if node in lifting.token else ""}
            for node in number]


def pair_of(draft: str, target: str) -> Pair:
    """The pair of a scene in SCENES."""
    if draft == "toy drafter":
        return Pair(toy(draft, ["_+f", "o+w", "l+a", "k+e", "f+a"], 2),
                    toy(target, ["o+w", "s+n", "sn+ow", "f+l", "a+k", "ak+e", "fl+ake", "l+ow", "fl+ow", "a+l", "al+l"], 4))
    name, _, adapted = draft.partition(", ")
    made = omnidraft.pair(name, target)
    return Pair(Adapters(SHIPPED).load(made).drafter(made.draft), made.target) if adapted else made


def timed(pair: Pair, prompt: str, temperature: float, tokens: int, seed: int) -> dict:
    """A recording, with the shortest of several times for each round, and the time of a token of plain decoding.

    The times are of the processor (with one BLAS thread the same as of the clock), which other work disturbs less.
    """
    with mock.patch.object(decoding, "perf_counter", process_time):
        return _timed(pair, prompt, temperature, tokens, seed)


def _timed(pair: Pair, prompt: str, temperature: float, tokens: int, seed: int) -> dict:
    made = [record(pair, prompt, temperature, tokens, seed) for _ in range(REPEATS)]
    for number, one in enumerate(made[0]["rounds"]):
        times = np.array([again["rounds"][number]["ms"] for again in made])  # (REPEATS, 3)
        one["ms"] = np.round(times[times.sum(-1).argmin()], 3).tolist()
    ids = pair.target.tokenizer.encode(prompt, bos=True)
    options, alone = Options(temperature=temperature, max_new_tokens=tokens), []
    for _ in range(REPEATS):
        rounds = [*plain(pair.target, ids, options, Uniforms(np.random.default_rng(seed)))]
        alone.append([1e3 * sum(done.seconds.values()) for done in rounds[1:]])  # the first reads the prompt
    return made[0] | {"plain": round(float(np.median(np.min(alone, 0))), 3)}


def recording(tokens: int = 60) -> list[dict]:
    """All scenes."""
    found = []
    for draft, target, prompt, temperature in SCENES:
        pair, seed = pair_of(draft, target), SEEDS.get(draft, 1)
        if draft.startswith("toy"):
            scene = record(pair, prompt, temperature, 24, seed) | {"trie": trie(pair), "plain": 0}
        else:
            scene = timed(pair, prompt, temperature, tokens, seed) | {"trie": []}
        found.append(scene | {"draft": draft, "title": f"{draft} → {target}"})
    return found


def page(scenes: list[dict]) -> str:
    """The page, with this recording in it."""
    data = json.dumps(scenes, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return SCENES_LINE.sub(lambda _: f"const scenes = {data};", PAGE.read_text(encoding="utf-8"))


def stored(path: Path) -> list[dict]:
    """The recording in a page."""
    return json.loads(SCENES_LINE.search(path.read_text(encoding="utf-8"))[1])


def picture(page: Path, path: Path, step: str = "#1.16", size: str = "1000,930") -> None:
    """A picture of one step of the page, made by Chromium without a window."""
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
                        "--disable-component-update", "--no-first-run", "--hide-scrollbars", f"--user-data-dir={profile}",
                        f"--window-size={size}", f"--screenshot={path.resolve()}", page.resolve().as_uri() + step],
                       check=True, capture_output=True)


def main() -> None:
    """Record and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PAGE)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--stored", action="store_true", help="do not record again")
    args = parser.parse_args()
    write_text(args.out, page(stored(PAGE) if args.stored else recording()))
    if args.picture:
        picture(args.out, args.picture)
    print(args.out)


if __name__ == "__main__":
    main()
