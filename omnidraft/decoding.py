"""The decoding loop: draft, translate, verify, update (arXiv 2507.02659, Algorithm 1)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from . import translation
from .drafting import Draft, Drafter, continue_from
from .options import Options
from .pairing import Pairing
from .sampling import Sampler, Uniforms
from .text.errors import OmnidraftError
from .translation import Proposals, until_end
from .verification import Verdict, exact_match, lifted, rejection_sampling


@dataclass
class Round:
    """One round: what was drafted and proposed, what entered the text, and how long it took."""

    draft_tokens: list[int] = field(default_factory=list)  # ids in V_q
    proposals: list[int] = field(default_factory=list)  # ids in V_p
    spans: list[int] = field(default_factory=list)  # draft tokens (or atoms) of each proposal
    accepted: int = 0  # number of proposals kept
    emitted: list[int] = field(default_factory=list)  # ids in V_p that enter the text
    # Per emitted token: "accepted", "merged" (from several draft tokens), "recovered" or "bonus".
    kinds: list[str] = field(default_factory=list)
    draft_kept: int = 0  # draft tokens whose bytes all entered the text
    seconds: dict[str, float] = field(default_factory=dict)  # draft, target, other; first: prefill
    done: bool = False


@dataclass
class Warm:
    """What both models have read, so that the next turn of a conversation feeds only the new part.

    The loop keeps it up to date. Discard it if an exception interrupted a round.
    """

    ids: list[int] = field(default_factory=list)  # the target's ids
    cache: Any = None  # the target's KV cache
    drafter: Drafter | None = None

    def read(self, model: Any, sampler: Sampler, ids: list[int]) -> Any:
        """The target's cache, holding all `ids` but the last, which the first round feeds."""
        self.cache = sampler.new_cache(model) if self.cache is None else self.cache
        continue_from(model, self.cache, self.ids[:self.cache.length], ids, keep=1)
        self.ids = ids
        return self.cache


def plain(model: Any, prompt_ids: str | Sequence[int], options: Options, uniforms: Uniforms,
          warm: Warm | None = None) -> Iterator[Round]:
    """Ordinary decoding, a token per round: the baseline. Arguments are as for `speculative`."""
    began, ids = perf_counter(), check_prompt(model, prompt_ids)
    sampler = getattr(model, "sampler", Sampler)(uniforms, *options.sampling)
    cache, ends = (warm or Warm()).read(model, sampler, ids), options.ends(model)
    seconds = {"prefill": perf_counter() - began}
    end_of_text, done = min(len(ids) + options.max_new_tokens, model.context_size), False
    while not done:
        began = perf_counter()
        logits = sampler.finished(model.forward(ids[cache.length:], cache))
        seconds["target"] = perf_counter() - began
        [token] = choices(logits, ids, options, sampler, model)
        ids.append(token)
        seconds["other"] = perf_counter() - began - seconds["target"]
        done = token in ends or len(ids) >= end_of_text
        yield Round(emitted=[token], kinds=["bonus"], seconds=seconds, done=done)
        seconds = {}


