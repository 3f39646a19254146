"""Speculative decoding with an assistant of any tokenizer, lossless at any temperature.

The assistant drafts tokens of its own vocabulary. Both models' distributions are looked at over the
assistant's tokens ("atoms"): a target token is the sequence of atoms with its bytes, its *split*,
and the splits form a trie. Draft tokens reveal atoms one at a time. Of each next atom both models'
distributions are known, and rejection sampling compares a whole block (as in arXiv 2403.10444).
Text is distributed as in plain sampling, processors included; greedy text is the greedy text.
"""

import json
import os
import re
from dataclasses import dataclass
from functools import partial
from inspect import signature
from itertools import takewhile

import torch
from transformers import DynamicCache, StoppingCriteriaList, StopStringCriteria
from transformers.cache_utils import DynamicLayer
from transformers.generation.utils import GenerateDecoderOnlyOutput

ROOT = 0
ONE_ENTRY_PER_TOKEN = {"DynamicLayer", "DummyLayer"}  # kinds of layers in a cache
NEEDED = {"assistant_model": "generation_config", "assistant_tokenizer": "backend_tokenizer",
          "tokenizer": "backend_tokenizer"}  # by which a part is recognised
KIND = {"generation_config": "causal language model of transformers",
        "backend_tokenizer": "fast tokenizer of transformers, such as AutoTokenizer gives"}
METHODS = ("dola_layers", "penalty_alpha", "prompt_lookup_num_tokens")  # other ways to decode
_HIDDEN = [*range(33), *range(127, 161), 173]  # bytes that byte-level vocabularies write otherwise
CHARACTER = [chr(256 + _HIDDEN.index(b)) if b in _HIDDEN else chr(b) for b in range(256)]
BYTE = {character: byte for byte, character in enumerate(CHARACTER)}


class Vocabulary:
    """A tokenizer by the bytes of its tokens (None: special or unused)."""

    def __init__(self, tokenizer, size):
        self.raw = tokenizer.backend_tokenizer
        self.ids, parts = self.raw.get_vocab(), json.loads(self.raw.to_str())
        self.byte_level = '"ByteLevel"' in json.dumps([parts["pre_tokenizer"], parts["decoder"]])
        special = {t.content for t in self.raw.get_added_tokens_decoder().values() if t.special}
        self.fallback, self.bytes = {}, [None] * size
        for string, token in sorted(self.ids.items(), key=lambda item: item[1]):
            if token < size and string not in special:
                self.bytes[token] = self._bytes(string, token)

    def _bytes(self, string, token):
        if self.byte_level:  # added tokens are plain text
            return bytes(BYTE[c] for c in string) if BYTE.keys() >= set(string) else string.encode()
        if found := re.fullmatch(r"<0x([0-9A-F]{2})>", string):
            self.fallback[token] = int(found[1], 16)
            return bytes([self.fallback[token]])
        return string.replace("▁", " ").encode()

    def split(self, data):
        """Tokens that have the bytes `data` when joined, as the merges make them; () if none do."""
        try:
            text = "".join(CHARACTER[b] for b in data) if self.byte_level else (
                data.decode("utf-8").replace(" ", "▁"))
            ids = [token.id for token in self.raw.model.tokenize(text)]
            return tuple(ids) if b"".join(self.bytes[i] for i in ids) == data else ()
        except Exception:  # bytes that are no text, or a token that is unknown or has none
            return ()


