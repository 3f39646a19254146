"""Requests in the style of everyday chat, drawn from the schema in requests.txt, and the prompts of public tasks.

    python -m recipes.requests PROMPTS.jsonl --data FOLDER      # FOLDER: gsm8k_train1000.jsonl and others, see SPLITS

A line of requests.txt that begins with @ is a list of words; `{name}` draws one of them, `[a|b]` is a choice. The prompts
of the public tasks are those that the benchmarks hold neither out nor learn from online (`SPLITS`).
"""

from __future__ import annotations

import argparse
import json
import random
import re
from pathlib import Path

from . import functions, problems, stories

SCHEMA = Path(__file__).with_name("requests.txt")
CHOICE, NAME = re.compile(r"\[([^\[\]]*)\]"), re.compile(r"\{(\w+)\}")
# The first rows train the drafter, the next are the stream it learns from online, and the last are held out.
SPLITS = {"gsm8k_train1000": (400, 800), "mbpp_train374": (150, 300), "humaneval164": (80, 120)}


class Requests:
    """The schema of a file such as requests.txt.

    >>> Requests.read().draw(random.Random(1))                                 # doctest: +SKIP
    'What are the benefits of sleep?'
    """

    def __init__(self, lists: dict[str, list[str]], forms: list[str]) -> None:
        self.lists, self.forms = lists, forms

    @classmethod
    def read(cls, path: Path = SCHEMA) -> Requests:
        """Read the lists and the forms of a file."""
        lists: dict[str, list[str]] = {}
        forms = []
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("@"):
                name, _, words = line[1:].partition(": ")
                lists[name] = words.split(" | ")
            elif line and not line.startswith("#"):
                forms.append(line)
        return cls(lists, forms)

    def draw(self, rng: random.Random) -> str:
        """One request, with a capital first."""
        form = CHOICE.sub(lambda found: rng.choice(found[1].split("|")), rng.choice(self.forms))
        text = NAME.sub(lambda found: rng.choice(self.lists[found[1]]), form)
        return text[0].upper() + text[1:]


def distinct(draw, count: int, tries: int = 20) -> list[str]:
    """Up to `count` different texts of a generator, in alphabetical order."""
    found: set[str] = set()
    for _ in range(count * tries):
        found.add(draw())
        if len(found) == count:
            break
    return sorted(found)


def collect(data: Path | None, rng: random.Random, scale: float = 1.0) -> list[dict[str, str]]:
    """Prompts with their source: requests, word problems, functions, stories, and the public tasks of a folder."""
    own = {"request": (Requests.read().draw, 9000), "problem": (lambda r: problems.problem(r)["prompt"], 6000),
           "function": (lambda r: functions.request(r)["prompt"], 3000),
           "story": (lambda r: stories.story(r)["prompt"], 1500)}
    found = [{"source": source, "prompt": prompt} for source, (draw, count) in own.items()
             for prompt in distinct(lambda draw=draw: draw(rng), int(count * scale))]
    for name, (first, _) in SPLITS.items():
        if data is not None:
            rows = (data / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[:first]
            found += [{"source": name, "prompt": json.loads(row)["prompt"]} for row in rows]
    rng.shuffle(found)
    return found


def main() -> None:
    """Write the prompts as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, help="folder of the public tasks")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the drawn prompts")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rows = collect(args.data, random.Random(args.seed), args.scale)
    args.out.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    print(f"{len(rows)} prompts in {args.out}")


if __name__ == "__main__":
    main()