def speculative(pair: Pairing, prompt: str | tuple[Sequence[int], Sequence[int]], options: Options,
                uniforms: Uniforms, learner: Any = None,
                warm: Warm | None = None) -> Iterator[Round]:
    """The drafter proposes, the target verifies (arXiv 2507.02659, Algorithm 1).

    `prompt` is a text, or a pair of ids for the two models (in V_p, in V_q). The part of it that
    `warm` holds is not read again. `learner.observe` (`learning.online`) is called after every
    round. Raises OmnidraftError as `check_prompt` does.
    """
    began, target, warm = perf_counter(), pair.target, warm or Warm()
    target_prompt, draft_prompt = (prompt, prompt) if isinstance(prompt, str) else prompt
    ids = check_prompt(target, target_prompt)
    end_of_text, done = min(len(ids) + options.max_new_tokens, target.context_size), False
    sampler, ends = pair.sampler(uniforms, *options.sampling), options.ends(target)
    lifting = sampler.lifting(pair.lifting, target) if options.verify == "lifted" else None
    cache = warm.read(target, sampler, ids)
    drafter = warm.drafter = Drafter(pair, draft_prompt, options, sampler, warm.drafter)
    seconds = {"prefill": perf_counter() - began}
    while not done:
        began = perf_counter()
        # 1. Draft d_1..d_k from q. If the drafter can spell nothing of the text, it drafts nothing.
        room = end_of_text - len(ids) - 1  # the target adds one token of its own
        may_draft = room > 0 and options.stop.limit > 0 and drafter.ids
        draft = drafter.draft(lifting, room) if may_draft else Draft()
        seconds["draft"] = perf_counter() - began

        # 2. Translate them to proposals t_1..t_m in the target's vocabulary.
        proposals = propose(pair, draft, ids, options, sampler, lifting)
        # One draft token may expand to several target tokens: then there may be too many.
        del proposals.tokens[room:], proposals.spans[room:], proposals.probs[room:]

        # 3. One pass of the target over all of them: rows p_1..p_{m+1}.
        before = perf_counter()
        new, rows = ids[cache.length:] + proposals.tokens, len(proposals.tokens) + 1
        logits = sampler.finished(target.forward(new, cache, rows=rows))
        seconds["target"] = perf_counter() - before

        # 4. Verify: keep the proposals that the target accepts, then add one token of its own.
        verdict = judge(proposals, logits, ids, options, sampler, target, room)
        emitted = until_end(verdict.emitted, ends)
        ids += emitted
        done = emitted[-1] in ends or len(ids) >= end_of_text

        # 5. Both models continue from the new text; the n-gram cache and the learner observe it.
        cache.rewind(min(cache.length, len(ids) - 1))
        written = target.tokenizer.pieces(emitted)
        ids_too = emitted if pair.one_vocabulary else None
        kept = drafter.follow(draft, b"".join(written), silent=written.count(b""), same_ids=ids_too)
        if learner is not None:
            learner.observe(draft, proposals, sampler.to_numpy(logits), emitted, kept, done)
        if options.learn:
            pair.cache.observe(drafter.ids[-8 * len(emitted):], emitted, pair.draft.tokenizer,
                               target.tokenizer)  # aligned from the end: 8 ids a token suffice
        seconds["other"] = perf_counter() - began - seconds["draft"] - seconds["target"]
        accepted = min(verdict.accepted, len(emitted))  # an end token may cut the proposals short
        kinds = ["merged" if span > 1 else "accepted" for span in proposals.spans[:accepted]]
        kinds += [verdict.last] * (len(emitted) - accepted)
        yield Round(draft.tokens, proposals.tokens, proposals.spans, accepted, emitted, kinds, kept,
                    seconds, done)
        seconds = {}


def processed(logits: Any, ids: list[int], options: Options) -> Any:
    """Apply `options.processor` to logits (n, V) in place; `ids`: all before the last row."""
    for row in range(len(logits) if options.processor else 0):
        before = ids[:len(ids) - len(logits) + 1 + row]
        logits[row] = options.processor(before, logits[row])
    return logits


def choices(logits: Any, ids: list[int], options: Options, sampler: Sampler,
            model: Any) -> Iterator[int]:
    """What the model itself writes at each of logits (n, V); `ids`: all before the last row.

    subtle: a row is processed when its choice is asked for. So a processor may keep state: it is
    called once per token of the text, in order, and never for what follows a rejection or an end.
    """
    if options.processor is None:
        yield from sampler.choices(logits, model.tokenizer.size)
        return
    token, ends = None, options.ends(model)
    for row in range(len(logits)):
        if token not in ends:
            before = ids[:len(ids) - len(logits) + 1 + row]
            one = processed(logits[row:row + 1], before, options)
            [token] = sampler.choices(one, model.tokenizer.size)
        yield token  # after an end it is never written: no need to look for another