class Lifting:
    """The trie of the target tokens' splits, and the path of atoms of each draft token.

    Nodes are numbers; below(n), the target tokens whose split passes through node n, are a range of
    `order`, the node's own token first. Of tokens with equal bytes one is covered, the others stay
    possible as *uncovered* tokens, which no atom proposes.
    """

    def __init__(self, target, draft, target_ends, draft_ends, device):
        atom_of, covered = {}, {}  # bytes -> draft token; split -> target token
        for token, data in enumerate(draft.bytes):
            if data and (data not in atom_of or atom_of[data] in draft.fallback):
                atom_of[data] = token
        for token, data in enumerate(target.bytes):
            if data:
                split = (atom_of[data],) if data in atom_of else draft.split(data)
                if split and (split not in covered or covered[split] in target.fallback):
                    covered[split] = token
        if target_ends and draft_ends and target_ends[0] not in covered.values():  # one split each
            covered[(draft_ends[0],)] = target_ends[0]
        splits = {token: split for split, token in covered.items()}
        self.paths = [None] * len(draft.bytes)
        atoms = {atom for split in covered for atom in split}
        for token, data in enumerate(draft.bytes):
            if atom_of.get(data, token) in atoms:  # of tokens with the same bytes one is the atom
                self.paths[token] = (atom_of.get(data, token),)
            elif data and all(t in splits for t in target.split(data)):
                self.paths[token] = tuple(a for t in target.split(data) for a in splits[t]) or None
        self.children, self.token, self.range = [{}], [-1], [[0, len(covered)]]
        for place, split in enumerate(sorted(covered)):
            node = ROOT
            for atom in split:
                if atom not in self.children[node]:
                    self.children[node][atom] = len(self.token)
                    self.children.append({})
                    self.token.append(-1)
                    self.range.append([place, place])
                node = self.children[node][atom]
                self.range[node][1] = place + 1
            self.token[node] = covered[split]
        self._kept, self._how = {}, {"dtype": torch.long, "device": device}
        self.order = torch.tensor([covered[split] for split in sorted(covered)], **self._how)
        self.uncovered = torch.tensor([*{*range(len(target.bytes))} - splits.keys()], **self._how)
        after = {(): []}  # prefix of a path -> draft tokens that continue it, with their next atoms
        for token, path in enumerate(self.paths):
            for cut in range(len(path or ())):
                after.setdefault(path[:cut], []).append((token, path[cut]))
        self.after = {k: torch.tensor(v, **self._how).reshape(-1, 2).T for k, v in after.items()}

    def kept(self, key, make):
        """The tensor that `make` gives, or of its numbers, made once."""
        if key not in self._kept:
            self._kept[key] = torch.as_tensor(make(), **self._how)
        return self._kept[key]

    def below(self, node):
        """The target tokens below a node."""
        return self.order[slice(*self.range[node])]

    def atoms(self, node):
        """The atoms (C,) that lead on from a node."""
        return self.kept(node, lambda: [*self.children[node]])

    def masses(self, node, p):
        """p (V_p,) summed by what is next at `node`: its C children, and that a token ends here."""
        sizes = [self.range[child] for child in self.children[node].values()]
        own = [len(sizes)] * (node != ROOT and self.token[node] >= 0)
        category = self.kept((node, "category"), lambda: own + [
            i for i, (first, last) in enumerate(sizes) for _ in range(first, last)])
        made = p.new_zeros(len(sizes) + 1).index_add_(0, category, p[self.below(node)])
        made[-1] += p[self.uncovered].sum() * (node == ROOT)
        return made

    def members(self, node, category):
        """The target tokens of one category at `node`."""
        if category < len(self.children[node]):
            return self.below([*self.children[node].values()][category])
        return self.below(node)[:1] if node != ROOT else self.uncovered

    def drafted(self, prefix, node, atom):
        """The draft tokens that continue `prefix` with the atom; if no child, with a child's."""
        tokens, atoms = self.after[prefix]
        atom = atom if atom in self.children[node] else None
        wanted = self.atoms(node) if atom is None else atom
        return self.kept((prefix, node, atom), lambda: tokens[torch.isin(atoms, wanted)])

    def next_atom(self, q, prefix):
        """Q (V_q,) of the atom after `prefix`, given that the drawn token's path continues so."""
        tokens, atoms = self.after[prefix]
        made = torch.zeros_like(q).index_add_(0, atoms, q[tokens])
        return made / made.sum().clamp(min=1e-38) if prefix else made

    def reveal(self, tokens):
        """The atoms of the draft tokens; with each the number of its token and its path before."""
        atoms, drawn = [], []
        for number, token in enumerate(tokens):
            path = self.paths[token] or (None,)
            atoms += path
            drawn += [(number, path[:place]) for place in range(len(path))]
        return atoms, drawn

    def route(self, atoms):
        """The comparisons while all stay, up to an atom that nothing can follow.

        An atom that is no child of a node inside the trie proposes that the node's token ends
        there, and is then compared again at the root, given that.
        """
        place, row, node, narrowed = 0, 0, ROOT, ROOT
        while place < len(atoms):
            child = self.children[node].get(atoms[place])
            whole = child is None or not self.children[child]
            ends = self.token[node if child is None else child] if whole else -1
            yield Step(place, row, node, child, ends, ROOT if whole else child, narrowed)
            if whole and ends < 0:
                return
            place, row = place + (child is not None), row + whole
            node, narrowed = ROOT if whole else child, node if child is None else ROOT

    def walk(self, atoms):
        """The target tokens that the atoms spell; what ends with the last atom counts."""
        return [step.ends for step in self.route([*atoms, None]) if step.ends >= 0]


