"""Speculative decoding with an assistant of any tokenizer, lossless at any temperature.

    model.generate(**inputs, custom_generate=FOLDER, trust_remote_code=True, tokenizer=tokenizer,
                   assistant_model=assistant, assistant_tokenizer=assistant_tokenizer)

The assistant drafts tokens of its own vocabulary. Both models' distributions are looked at over the
assistant's tokens ("atoms"): a target token is the sequence of atoms with its bytes, its *split*,
and the splits form a trie. Draft tokens reveal atoms one at a time, and the distribution of each
next atom is known for both models, so that rejection sampling compares them, a whole block
at once (the idea of arXiv 2403.10444, on atoms). The text has exactly the distribution of plain
sampling, logits processors included; greedy text is the greedy text.
"""

import json
import os
import re
from dataclasses import dataclass

import torch
from transformers import StoppingCriteriaList, StopStringCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

ROOT = 0
_HIDDEN = [*range(33), *range(127, 161), 173]  # bytes that byte-level vocabularies write otherwise
CHARACTER = [chr(256 + _HIDDEN.index(b)) if b in _HIDDEN else chr(b) for b in range(256)]
BYTE = {character: byte for byte, character in enumerate(CHARACTER)}


class Vocabulary:
    """A tokenizer by the bytes of its tokens (None: special or unused)."""

    def __init__(self, tokenizer, size):
        self.tokenizer, self.raw = tokenizer, tokenizer.backend_tokenizer
        parts = json.loads(self.raw.to_str())
        self.byte_level = '"ByteLevel"' in json.dumps([parts["pre_tokenizer"], parts["decoder"]])
        added = self.raw.get_added_tokens_decoder().values()
        special = {token.content for token in added if token.special}
        self.fallback, self.bytes = {}, [None] * size
        for string, token in sorted(self.raw.get_vocab().items(), key=lambda item: item[1]):
            if token < size and string not in special:
                self.bytes[token] = self._bytes(string, token)

    def _bytes(self, string, token):
        if self.byte_level:  # added tokens are plain text
            spelled = BYTE.keys() >= set(string)
            return bytes(BYTE[c] for c in string) if spelled else string.encode()
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
        except Exception:  # no unknown token, or bytes that are no text
            return ()
        fits = all(i < len(self.bytes) and self.bytes[i] is not None for i in ids)
        return tuple(ids) if fits and b"".join(self.bytes[i] for i in ids) == data else ()


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
        if target_ends and draft_ends:
            covered[(draft_ends[0],)] = target_ends[0]
        splits = {token: split for split, token in covered.items()}
        self.paths = [None] * len(draft.bytes)
        atoms = {atom for split in covered for atom in split}
        for token, data in enumerate(draft.bytes):
            if data and atom_of[data] in atoms:  # of tokens with the same bytes one is the atom
                self.paths[token] = (atom_of[data],)
            elif data and all(t in splits for t in target.split(data)):
                self.paths[token] = tuple(a for t in target.split(data) for a in splits[t]) or None
        if target_ends and draft_ends:
            self.paths[draft_ends[0]] = (draft_ends[0],)
        self.children, self.token, first, last = [{}], [-1], [0], [len(covered)]
        for place, split in enumerate(sorted(covered)):
            node = ROOT
            for atom in split:
                if atom not in self.children[node]:
                    self.children[node][atom] = len(self.token)
                    self.children.append({})
                    self.token.append(-1)
                    first.append(place)
                    last.append(place)
                node = self.children[node][atom]
                last[node] = place + 1
            self.token[node] = covered[split]
        self.range = list(zip(first, last, strict=True))
        self.order = torch.tensor([covered[s] for s in sorted(covered)], dtype=torch.long,
                                  device=device)
        after = {}  # prefix of a path -> draft tokens that continue it, and their next atoms
        for token, path in enumerate(self.paths):
            for cut in range(len(path or ())):
                pair = after.setdefault(path[:cut], ([], []))
                pair[0].append(token)
                pair[1].append(path[cut])
        self.after, self.device, self._kept = after, device, {}

    def kept(self, key, make):
        """The tensor of the numbers that `make` gives, made once."""
        if key not in self._kept:
            self._kept[key] = torch.tensor(make(), dtype=torch.long, device=self.device)
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
        if node == ROOT:
            made[-1] = (p.sum() - made.sum()).clamp(min=0)  # uncovered tokens
        return made

    def draw(self, node, category, p, generator):
        """A target token of one category at `node`, drawn from p restricted to it."""
        if category < len(self.children[node]):
            within = self.below([*self.children[node].values()][category])
            return int(within[choose(p[within], generator)])
        if node != ROOT:
            return self.token[node]
        rest = p.clone()
        rest[self.order] = 0
        return choose(rest, generator)

    def next_atom(self, q, prefix):
        """Q (V_q,) of the atom after `prefix`, given that the drawn token's path continues so."""
        tokens, atoms = self.kept(prefix, lambda: self.after.get(prefix, ((), ())))
        made = torch.zeros_like(q).index_add_(0, atoms, q[tokens])
        return made / made.sum().clamp(min=1e-38) if prefix else made

    def reveal(self, tokens):
        """The atoms of the draft tokens; with each the number of its token and its path before."""
        atoms, drawn = [], []
        for number, token in enumerate(tokens):
            path = self.paths[token] or (None,)
            atoms += path
            drawn += [(number, path[:place]) for place in range(len(path))]
            if path == (None,):
                break
        return atoms, drawn

    def walk(self, atoms):
        """The target tokens that the atoms spell; each end is decided by the next atom only."""
        tokens, node = [], ROOT
        for atom in [*atoms, None]:
            if node != ROOT and atom not in self.children[node]:
                if self.token[node] < 0:
                    break
                tokens.append(self.token[node])
                node = ROOT
            if atom not in self.children[node]:
                break
            node = self.children[node][atom]
        return tokens


