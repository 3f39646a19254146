"""`make models`: text, tokenizers, the five embedded models and the held-out prompts, in one resumable command.

    python -m recipes.make                      everything, on the GPU if there is one
    python -m recipes.make --only draft-tasks   one model
    python -m recipes.make --only qwen-like --tokens 20000000   go on from where the constant learning rate ended
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from omnidraft.tokenizer import Tokenizer

from . import code_text, math_text, story_text
from .corpus import GENERAL_MIX, TARGET_MIX, Corpus

PACKAGE = Path(__file__).resolve().parent.parent / "omnidraft"
# Default token budgets. On a GPU all of it takes minutes; on two CPU cores see README.md in this folder.
TOKENS = {"trunk": 24_000_000, "qwen-like": 40_000_000, "draft-general": 12_000_000, "draft-tasks": 24_000_000,
          "sibling": 24_000_000, "llama3-like": 24_000_000}
PROMPTS = 200  # held-out prompts per task that ship with the package


def sample_texts(examples: int = 30_000) -> list[str]:
    """Text that the tokenizers are trained on: 60 per cent library, 40 per cent tasks."""
    corpus = Corpus({"math": 0.14, "code": 0.13, "text": 0.13, "library": 0.60}, seed=1)
    drawn = (corpus.example(index) for index in range(examples))
    return [example["prompt"] + example["response"] for example in drawn]


def write_prompts(folder: Path) -> None:
    """Write the held-out prompts of each task, half of them from templates that training never showed."""
    import random

    folder.mkdir(parents=True, exist_ok=True)
    for task, module in (("math", math_text), ("code", code_text), ("text", story_text)):
        rng = random.Random(2025)
        lines = [json.dumps(module.generate(rng, held_out=True), ensure_ascii=False) for _ in range(PROMPTS)]
        part = folder / f"{task}.part"
        part.write_text("\n".join(lines) + "\n", encoding="utf-8")
        os.replace(part, folder / f"{task}.jsonl")


def main() -> None:
    """Parse the command line and make what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache" / "omnidraft" / "recipes")
    parser.add_argument("--only", nargs="*", default=list(TOKENS), choices=list(TOKENS), help="which models")
    parser.add_argument("--tokens", type=int, help="token budget of every model named")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--no-export", action="store_true", help="train, but leave the package's models as they are")
    args = parser.parse_args()

    from .grow import grow
    from .tokenizers_bpe import train_all
    from .train import SHAPES, Budget, export, train

    tokenizers = args.work / "tokenizers"
    if not all((tokenizers / shape.tokenizer / "tokenizer_config.json").exists() for shape in SHAPES.values()):
        train_all(tokenizers, sample_texts())
    write_prompts(PACKAGE / "data")
    for name in args.only:
        shape = SHAPES[name]
        tokenizer = Tokenizer.load(tokenizers / shape.tokenizer)
        corpus = Corpus(GENERAL_MIX if name == "draft-general" else TARGET_MIX, seed=7)
        start = None
        if name in ("sibling", "qwen-like", "llama3-like"):
            # qwen-like grows from the trunk before its rate decayed; the others are cut from the finished qwen-like.
            source = args.work / ("trunk/stable" if name == "qwen-like" else "qwen-like/latest")

            def start(model, source=source, tokenizer=tokenizer):
                grow(model, tokenizer, source, Tokenizer.load(tokenizers / "qwen-like"))

        budget = Budget(args.tokens or TOKENS[name])
        model = train(name, corpus, tokenizer, args.work / name, budget, args.threads, start,
                      say=lambda line: print(line, flush=True))
        if not args.no_export and name != "trunk":
            export(name, model, tokenizers / shape.tokenizer, PACKAGE / "engine" / "embedded" / name)


if __name__ == "__main__":
    main()