def choose(weights, generator):
    """An index drawn in proportion to weights (N,)."""
    return int(torch.multinomial(weights.double(), 1, generator=generator))


def accept(probability, generator, device):
    """True with the given probability."""
    return float(torch.rand((), generator=generator, device=device)) < probability


@dataclass
class Step:
    """One comparison: where its atom and row are, what is proposed, and r before it."""

    place: int
    row: int
    node: int
    child: int | None  # that the atom proposes, or that a token ends at the node
    ends: int  # the target token that enters the text if the proposal stays, or -1
    next_node: int
    narrowed: int  # the node at which the same atom has just proposed an end, or ROOT
    left: float = 1.0  # Q of that end
    ratio: float = 1.0


def compare(atoms, drawn, q_rows, p_rows, lifting, limit):
    """The comparisons of a round as if all stayed, and r after the last.

    r_i = min(1, r_{i-1} P_i / Q_i). Only P and Q of what is proposed are worked out, all at once.
    """
    steps, parts, last = [], [], min(limit, len(p_rows))
    for step in takewhile(lambda step: step.row < last, lifting.route(atoms)):
        steps.append(step)
        number, prefix = drawn[step.place]
        p, q, own = p_rows[step.row], q_rows[number], lifting.token[step.node] >= 0
        within = lifting.below(step.node)[:own] if step.child is None else lifting.below(step.child)
        parts += [p[within].sum(), q[lifting.drafted(prefix, step.node, atoms[step.place])].sum()]
        parts += [q[lifting.after[prefix][0]].sum() if prefix else q.new_ones(())]
    mass, left, ratio = 1.0, 1.0, 1.0
    numbers = torch.stack(parts).reshape(-1, 3).tolist() if steps else []
    for step, (proposed, drafted, possible) in zip(steps, numbers, strict=True):
        share, step.left, step.ratio = drafted / (possible or 1.0), left, ratio
        drawn_with = (share if step.child is not None else max(0.0, 1 - share)) / (left or 1.0)
        ratio = min(1.0, ratio * proposed / mass / drawn_with) if drawn_with > 0 else 0.0
        if ratio == 0:
            return steps[:steps.index(step) + 1], ratio
        mass = 1.0 if step.next_node == ROOT else proposed
        left = drawn_with if step.child is None else 1.0
    return steps, ratio


def categories(step, drawn, q_rows, p_rows, lifting):
    """P and Q (C + 1,) of all that can be next at a comparison: children, or that a token ends."""
    number, prefix = drawn[step.place]
    q = lifting.next_atom(q_rows[number], prefix)
    if step.narrowed != ROOT:
        q[lifting.atoms(step.narrowed)] = 0
        q /= step.left
    P, drafted = lifting.masses(step.node, p_rows[step.row]), q[lifting.atoms(step.node)]
    end = (1 - drafted.sum()).clamp(min=0) * (step.node != ROOT)
    return P / P.sum().clamp(min=1e-38) if step.node != ROOT else P, torch.cat([drafted, end[None]])


def verify(tokens, q_rows, p_rows, lifting, limit, generator):
    """The tokens that a round writes, at most `limit` and one; p_rows (m + 1, V_p).

    From the last comparison back, the first that may stay does: with h = Z / (Z + 1 - r),
    Z = sum max(0, r P - Q); what is drawn there has weights max(0, r P - Q). Given that the draft
    passes a comparison, something at or after it stays with probability r: never less than with
    token-wise tests, and what stays together with what is drawn has the distribution P.
    """
    atoms, drawn = lifting.reveal(tokens)
    (steps, ratio), device = compare(atoms, drawn, q_rows, p_rows, lifting, limit), p_rows.device
    stays = len(steps)
    if not accept(ratio, generator, device):
        for stays in reversed(range(len(steps))):
            r = steps[stays].ratio  # as h <= r, r alone refuses most
            if r < 1 and not accept(r, generator, device):
                continue
            P, Q = categories(steps[stays], drawn, q_rows, p_rows, lifting)
            weights = (r * P - Q).clamp(min=0)
            left = float(weights.sum())
            if r == 1 or accept(left / (left + 1 - r) / r, generator, device):
                break
        weights = P if left == 0 else weights
    written = [step.ends for step in steps[:stays] if step.ends >= 0]
    node, p = steps[-1].next_node if steps else ROOT, p_rows[len(written)]
    if stays < len(steps):
        within = lifting.members(steps[stays].node, choose(weights, generator))
    elif node != ROOT:  # the atoms ran out inside a token
        within = lifting.below(node)
    else:
        return [*written, choose(p, generator)]
    written.append(int(within[choose(p[within], generator)]))
    if stays == len(steps) and written[-1] == lifting.token[node]:
        written.append(choose(p_rows[len(written)], generator))
    return written