def choose(weights, generator):
    """An index drawn in proportion to weights (N,)."""
    return int(torch.multinomial(weights.double(), 1, generator=generator))


def accept(probability, generator, device):
    """True with the given probability."""
    return float(torch.rand((), generator=generator, device=device)) < probability


@dataclass
class Step:
    """One comparison: P and Q of what is next at a node, what was proposed, and r before it."""

    node: int
    row: int
    P: torch.Tensor
    Q: torch.Tensor
    ends: int  # the target token that enters the text if the proposal stays, or -1
    next_node: int
    ratio: float


def compare(atoms, drawn, q_rows, p_rows, lifting, limit):
    """The comparisons of a round as if all stayed, and r after the last.

    r_i = min(1, r_{i-1} P_i / Q_i). An atom that is no child of a node inside the trie proposes
    that the node's token ends there, and is then compared again at the root, given that.
    """
    steps, place, row, node, ratio, narrowed, q_end = [], 0, 0, ROOT, 1.0, None, 1.0
    while place < len(atoms) and row < min(limit, len(p_rows)) and ratio > 0:
        number, prefix = drawn[place]
        q = lifting.next_atom(q_rows[number], prefix)
        if narrowed is not None:  # the same atom has just proposed an end there
            q[lifting.atoms(narrowed)] = 0
            q = q / q_end
        children = lifting.children[node]
        P, drafted = lifting.masses(node, p_rows[row]), q[lifting.atoms(node)]
        end = (1 - drafted.sum()).clamp(min=0) * (node != ROOT)
        P = P / P.sum().clamp(min=1e-38) if node != ROOT else P
        Q = torch.cat([drafted, end[None]])
        child = children.get(atoms[place])
        category = len(children) if child is None else [*children].index(atoms[place])
        whole = child is None or not lifting.children[child]
        ends = lifting.token[node if child is None else child] if whole else -1
        steps.append(Step(node, row, P, Q, ends, ROOT if whole else child, ratio))
        proposed, drawn_with = float(P[category]), float(Q[category])
        if child is None and (node == ROOT or ends < 0):
            proposed = 0.0  # nothing can follow
        ratio = min(1.0, ratio * proposed / drawn_with) if drawn_with > 0 else 0.0
        narrowed, q_end = (node if child is None and node != ROOT else None), drawn_with
        place, row, node = place + (child is not None), row + whole, steps[-1].next_node
    return steps, ratio


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
            step = steps[stays]
            weights = (step.ratio * step.P - step.Q).clamp(min=0)
            left = float(weights.sum())
            if left == 0:
                weights = step.P
            if step.ratio == 1 or accept(left / (left + 1 - step.ratio), generator, device):
                break
    written = [step.ends for step in steps[:stays] if step.ends >= 0]
    if stays < len(steps):
        step = steps[stays]
        category = choose(weights, generator)
        return [*written, lifting.draw(step.node, category, p_rows[step.row], generator)]
    node = steps[-1].next_node if steps else ROOT
    if node != ROOT:  # the atoms ran out inside a token
        within = lifting.below(node)
        written.append(int(within[choose(p_rows[len(written)][within], generator)]))
        if written[-1] != lifting.token[node]:
            return written
    return [*written, choose(p_rows[len(written)], generator)]


