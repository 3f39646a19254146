"""Is drafting never slower than plain decoding? Pairs for which it pays and for which it does not.

    python -m benchmarks.pace --json
    python -m benchmarks.pace --pairs draft-general:smollm2 --prompts 4 --repeats 1

Four ways take turns at every prompt, in an order that turns: plain; adaptive, the default of `generate` (one account for
all texts of a pair); the first text of an account; and drafts in every round. A figure is the seconds of plain decoding
over those of another way, over all texts, with everything in it: reading the prompt, the drafter's too. Greedy. After the
wall clock's ratio comes that of CPU time, on which other work on the machine has less effect. A target with a chat
template gets chats.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter, process_time

from benchmarks.common import TASKS, add, arguments, chosen, save, start, texts_of
from benchmarks.real_llm import as_prompt
from benchmarks.writing import draws, emitted
from omnidraft import Options, Pair, Round, pair, plain
from omnidraft.pairs.pace import paced
from omnidraft.pairs.prompts import ids_of

PAIRS = ["draft-general:qwen-like", "draft-general:llama3-like", "draft-tasks:qwen-like", "draft-tasks:llama3-like",
         "qwen-like:llama3-like"]


def ways_of(models: Pair, options: Options) -> dict[str, Callable[[tuple], list[Round]]]:
    """The ways of writing a text from the ids of its prompt."""
    always = Options(max_new_tokens=options.max_new_tokens, adaptive=False)

    def first(ids: tuple) -> list[Round]:
        kept, models._pace = models._pace, Pair._pace
        made = list(paced(models, ids, options, draws()))
        models._pace = kept
        return made

    def write(how: Options, ids: tuple) -> list[Round]:
        return list(paced(models, ids, how, draws()))

    return {"plain": lambda ids: list(plain(models.target, ids[0], options, draws())),
            "adaptive": partial(write, options), "first text": first, "always": partial(write, always)}


def compare(models: Pair, texts: list[str], options: Options, repeats: int) -> dict:
    """One pair on one task."""
    prompts = [ids_of(models, as_prompt(models, text)) for text in texts]
    ways = ways_of(models, options)
    for write in (ways["plain"], ways["always"]):  # the first passes of a process take longer
        write(prompts[0])
    wall, cpu, made = (dict.fromkeys(ways, 0.0) for _ in range(3))
    drafted, tokens, same = 0, 0, True
    for repeat in range(repeats):
        for place, ids in enumerate(prompts):
            written = {}
            turn = (repeat + place) % len(ways)
            for name in [*ways][turn:] + [*ways][:turn]:
                began, busy = perf_counter(), process_time()
                rounds = ways[name](ids)
                wall[name] += perf_counter() - began
                cpu[name] += process_time() - busy
                made[name] += len(rounds)
                written[name] = emitted(rounds)
                drafted += (name == "adaptive") * sum(bool(one.draft_tokens) for one in rounds)
            tokens += len(written["plain"])
            same = same and all(text == written["plain"] for text in written.values())
    return {"tokens": tokens, "plain_tokens_per_second": round(tokens / wall["plain"], 1),
            **{f"{clock}_{name}": round(spent["plain"] / spent[name], 3)
               for clock, spent in (("wall", wall), ("cpu", cpu)) for name in [*ways][1:]},
            "tokens_per_pass": round(tokens / made["always"], 2), "drafted_share": round(drafted / made["adaptive"], 3),
            "same_text": same}


def main() -> None:
    """Measure, print and write."""
    args = arguments(__doc__, "pace", pairs=PAIRS, tasks=TASKS, prompts=8, repeats=3, tokens=128)
    options = Options(max_new_tokens=args.tokens)
    settings = chosen(args, "prompts", "repeats", "tokens")
    results = start(args.json, settings, pairs={})
    for name in args.pairs:
        models = pair(*name.split(":"))
        rows: dict[str, dict] = {}
        for task in args.tasks:
            rows[task] = compare(models, texts_of(task, args.prompts), options, args.repeats)
            print(f"{name} {task}: {rows[task]}", flush=True)
        add(results, ("pairs", name), rows, settings)
        save(args.json, results)


if __name__ == "__main__":
    main()