def cache_name(names):
    """What transformers calls a cache: "cache", or "past_key_values" until 5.23; "" for none."""
    return next((name for name in ("cache", "past_key_values") if name in names), "")


def unwrapped(model):
    """The model inside the wrappers of PEFT and `torch.compile`, which computes the same."""
    inside = getattr(model, "_orig_mod", None)
    if inside is None and hasattr(model, "get_base_model"):
        inside = model.get_base_model()
    return model if inside is None else unwrapped(inside)


def reader(model):
    """A function of ids (1, m), a cache that grows and rows; the logits (rows, V) of the last."""
    known = signature(model.forward).parameters
    name = cache_name(known)

    def read(ids, cache, rows):
        held = {name: cache} if cache is not None else {}
        if "position_ids" in known:  # as `generate` gives them: some models count otherwise
            first = length(cache)
            places = torch.arange(first, first + ids.shape[1], device=ids.device)
            held["position_ids"] = places[None]
        try:
            out = model(ids, use_cache=cache is not None, logits_to_keep=rows, **held)
        except AssertionError as error:  # ProphetNet takes one token at a time
            raise ValueError(f"{type(model).__name__} does not read several tokens at once, which "
                             f"drafting needs: {error}") from error
        return out.logits[0, -rows:].to(torch.float32)  # some models return all rows

    return read


def length(cache):
    """The number of tokens in a cache; 0 for None and for a state, which has no length."""
    layers = getattr(cache, "layers", ())
    return max((x.get_seq_length() for x in layers if hasattr(x, "get_seq_length")), default=0)


def kinds(cache):
    """The names of the kinds of layers in a cache."""
    return {type(layer).__name__ for layer in cache.layers}


def new_cache(model):
    """An empty cache that can be shortened, or could be if `shortens` finds so."""
    cache = DynamicCache(config=model.config)
    # keep what a window drops: masks hide it
    cache.layers = [DynamicLayer() if type(layer).__name__ == "DynamicSlidingWindowLayer" else layer
                    for layer in cache.layers]
    if hasattr(cache, "activate_past_recording"):
        cache.activate_past_recording()
    return cache


def shorten(cache, count):
    """Remove the last `count` tokens from a cache, and what was kept to make that possible."""
    if count or "tokens_to_remove" in signature(cache.crop).parameters:  # older: 0 removes all
        cache.crop(-count)


def shortens(model):
    """Can the last tokens be taken back from a model's cache, without a trace?"""
    if getattr(model, "_is_stateful", False) or not cache_name(signature(model.forward).parameters):
        return False
    cache = new_cache(model)
    if kinds(cache) <= ONE_ENTRY_PER_TOKEN:
        return True
    try:  # take tokens back that were read with others, and alone
        read, ids = reader(model), torch.tensor([[3, 4, 5, 6, 7, 8, 9]], device=model.device)
        read(ids[:, :6], cache, 1)
        shorten(cache, 1)
        read(ids[:, :1], cache, 1)
        shorten(cache, 1)
        found, wanted = read(ids[:, 5:], cache, 2), read(ids, None, 2)
        return bool((found - wanted).abs().max() < 1e-2 * wanted.std())
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
        return False


class Assistant:
    """The assistant's tokens of the text, their cache, and its drafts."""

    def __init__(self, model, config, device):
        self.read, self.reads_on = reader(model), model.device
        self.config, self.device = config, device
        self.fed, self.cache, self.ends = [], new_cache(model), ends_of(model)
        self.longest = getattr(model.config, "max_position_embeddings", 1 << 30)

    def draft(self, ids, room, generator):
        """Up to `room` tokens that may follow `ids`, and the rows (k, V_q) of them."""
        room = min(room, self.longest - len(ids), self.config.num_assistant_tokens or 20)
        same = len(os.path.commonprefix([self.fed, ids[:-1]]))
        shorten(self.cache, len(self.fed) - same)
        self.fed, new, tokens, rows = ids[:same], ids[same:], [], []
        threshold = self.config.assistant_confidence_threshold or 0.0
        while ids and len(tokens) < room:
            [row] = self.read(torch.tensor([new], device=self.reads_on), self.cache, 1)
            row = (row / (self.config.temperature or 1.0)).softmax(-1)
            token = choose(row, generator) if self.config.do_sample else int(row.argmax())
            self.fed, new = self.fed + new, [token]
            tokens.append(token)
            rows.append(row.to(self.device))
            if token in self.ends or float(row[token]) < threshold:
                break
        return tokens, rows


