"""Mutants: small changes to the lesson that tests must detect.

    make mutants                          (all of them: some minutes on a quiet machine)
    python tests/mutants.py drafting 40   (those of a file, or by number)

Each is applied to a copy of the package, where the tests named for it must fail. Mutants that survive are printed, and the
exit status is then 1. If a mutant's old text is not there exactly once, or its new text is not valid Python, the run ends:
update the mutant to the present code.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import repeat
from pathlib import Path
from queue import Queue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

ROUND = "test_exactness.py::test_a_round_is_exact test_exactness.py::test_a_round_is_exact_with_healing"
BLOCK = "test_block.py"
LOOP = "test_decoding.py::test_the_whole_loop_is_exact"
WORLDS = "test_exactness.py::test_the_loop_is_exact_and_every_condition_occurs"
CACHES = "test_state.py::test_after_every_round_the_caches_hold_the_text"
HEALED = "test_state.py::test_drafts_come_from_the_rows_after_what_healing_drew"
LABELS = "test_state.py::test_labels_and_features_belong_to_their_tokens_with_healing_top_k_and_top_p"
ENDS = "test_decoding.py -k end_token"
LIFTING, SAMPLING = "test_lifting.py", "test_sampling.py"
MERGE, RESTART = "test_translation.py -k by_hand+or+merge+or+expansion+or+add_up", "test_translation.py -k restarts"
DETAILS = "test_details.py"
PUBLISHED = "test_published.py"
TWIN = "test_torch_twins.py::test_verification_by_itself"
SHORT = "test_state.py -k short_text"
NGRAMS = "test_ngram_cache.py -k not+real"
GUARD = ("test_learning.py "
         "-k guard_decides+or+unlucky+or+one_state+or+small_loss+or+equal_weights+or+first_look+or+cannot_be_compared")
PACE = "test_pace.py -k begins_at_once+or+measured_first+or+far_too_fast+or+lost_trial+or+rarer"
PLAIN = "test_pace.py -k drafters_text+or+written_plainly"
SETTINGS = "test_pace.py -k equal_settings"
MISHAPS = "test_learning_mishaps.py -k ctrl_c_within"
SERVED = "test_learning.py -k rolled_back+or+what_drafts+or+guard_reads"


class Mutant(NamedTuple):
    """A change of one text in a file of the package, and the tests (as arguments of pytest) that must then fail."""

    file: str
    old: str
    new: str
    tests: str


MUTANTS = [Mutant(*fields) for fields in (
    # verification
    ("verification", "float(target_prob / draft_prob)", "float(target_prob / draft_prob) ** 0.5", ROUND),
    ("verification", "if draft_prob <= 0:", "if draft_prob < 0:", "test_exactness.py -k cannot_have"),
    ("verification", "(scale * target_probs - draft_probs).clip(0)", "scale * target_probs", ROUND),
    ("verification", "scale == 1 and left.max() == 0", "scale == 1", ROUND),
    ("verification", "if choice != proposal:", "if choice == proposal:", LOOP + " -k slem"),
    ("lifting", "stopped_at = node if stop else ROOT", "stopped_at = ROOT", ROUND),
    ("verification", "lifting.continuing(prefix)[0] if prefix else ()", "()", ROUND),
    ("verification", "1.0 if step.stopped_at == ROOT else q ", "1.0 ", ROUND),
    ("verification", "ratio(r * p, step.draft_prob)", "ratio(p, step.draft_prob)", BLOCK),
    ("verification", "if r == 1 or draws[i] < z / (z + (1 - r)):", "if True:", BLOCK),
    ("verification", "lifting, target_probs), r)\n", "lifting, target_probs), 1.0)\n", BLOCK),
    ("verification", "return known[:place], known[place], left", "return [], known[0], left", BLOCK),
    ("verification", "q /= step.stop_prob", "q /= 1.0", ROUND),
    ("verification", "q[list(lifting.children(step.stopped_at))] = 0.0", "q[:0] = 0.0", ROUND),
    ("verification", "mass if step.node == ROOT else mass / above", "mass", ROUND),
    ("verification", "accumulate(after.values(), min, initial=1.0)", "accumulate(after.values(), initial=1.0)", BLOCK),
    ("lifting", "rows = min(limit, rows)", "pass", "test_exactness.py -k room_for_one"),
    ("verification", "    if scale == 1 and", "    if scale <= 1 and", BLOCK + " " + ROUND),
    ("verification", "        if r == 0:\n            return\n", "", LABELS),
    ("verification", "len(target_probs), limit)", "len(target_probs))", WORLDS),
    # lifting
    ("lifting", "if route and route[-1].next_node in self.token:", "if False:", LIFTING),
    ("lifting", "if child and self.children(here):", "if child:", LIFTING + " " + ROUND),
    ("lifting", "            row += ends >= 0\n", "            row += bool(child)\n", LIFTING + " " + ROUND),
    ("lifting", "return pairs if atoms else pairs[:, tokens != next_atoms]", "return pairs", LIFTING),
    ("lifting", "self.token.setdefault(split, token)", "self.token[split] = token", LIFTING),
    ("lifting", "(1.0 - Q.sum()).clip(0)", "0.0", LIFTING + " " + ROUND),
    ("lifting", "ends[step.place + len(step.child)]", "ends[step.place + 1]", LIFTING),
    ("lifting", "            in_text = ()\n", "", LIFTING),
    ("lifting", "path = self.paths[draft_token] or (None,)", "path = self.paths[draft_token] or ()", ROUND),
    ("lifting", "probs / probs.sum().clip(TINY)", "probs", ROUND),
    ("lifting", "if None not in parts:", "if any(parts):", LIFTING + " " + ROUND),
    # sampling
    ("sampling", "reshape(-1, BLOCK)", "reshape(-1, BLOCK)[::-1]", SAMPLING),
    ("sampling", "weights[whole:].sum()", "0.0", SAMPLING),
    ("sampling", "not 1 <= total < np.inf", "not 0 <= total < np.inf", SAMPLING),
    ("sampling", "probs < least", "probs <= least", SAMPLING),
    ("sampling", "before = running - ordered ", "before = running ", SAMPLING),
    ("sampling", "logits[..., size:] = -np.inf", "logits[..., size + 1:] = -np.inf", SAMPLING),
    ("sampling", 'running.searchsorted(goal, "right")', 'running.searchsorted(goal, "left")', SAMPLING),
    ("sampling", 'sums.searchsorted(goal, "right")', 'sums.searchsorted(goal, "left")', SAMPLING),
    ("sampling", "goal = min(goal, inside.item(-1) * BELOW_ONE)", "goal = goal + 0.0", SAMPLING),
    ("sampling", "self.settings = (temperature, top_k, top_p, min_p)", "self.settings = (temperature, top_k, 1.0, min_p)",
     WORLDS),
    # translation
    ("translation", "changed[direct_token] = left * (left > 0)", "changed[direct_token] = left", MERGE),
    ("translation", "left = direct.prob(q, direct_token) - product", "left = direct.prob(q, direct_token)", MERGE),
    ("translation", "changed.get(token, direct.prob(q, token)) + product", "product", MERGE),
    ("translation", "if len(rows) == 1 and direct_token >= 0:", "if len(rows) == 1:", MERGE),
    ("translation", "(rows[0] * 0, {token: 1.0})", "(rows[0], {token: 1.0})", MERGE),
    ("translation", "return place + 1", "return place", RESTART),
    ("translation", " and not spelled[1:2].isspace()", "", RESTART),
    ("translation", "first = max(0, len(ids) - WINDOW)", "first = 0", RESTART),
    # drafting
    ("drafting", "_is_last(drawn[-1], rows, draft, confidences):\n", "_is_last(drawn[-1], rows, draft, confidences):\n"
     "                del drawn[-1:], draft.probs[-1:]\n", LOOP + " -k lossless"),
    ("drafting", "self.reader.ahead += tokens[:-1]", "self.reader.ahead += tokens", CACHES),
    ("drafting", "                end -= 1", "                end -= 0", CACHES),
    ("reading", "self.held = place + same", "self.held = len(self.ids)", CACHES),
    ("drafting", "data = data[size:]", "data = data[:]", CACHES),
    ("reading", "self.cache.rewind(start)", "self.cache.rewind(min(self.cache.length, start + 1))", CACHES),
    ("reading", "self.ahead = list(more)", "pass", CACHES),
    ("drafting", "self.reader.read([token], back=1)", "self.reader.read([token])", HEALED),
    ("drafting", "return Draft(), logits[1:]", "return Draft(), logits[:1]", HEALED),
    ("drafting", "logits.clip(allowed[0]) + allowed[1]", "logits + allowed[1]", WORLDS),
    ("drafting", "self.reader.replace(0, recent)", "self.reader.ids = recent", CACHES),
    ("drafting", "self.model.embedding[token]", "self.model.embedding[0]", LABELS),
    ("drafting", "min(self.options.stop.limit, room, ", "min(self.options.stop.limit, ",
     "test_decoding.py -k no_more"),
    ("drafting", "return (stop.looks or self.sampler.draws_ids) and token in self.model.eos_ids", "return False", ENDS),
    # decoding
    ("decoding", 'silent = written.count(b"")', "silent = 0", ENDS),
    ("translation", "        if end < 0:\n", "        if True:\n", ENDS),
    ("decoding", "accepted = min(verdict.accepted, len(emitted))", "accepted = verdict.accepted", ENDS),
    ("reading", "self.ahead = cached[same:]", "self.ahead = cached", CACHES),
    ("decoding", "min(len(ids) + int(options.max_new_tokens), self.model.context_size)",
     "len(ids) + options.max_new_tokens", "test_decoding.py::test_contexts_are_respected"),
    ("decoding", "sampler.uniforms, room)\n", "sampler.uniforms, None)\n", WORLDS),
    # pairing
    ("pairing", "source = self.cache, self.cache.version", "source = self.cache, 0",
     "test_state.py::test_the_lifting_follows_the_cache"),
    ("pairing", " and max(split) < len(to_target):", ":",
     "test_decoding.py -k no_logits_for"),
    ("pairing", "if token >= 0 and to_draft[token] == atom:", "if token >= 0:",
     "test_state.py::test_of_two_draft_tokens_with_the_same_bytes_the_written_one_is_the_atom"),
    ("pairing", "return len(split) if split else 1", "return 1",
     "test_state.py::test_a_target_token_spans_its_ngram"),
    # ngram_cache, vocabulary
    ("ngram_cache", "sorted(lengths, reverse=True)", "sorted(lengths)", NGRAMS),
    ("ngram_cache", "if not all(ours[first:last]):", "if False:", NGRAMS),
    ("ngram_cache", "(-self.hits(ngram), len(ngram), ngram)", "(len(ngram), ngram)", NGRAMS),
    ("vocabulary", "ids[key] = produced[0]", "pass",
     "test_vocabulary.py -k produced_one"),
    ("ngram_cache", "in reversed(list(aligned_spans(ours, theirs))):", "in list(aligned_spans(ours, theirs)):", NGRAMS),
    ("ngram_cache", "len(split) < 2 or max(split) >= len(alignment.draft_to_target)", "len(split) < 2", NGRAMS),
    ("drafting", "self.options.heal and len(self.ids) > 1", "self.options.heal and len(self.ids) > 2", SHORT),
    ("drafting", "self.options.heal and len(self.ids) > 1", "self.options.heal", SHORT),
    ("drafting", "if not longer:", "if len(longer) < 2:", SHORT),
    ("translation", "        if end < 0:\n", "        if False:\n", ENDS),
    ("translation", "    return first\n", "    return len(ids)\n", RESTART),
    ("sampling", "probs < least", "probs > least", SAMPLING),
    # stopping
    ("stopping", "return prod(confidences) < self.threshold", "return confidences[-1] < self.threshold",
     "test_stopping.py -k decides_the_draft_length"),
    ("stopping", "return not confidence < self.threshold", "return True", "test_decoding.py -k unsure"),
    ("stopping", "q = min(max(probability, 1e-4), 1 - 1e-4)", "q = probability", LABELS),
    # losses, and the texts that the learner stores
    ("losses", "np.searchsorted(atoms, children)", "np.arange(len(children))", "test_losses.py -k acceptance_prob"),
    ("losses", "1.0 - np.minimum(P, Q).sum()", "np.abs(P - Q).sum()", "test_losses.py -k by_hand"),
    ("losses", "max(0, min(len(draft_ids) - room, len(prompt_ids) - room // 2))", "max(0, len(draft_ids) - room)",
     "test_losses.py -k longer_than_the_drafters_context"),
    ("losses", "max(0, min(len(draft_ids) - room, len(prompt_ids) - room // 2))", "0",
     "test_losses.py -k longer_than_the_drafters_context"),
    ("learning/online", "deepcopy(logits[:len(emitted)])", "deepcopy(logits[-len(emitted):])",
     "test_learning.py -k stored_rows"),
    ("learning/online", "healed = len(draft.tokens) - len(draft.features)", "healed = 0", LABELS),
    ("learning/online", "Uniforms([]), *self._options.sampling)", "Uniforms([]), self._options.temperature)", LABELS),
    ("learning/online", "if draft.taken_back is not None:  # the atoms", "if False:  # the atoms", LABELS),
    # the guard, and how the learner uses its answers
    ("learning/guard", "(after - before).mean()", "(before - after).mean()", GUARD),
    ("learning/guard", "SURE * error(after - before)", "0.0", GUARD),
    ("learning/guard", "SURE * error(after - before)", "2.0 * error(after - before)", GUARD),
    ("learning/guard", "(n - 5) ** 0.5", "(n - 3) ** 0.5", GUARD),
    ("learning/guard", "max(SPREAD, differences.std()) / n ** 0.5", "0.0", GUARD),
    ("learning/guard", "max(SPREAD, differences.std())", "SPREAD", GUARD),
    ("learning/guard", "self.tried or now\n", "now\n", GUARD),
    ("learning/guard", "        self.trainer.restore(now)\n", "", GUARD),
    ("learning/guard", "np.isfinite(found[0])", "np.isfinite(found).all(0)", GUARD),
    ("learning/guard", "not gain >= -max", "gain < -max", GUARD),
    ("learning/guard", "        if not found.size:\n            return None\n", "", GUARD),
    ("learning/guard", "self.asked >= self.patience and", "", GUARD),
    ("learning/guard", "and looks >= min(WINDOW, self.patience)", "", GUARD),
    ("learning/guard", "min(WINDOW, self.patience)", "WINDOW", GUARD),
    ("learning/guard", "self.asked >= self.patience", "self.asked > self.patience", GUARD),
    ("learning/guard", "max(sure, HARM)", "sure", GUARD),
    ("learning/guard", "looks == WINDOW", "looks > WINDOW", GUARD),
    ("learning/guard", "            self.tried = None\n            self.compared", "            self.compared", GUARD),
    ("learning/guard", "        self.asked = 0\n        return", "        return", GUARD),
    ("learning/guard", "            self.compared = []\n        if not", "        if not", GUARD),
    ("learning/guard", "self.best = self.tried\n", "self.best = now\n", GUARD),
    ("learning/guard", "            self.trainer.restore(self.best | moments)\n", "", GUARD),
    ("learning/guard", "self.best | moments", "self.best", GUARD),
    ("learning/guard", 'f"parameters.{name}"', 'f"served.{name}"', GUARD),
    ("learning/online", "self.batch[:4], now)", "list(self.memory)[-4:] or self.batch, now)", SERVED),
    ("learning/online", "            trainer.restore(now)\n", "", SERVED),
    ("learning/online", "            trainer.restore(self.guard.best)\n", "", SERVED),
    ("learning/online", "                self.guard.compared = []  # subtle: it may see this batch again\n",
     "", MISHAPS),
    ("learning/online", "        if not self.schedule.guard:\n            self.pair.draft",
     "        if True:\n            self.pair.draft", SERVED),
    # details of the whole package
    ("verification", "if len(emitted) <= len(proposals):", "if len(emitted) < len(proposals):",
     DETAILS + " -k last_proposal"),
    ("verification", "        except OmnidraftError:", "        except ZeroDivisionError:", "test_broken_rows.py -k numpy"),
    ("drafting", "return translation.common_prefix(draft.tokens, same_ids)", "return min(len(draft.tokens), len(same_ids))",
     DETAILS + " -k one_vocabulary"),
    ("drafting", "suppress(OmnidraftError):", "suppress(ZeroDivisionError):", "test_odd_tokenizers.py -k costs_a_draft"),
    ("decoding", "drafter.ids[-8 * len(emitted):]", "drafter.ids[-2 * len(emitted):]", DETAILS + " -k many_draft_tokens"),
    ("vocabulary", "[i for i in same if i not in tokenizer.fallback] or same", "same", DETAILS + " -k fallback"),
    ("vocabulary", "re.sub(\"^▁\", \"Ġ\", string or \"\")", "(string or \"\").replace(\"▁\", \"Ġ\")", DETAILS + " -k leading"),
    ("ngram_cache", "self.eviction != \"none\":  # move", "self.eviction == \"lru\":  # move", DETAILS + " -k equally_often"),
    ("ngram_cache", "if canonical.get(target.token_bytes[token]) == token]", "if target.token_bytes[token]]",
     DETAILS + " -k twin"),
    ("losses", "and token in lifting.below(step.next_node)", "", DETAILS + " -k other_split"),
    ("losses", "if not mass > 0:", "if False:", DETAILS + " -k no_mass"),
    ("learning/online", "options.stop), learn=False)", "options.stop))", DETAILS + " -k untouched"),
    ("learning/online", "(kept < len(draft.tokens) and not done)", "(kept < len(draft.tokens))", DETAILS + " -k labels_of"),
    ("learning/adapters", "trainer.lora.alpha = adapter.lora.alpha", "pass", DETAILS + " -k alpha"),
    ("learning/adapters", "learner.guard.best or state)", "state)", DETAILS + " -k proved"),
    ("learning/adapters", "learner.statistics.rate_share = 1.0", "pass", DETAILS + " -k share_of_the_rate"),
    ("losses", "ids[-1] in ends and not target.pieces(ids[-1:])[0]:", "ids[-1] in ends:", DETAILS + " -k has_bytes"),
    ("losses", "np.maximum(P, FLOOR)", "np.maximum(P, TINY)", DETAILS + " -k hardly_any"),
    ("learning/training", 'if ".lora_A." in name}', 'if ".lora_B." in name}', DETAILS + " -k sixteenth"),
    ("learning/training", "SHARE_OF_A = 1 / 16", "SHARE_OF_A = 1 / 4", DETAILS + " -k sixteenth"),
    ("sampling", "probs < min_p *", "probs <= min_p *", DETAILS + " -k min_p"),
    ("translation", "[0] * (len(spelling) - 1)", "[1] * (len(spelling) - 1)", MERGE),
    ("translation", "for token in spelling[1:]]", "for token in spelling[:-1]]", MERGE),
    ("drafting", "if reader is None or reader.model is not self.model:", "if reader is None:",
     "test_conversation.py -k replaced_drafter"),
    ("drafting", "size + length > agreed", "size + length > len(data)", CACHES),
    # when drafting pays
    ("decoding", "missed = self.ids[self.drafted:]", "missed = self.ids[self.start:]", PLAIN),
    ("decoding", "if self.drafted < len(self.ids):", "if not self.drafted:", PLAIN),
    ("decoding", "if self.done and self.options.learn:", "if self.done and False:", PLAIN),
    ("decoding", "-8 * len(emitted)", "-8", PLAIN),
    ("pairs/pace", 'if "prefill" not in record.costs:', "if True:", PACE),
    ("pairs/pace", "(loss + self._late) / SHARE", "loss / SHARE", PACE),
    ("pairs/pace", '1 if self._times["plain"] else MEASURED', "MEASURED", PACE),
    ("pairs/pace", "min(8 * self._trusted, 128)", "8 * self._trusted", PACE),
    ("pairs/pace", 'if min(self._times["draft"]) >= slow', 'if max(self._times["draft"]) >= slow', PACE),
    ("pairs/pace", "min(map(median_low, self._passes.values()))", "min(map(min, self._passes.values()))", PACE),
    ("pairs/pace", "min(map(median_low, rest))", "min(map(min, rest))", PACE),
    ("pairs/pace", 'tokens * median_low(self._times["draft"])', 'tokens * min(self._times["draft"])', PACE),
    ("pairs/pace", 'tokens * median_low(self._times["draft"])', 'tokens * max(self._times["draft"])', PACE),
    ("pairs/pace", "median_low(self._passes[width])) /", "min(self._passes[width])) /", PACE),
    ("pairs/pace", "            self._waited = 0\n", "", PACE),
    ("pairs/pace", "            self._late = 0.0\n", "", PACE),
    ("pairs/pace", "self._gain([record]), CREDIT)", "self._gain([record]), 2 * CREDIT)", PACE),
    ("pairs/pace", "max(2 * self._waited, ", "max(self._waited, ", PACE),
    ("pairs/pair", "or known != settings:", "or False:", SETTINGS),
    ("pairs/pair", "or draft is not self.draft or", "or", SETTINGS),
    ("pairs/pair", "(options.verify, options.stop,", "(options.stop,", SETTINGS),
    ("pairs/pair", "options.stop, options.sampling,", "options.sampling,", SETTINGS),
    ("pairs/pair", "options.sampling, options.heal,", "options.heal,", SETTINGS),
    ("pairs/pair", "options.heal, options.learn,", "options.learn,", SETTINGS),
    ("pairs/pair", "options.heal, options.learn,", "options.heal,", SETTINGS),
    ("pairs/pair", "options.processor is None)", ")", SETTINGS),
    ("pairs/conversation", "limit - min(options.max_new_tokens, limit // 4)", "limit - limit // 4",
     "test_conversation.py -k short_answers"),
    # files
    ("engine/load", "if wheel.getinfo(one.member).file_size == one.size:", "if True:", PUBLISHED + " -k not_unpacked"),
    ("engine/load", "sha256(installed(name).read_bytes())", "sha256(path.read_bytes())", PUBLISHED + " -k folder"),
    ("engine/config", "np.array_equal(head, ", "bool(1 or ", "test_models.py -k another_head"),
    ("engine/gguf", '"none" if factor is None else "linear"', '"none"', "test_gguf.py -k without_a_type"),
    ("engine/gguf_tokenizer", "DEFAULT = r\"[\\p{P}$+<=>^~|]+\", GPT2, ", "DEFAULT = GPT2, ", "test_gguf.py -k names_no_words"),
    ("engine/gguf_tokenizer", 'own.get("pre") or "default"', 'own.get("pre", "default")', "test_gguf.py -k names_no_words"),
    ("text/confined", "except BaseException as", "except Exception as", "test_gguf.py -k panic"),
    ("text/files", "name != path.name[:50] or", "", PUBLISHED + " -k killed"),
    ("text/files", "        except ProcessLookupError:", "        except ZeroDivisionError:", PUBLISHED + " -k killed"),
)]
TORCH = [Mutant(*fields) for fields in (  # their tests need PyTorch
    ("verification", "_sum(row, tokens) + 0 * float(row[0])", "_sum(row, tokens)", "test_broken_rows.py -k torch"),
    ("pairs/transformers_decoder", "to(torch.float32, copy=True)", "to(torch.float32)", "test_decoder.py -k padded"),
    ("pairs/transformers_decoder", "own.rewind(min(own.length, len(ids) - 1))", "pass", "test_decoder.py -k returned_cache"),
    ("losses_torch", "P.clamp(min=FLOOR)", "P.clamp(min=TINY)", "test_losses_torch.py -k hardly_any"),
    ("sampling_torch", "probs < least, 0.0", "probs <= least, 0.0", "test_torch_twins.py -k processing"),
    ("engine/transformers_numpy", "torch.zeros(one.shape,", "torch.ones(one.shape,", "test_gguf.py -k conversion_drops"),
)]


def source_of(mutant: Mutant, root: Path = ROOT) -> Path:
    """The file that it changes."""
    return root / "omnidraft" / f"{mutant.file}.py"


def misplaced() -> list[str]:
    """The mutants whose old text does not occur exactly once, or whose new text is not valid Python."""
    wrong = []
    for number, m in enumerate(MUTANTS + TORCH):
        source = source_of(m).read_text(encoding="utf-8")
        if (count := source.count(m.old)) != 1:
            wrong.append(f"{number} {m.file}: {m.old!r} occurs {count} times")
            continue
        try:
            compile(source.replace(m.old, m.new), m.file, "exec")
        except SyntaxError as error:
            wrong.append(f"{number} {m.file}: {m.new!r} is a {error}")
    return wrong


def survives(mutant: Mutant | None, tests: str, copy: Path) -> bool:
    """Do the tests pass in the copy with this change, or without one?"""
    words = [f"tests/{word}" if word.startswith("test_") else word.replace("+", " ") for word in tests.split()]
    path, before = (source_of(mutant, copy), source_of(mutant).read_text(encoding="utf-8")) if mutant else (None, "")
    if mutant:
        path.write_text(before.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        done = subprocess.run([sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *words], cwd=copy,
                              env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True)
    finally:
        if mutant:
            path.write_text(before, encoding="utf-8")
    if done.returncode not in (0, 1):
        raise SystemExit(f"pytest could not run {' '.join(words)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 0


def copy_to(folder: str) -> Path:
    """Copy the files that the tests need."""
    for name in ("omnidraft", "tests"):
        shutil.copytree(ROOT / name, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return Path(folder)


def main() -> None:
    """Run the chosen mutants, MUTANT_JOBS at a time, and print those that survive."""
    if wrong := misplaced():
        sys.exit("these mutants no longer fit:\n" + "\n".join(wrong))
    known = MUTANTS + TORCH * bool(find_spec("torch"))
    wanted = [(number, m) for number, m in enumerate(known)
              if not sys.argv[1:] or m.file in sys.argv[1:] or str(number) in sys.argv[1:]]
    jobs, copies, alive = int(os.environ.get("MUTANT_JOBS", "2")), Queue(), 0

    def run(mutant: Mutant | None, tests: str) -> bool:
        copy = copies.get()
        try:
            return survives(mutant, tests, copy)
        finally:
            copies.put(copy)

    with ExitStack() as stack, ThreadPoolExecutor(jobs) as pool:
        for _ in range(jobs):
            copies.put(copy_to(stack.enter_context(tempfile.TemporaryDirectory())))
        named = list(dict.fromkeys(m.tests for _, m in wanted))
        if failing := [tests for tests, fine in zip(named, pool.map(run, repeat(None), named), strict=False) if not fine]:
            sys.exit("these tests fail without any change:\n" + "\n".join(failing))
        results = pool.map(lambda one: run(one[1], one[1].tests), wanted)
        for (number, mutant), survived in zip(wanted, results, strict=True):
            alive += survived
            print(f"{number:3} {'SURVIVES' if survived else 'killed':8} {mutant.file}: {mutant.new.strip()[:80]}", flush=True)
    print(f"{len(wanted) - alive} of {len(wanted)} mutants killed")
    sys.exit(alive > 0)


if __name__ == "__main__":
    main()