class Assistant:
    """The assistant's tokens of the text, their cache, and its drafts."""

    def __init__(self, model, vocabulary, temperature, tokens, threshold, device):
        self.model, self.vocabulary, self.temperature = model, vocabulary, temperature
        self.tokens, self.threshold, self.device = tokens, threshold, device
        self.fed, self.cache, self.ends = [], None, ends_of(model)
        self.longest = getattr(model.config, "max_position_embeddings", 1 << 30)

    def draft(self, text, room, generator):
        """Up to `room` tokens that may follow `text`, and the rows (k, V_q) of them."""
        ids = self.vocabulary.tokenizer(text)["input_ids"]
        ids = ids[:-1] if ids and ids[-1] in self.ends else ids  # some tokenizers close a text
        room = min(room, self.tokens, self.longest - len(ids))
        if not ids or room < 1:
            return [], []
        same = len(os.path.commonprefix([self.fed, ids[:-1]]))
        if self.cache is not None and same < len(self.fed):
            self.cache.crop(same - len(self.fed))
        self.fed, new, tokens, rows = ids, ids[same:], [], []
        while len(tokens) < room:
            out = self.model(torch.tensor([new], device=self.model.device), use_cache=True,
                             past_key_values=self.cache, logits_to_keep=1)
            self.cache = out.past_key_values
            row = (out.logits[0, -1].float() / (self.temperature or 1.0)).softmax(-1)
            token = choose(row, generator) if self.temperature else int(row.argmax())
            tokens.append(token)
            rows.append(row.to(self.device))
            if token in self.ends or float(row[token]) < self.threshold:
                break
            new = [token]
            self.fed = self.fed + new * (len(tokens) < room)
        return tokens, rows


def ends_of(model):
    """The end tokens of a model, as a list."""
    ends = model.generation_config.eos_token_id
    return ends if isinstance(ends, list) else [] if ends is None else [int(ends)]