def process(processor, ids, row, advice=""):
    """The processed row (1, V) after ids (1, n); ValueError of one line if a processor raises."""
    try:
        return processor(ids, row)
    except Exception as error:
        says = f"{type(error).__name__} {error}".strip()
        raise ValueError(f"a logits processor failed: {says}{advice}") from error


def keeps_state(processor, ids, row):
    """Is the row after ids another one once a longer text was processed?"""
    advice = "; if it keeps state, use do_sample=False, where it is called once per token"
    before = process(processor, ids, row.clone(), advice)  # processors may change their argument
    likely = before.clone().index_fill(1, ids[0], -torch.inf)  # a token that is new to the text
    longer = torch.cat([ids, likely.argmax(-1, keepdim=True)], 1)
    process(processor, longer, row.clone(), advice)
    after = process(processor, ids, row.clone(), advice)
    return not bool(((before == after) | ((before - after).abs() < 1e-3) | before.isnan()).all())


def greedy(proposed, processed):
    """The target's choice and its row at each place, while that is what was proposed.

    A row is processed when it is reached, so a processor is called once per token, in order.
    """
    for place, token in enumerate([*proposed, None]):
        row = processed(place)
        highest, choice = row.max(-1)
        if not highest.isfinite():
            raise ValueError("logits are NaN or infinite, or the processors ruled out every token")
        choice = int(choice)
        yield choice, row
        if choice != token:
            return


def ends_of(model):
    """The end tokens of a model, as a list."""
    ends = model.generation_config.eos_token_id
    return ends if isinstance(ends, list) else [] if ends is None else [int(ends)]


