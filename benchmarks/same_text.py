"""Greedy speculative text compared with plain decoding, token for token, in float64.

    python -m benchmarks.same_text --json
    python -m benchmarks.same_text --backend torch --prompts 1 --tokens 16 \\
        --json benchmarks/results/same_text_torch.json

Every pair, task, rule and draft length: the embedded pairs and, in both directions, the two models
of $OMNIDRAFT_REAL_DATA.
"""

from __future__ import annotations

from itertools import islice, product

from benchmarks.common import REAL, TASKS, arguments, chosen, save, start, texts_of
from benchmarks.efficiency import PAIRS
from benchmarks.writing import emitted, write, write_plainly
from omnidraft import Options, Pair
from omnidraft.engine.load import load
from omnidraft.stopping import FixedLength
from omnidraft.verification import RULES

MODELS = [REAL / "models" / name for name in ("stories260K", "babyllama-tok361")]
REAL_PAIRS = [f"{draft}:{target}" for draft, target in (MODELS, MODELS[::-1]) if draft.is_dir()]


def main() -> None:
    """Compare, print and write."""
    args = arguments(__doc__, "same_text", pairs=PAIRS + REAL_PAIRS, backend="numpy", tokens=32,
                     prompts=(2, "prompts of each task"), k=(16, "greatest draft length; all from 1 on are tried"))
    results = start(None, pairs={}, k=[1, args.k], **chosen(args, "backend", "prompts", "tokens"))
    for name in args.pairs:
        pair = Pair(*(load(part, "float64", args.backend, "cpu") for part in name.split(":")))
        encode, room = pair.target.tokenizer.encode, pair.target.context_size - args.tokens
        texts = [text for task in TASKS for text in islice(
            (text for text in texts_of(task, 200) if len(encode(text)) < room), args.prompts)]
        same = []
        for text in texts:
            options = Options(max_new_tokens=args.tokens)
            expected = emitted(write_plainly(pair.target, text, options))
            for rule, k in product(RULES, range(1, args.k + 1)):
                options = Options(verify=rule, stop=FixedLength(k), max_new_tokens=args.tokens)
                same.append(emitted(write(pair, text, options)) == expected)
        name = f"{pair.draft.name}:{pair.target.name}"
        results["pairs"][name] = {"same": sum(same), "of": len(same)}
        print(f"{name}: {sum(same)} of {len(same)} texts are the same", flush=True)
    save(args.json, results)


if __name__ == "__main__":
    main()