def decoding(tokenizer, assistant_model, assistant_tokenizer, streamer=None, generator=None):
    """A decoding method for `generate(custom_generate=...)` that drafts with the assistant."""

    @torch.no_grad()
    def decode(model, input_ids, logits_processor, stopping_criteria, generation_config,
               **model_kwargs):
        if len(input_ids) != 1:
            raise ValueError(f"the batch has {len(input_ids)} prompts: give one at a time")
        mask = model_kwargs.get("attention_mask")
        if mask is not None and not mask.all():
            raise ValueError("the attention mask hides tokens: leave padding out")
        if model.config.is_encoder_decoder or getattr(model, "_is_stateful", False):
            raise ValueError("the target must be a decoder whose cache can be cut")
        sampled, device = generation_config.do_sample, input_ids.device
        target = Vocabulary(tokenizer, model.config.get_text_config().vocab_size)
        draft = Vocabulary(assistant_tokenizer, assistant_model.config.get_text_config().vocab_size)
        key = id(tokenizer), str(device)
        known = assistant_tokenizer.__dict__.setdefault("_liftings", {})  # made once
        if key not in known:
            known[key] = Lifting(target, draft, ends_of(model), ends_of(assistant_model), device)
        lifting, limit = known[key], generation_config.num_assistant_tokens or 20
        temperature = (generation_config.temperature or 1.0) if sampled else 0.0
        threshold = generation_config.assistant_confidence_threshold or 0.0
        assistant = Assistant(assistant_model, draft, temperature, limit, threshold, device)
        cache, scores = model_kwargs.get("past_key_values"), []
        longest, done = generation_config.max_length, False
        fed = cache.get_seq_length() if cache is not None else 0
        put = streamer.put if streamer is not None else lambda ids: None
        put(input_ids.cpu())
        while not done:
            count = input_ids.shape[1]
            data = b"".join(target.bytes[i] or b"" for i in input_ids[0].tolist())
            text = data.decode("utf-8", "ignore")
            text = text if target.byte_level else text.removeprefix(" ")
            room = longest - count - 1  # one token is the target's own
            drafted, q_rows = assistant.draft(text, room, generator)
            proposed = lifting.walk(lifting.reveal(drafted)[0])[:room]
            ids = torch.cat([input_ids, input_ids.new_tensor([proposed])], 1)
            out = model(ids[:, fed:], past_key_values=cache, use_cache=True,
                        logits_to_keep=len(proposed) + 1)
            cache, rows = out.past_key_values, []
            for place in range(len(proposed) + 1):  # a processor may read the text before
                row = out.logits[:, place].to(torch.float32)
                rows.append(logits_processor(ids[:, :count + place], row)[0])
            if sampled:
                p_rows = torch.stack(rows).softmax(-1)
                written = verify(drafted, q_rows, p_rows, lifting, room, generator)
            else:
                best = [int(row.argmax()) for row in rows]
                written = best[:len(os.path.commonprefix([proposed, best])) + 1]
            for place, token in enumerate(written):
                input_ids = torch.cat([input_ids, input_ids.new_tensor([[token]])], 1)
                scores.append(rows[place][None])
                if done := bool(stopping_criteria(input_ids, tuple(scores)).all()):
                    break
            put(input_ids[0, count:].cpu())
            fed, held = input_ids.shape[1] - 1, cache.get_seq_length()
            if fed < held:
                cache.crop(fed - held)
        if streamer is not None:
            streamer.end()
        if generation_config.return_dict_in_generate:
            kept = tuple(scores) if generation_config.output_scores else None
            return GenerateDecoderOnlyOutput(sequences=input_ids, scores=kept,
                                             past_key_values=cache)
        return input_ids

    return decode


def generate(model, *args, tokenizer=None, assistant_model=None, assistant_tokenizer=None,
             streamer=None, generator=None, stopping_criteria=None, **kwargs):
    """`model.generate` with drafts of `assistant_model`; arguments as there, and a `generator`.

    Raises ValueError where a model or tokenizer is missing, or there is more than one prompt.
    """
    for name in ("assistant_model", "assistant_tokenizer", "tokenizer"):
        if locals()[name] is None:
            raise ValueError(f"{name} not given: drafting needs both models' tokenizers")
    criteria = StoppingCriteriaList(stopping_criteria or [])
    if strings := kwargs.pop("stop_strings", None):
        criteria.append(StopStringCriteria(tokenizer, strings))
    kwargs = {name: value for name, value in kwargs.items() if value is not None}
    method = decoding(tokenizer, assistant_model, assistant_tokenizer, streamer, generator)
    return model.generate(*args, custom_generate=method, stopping_criteria=criteria, **kwargs)