@torch.no_grad()
def decode(tokenizer, assistant_model, assistant_tokenizer, streamer, generator, model, input_ids,
           logits_processor, stopping_criteria, generation_config, **more):
    """What `generate(custom_generate=...)` calls, given the first five: prompt and text (1, n)."""
    config, mask, start = generation_config, more.get("attention_mask"), input_ids.shape[1]
    model, assistant_model = unwrapped(model), unwrapped(assistant_model)
    cache = more.pop(cache_name(more), None)
    held = length(cache)
    if cache is None or not held and not kinds(cache) <= ONE_ENTRY_PER_TOKEN:
        cache = new_cache(model)
    others = {name for name in more if torch.is_tensor(more[name])}
    for wrong, why in (
        (len(input_ids) != 1, f"the batch has {len(input_ids)} prompts: give one at a time"),
        (mask is not None and 0 in mask, "the mask hides tokens: give the ids without padding"),
        (model.config.is_encoder_decoder or assistant_model.config.is_encoder_decoder
         or held and not kinds(cache) <= ONE_ENTRY_PER_TOKEN
         or not (shortens(model) and shortens(assistant_model)),
         "both models must be decoders whose caches can be shortened"),
        (held >= start or others - {"attention_mask", "position_ids", "cache_position"}
         or config.output_logits or config.output_attentions or config.output_hidden_states,
         "give all ids and no other input; of the optional outputs, only scores are supported"),
        ([name for name in METHODS if getattr(config, name, None) is not None],
         f"{', '.join(METHODS)} are other decoding methods: leave them out"),
    ):
        if wrong:
            raise ValueError(why)
    known = assistant_tokenizer.__dict__.setdefault("_liftings", {})  # made once
    ends = ends_of(model), ends_of(assistant_model)
    sizes = [one.config.get_text_config().vocab_size for one in (model, assistant_model)]
    key = id(tokenizer), str(input_ids.device), *sizes, str(ends)
    if key not in known:
        both = Vocabulary(tokenizer, sizes[0]), Vocabulary(assistant_tokenizer, sizes[1])
        one_vocabulary = both[0].ids == both[1].ids
        known[key] = both[0], Lifting(*both, *ends, input_ids.device), one_vocabulary, tokenizer
    target, lifting, one_vocabulary, _ = known[key]  # kept as well, so that its id stays its own
    assistant, read_target = Assistant(assistant_model, config, input_ids.device), reader(model)
    scores, done, fed = [], False, held
    keeps = config.output_scores and config.return_dict_in_generate
    put, end = (streamer.put, streamer.end) if streamer is not None else [lambda *ids: None] * 2
    put(input_ids.cpu())
    while not done:
        count, read = input_ids.shape[1], input_ids[0].tolist()
        if one_vocabulary:
            read = [token for token in read if token < sizes[1]]  # not the target's padding
        else:  # then the assistant reads the text in its own tokens
            text = b"".join(target.bytes[i] or b"" for i in read).decode("utf-8", "ignore")
            read = assistant_tokenizer(text.removeprefix("" if target.byte_level else " ")).input_ids
            read = read[:-1] if read and read[-1] in assistant.ends else read  # it may add an end
        room = config.max_length - count - 1  # one token is the target's own
        drafted, q_rows = assistant.draft(read, room, generator)
        proposed = lifting.walk(lifting.reveal(drafted)[0])[:room]
        ids = torch.cat([input_ids, input_ids.new_tensor([proposed])], 1)
        logits = read_target(ids[:, fed:], cache, len(proposed) + 1)

        def processed(place, ids=ids, logits=logits, count=count):
            return process(logits_processor, ids[:, :count + place], logits[None, place])

        if config.do_sample:
            if count == start and keeps_state(logits_processor, input_ids, logits[None, 0]):
                raise ValueError("a logits processor keeps state: above temperature 0 only ids and "
                                 "logits may decide; with do_sample=False it may count its calls")
            rows = [processed(place) for place in range(len(proposed) + 1)]
            tokens = verify(drafted, q_rows, torch.cat(rows).softmax(-1), lifting, room, generator)
            written = zip(tokens, rows, strict=False)
        else:
            written = greedy(proposed, processed)
        for token, row in written:
            input_ids = torch.cat([input_ids, input_ids.new_tensor([[token]])], 1)
            scores += [row] * keeps
            if done := bool(stopping_criteria(input_ids, tuple(scores) if keeps else None).all()):
                break
        put(input_ids[0, count:].cpu())
        fed = input_ids.shape[1] - 1
        shorten(cache, ids.shape[1] - fed)
    end()
    if not config.return_dict_in_generate:
        return input_ids
    kept = tuple(scores) if keeps else None
    name = cache_name(GenerateDecoderOnlyOutput.__dataclass_fields__)
    return GenerateDecoderOnlyOutput(sequences=input_ids, scores=kept, **{name: cache})


def shown(value):
    """What a value looks like, in one short line."""
    return " ".join(repr(value).split())[:80]


def generate(model, *args, tokenizer=None, assistant_model=None, assistant_tokenizer=None,
             streamer=None, generator=None, stopping_criteria=None, **kwargs):
    """`model.generate` with drafts of `assistant_model`, also with a `generator`.

    Raises ValueError if a part is missing or of the wrong kind, or for what is not supported.
    """
    given = {"assistant_model": assistant_model, "assistant_tokenizer": assistant_tokenizer,
             "tokenizer": tokenizer}
    for name, value in given.items():
        if value is None:
            raise ValueError(f"{name} is missing: drafting needs both models and their tokenizers")
        if not hasattr(value, NEEDED[name]):
            raise ValueError(f"{name} is {shown(value)}, but must be a {KIND[NEEDED[name]]}")
    if streamer is not None and not (hasattr(streamer, "put") and hasattr(streamer, "end")):
        raise ValueError(f"streamer is {shown(streamer)}, but needs `put` and `end`: use one of "
                         "transformers, such as TextStreamer")
    if not (generator is None or isinstance(generator, torch.Generator)):
        raise ValueError(f"generator is {shown(generator)}, but must be a torch.Generator")
    strings = kwargs.pop("stop_strings", None)
    texts = strings if isinstance(strings, (list, tuple)) else [strings]
    if strings is not None and not all(isinstance(text, str) for text in texts):
        raise ValueError(f"stop_strings is {shown(strings)}, but must be text or a list of it")
    criteria = StoppingCriteriaList(stopping_criteria or [])
    if strings:
        criteria.append(StopStringCriteria(tokenizer, strings))
    method = partial(decode, tokenizer, assistant_model, assistant_tokenizer, streamer, generator)
    return model.generate(*args, custom_generate=method, stopping_criteria=criteria, **kwargs)