def propose(pair: Pairing, draft: Draft, ids: Sequence[int], options: Options, sampler: Sampler,
            lifting: Any) -> Proposals:
    """The target tokens that a draft proposes, after the text `ids`."""
    rule, size = options.verify, pair.target.vocab_size
    if rule in ("tli", "omnidraft"):
        spread = (lambda q: sampler.spread(q, pair.direct, size)) if options.temperature else None
        match, spellings = (lambda tokens, start: None), {}
        if rule == "omnidraft":
            match, spellings = pair.cache.longest_match, pair.spellings
        return translation.merge(draft.tokens, draft.probs, pair.direct, match, spellings, spread)
    if options.exact_match:
        # Compared with the target's own choices any proposal is exact, so propose its own spelling.
        return respelled(pair, draft, ids, rule)
    in_text = () if draft.taken_back is None else lifting.paths[draft.taken_back]
    atoms, origins = lifting.reveal(draft.tokens, draft.probs, in_text)
    return Proposals(*lifting.walk(atoms), atoms=atoms, origins=origins, lifting=lifting)


def respelled(pair: Pairing, draft: Draft, ids: Sequence[int], rule: str) -> Proposals:
    """The drafted text in the target's own tokens, as they would continue `ids`."""
    target, ends, data = pair.target, pair.draft.eos_ids, draft.data(pair.draft.tokenizer)
    if rule == "lifted" and pair.one_vocabulary:  # do not re-tokenise a word cut off by the draft
        tokens = [token for token in draft.tokens if token not in ends]
    else:
        try:
            tokens = translation.continuation(target.tokenizer, ids, data) if data else []
        except OmnidraftError:  # a draft that cannot be spelled is not proposed
            return Proposals()
    spans = [pair.span(token) for token in tokens]
    if draft.tokens and draft.tokens[-1] in ends and target.eos_ids:
        end = int(pair.alignment.draft_to_target[draft.tokens[-1]])
        tokens.append(end if end >= 0 else target.eos_ids[0])
        spans.append(1)
    return Proposals(tokens, spans)


def judge(proposals: Proposals, logits: Any, ids: list[int], options: Options, sampler: Sampler,
          target: Any, room: int) -> Verdict:
    """The verdict on a round's proposals (m,) after `ids`, given logits (m + 1, V_p)."""
    tokens, uniforms = proposals.tokens, sampler.uniforms
    if options.exact_match:
        return exact_match(tokens, choices(logits, ids + tokens, options, sampler, target))
    rows = sampler.rows(processed(logits, ids + tokens, options), target.tokenizer.size)
    if options.verify == "lifted":
        return lifted(proposals.atoms, proposals.origins, proposals.lifting, rows, uniforms, room)
    return rejection_sampling(tokens, proposals.rows, rows, uniforms, proposals.probs)


def check_prompt(model: Any, prompt: str | Sequence[int]) -> list[int]:
    """The ids of a prompt, a text or ids; OmnidraftError if it is empty or too long."""
    is_text, most = isinstance(prompt, str), model.context_size * model.tokenizer.longest
    if is_text and len(prompt) > most:  # too long in any tokenization: do not encode it
        raise OmnidraftError(f"the prompt has {len(prompt)} characters, but {model.name} reads at "
                             f"most {model.context_size - 1} tokens ({most} bytes): shorten it")
    ids = model.tokenizer.encode(prompt, bos=True) if is_text else list(prompt)
    if not prompt:
        raise OmnidraftError("the prompt is empty: give some text to continue")
    if not ids:
        raise OmnidraftError(f"no token of {model.name} spells any of the prompt: write it in "
                             "characters that the model knows")
    if len(ids) >= model.context_size:
        raise OmnidraftError(f"the prompt has {len(ids)} tokens, but {model.name} reads at most "
                             f"{model.context_size - 1}: shorten it")
    return ids
