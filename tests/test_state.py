"""The state between rounds: both caches, the lifting, the effects of healing, and the head's labels and features."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
from fakes import FakeModel
from mutants import MUTANTS, ROOT, misplaced
from test_decoding import BYTES, PIECES, SMALL_BYTES, SMALL_PIECES

from omnidraft import sampling
from omnidraft.decoding import Text, speculative
from omnidraft.drafting import Draft, Drafter
from omnidraft.exactness import World
from omnidraft.exactness.tables import TableModel
from omnidraft.learning.online import Learner, Schedule
from omnidraft.learning.training import Trainer
from omnidraft.ngram_cache import NGramCache
from omnidraft.options import Options
from omnidraft.pairs.pair import Pair
from omnidraft.reading import Reader
from omnidraft.sampling import Sampler, Uniforms
from omnidraft.stopping import AcceptanceHead, Confidence, FixedLength
from omnidraft.verification import RULES, comparisons, ratio
from omnidraft.vocabulary import canonical_ids


def check_cache(reader: Reader) -> None:
    """The cache holds what the reader says: the start of the text, then the ids ahead of it."""
    cached = reader.ids[:reader.held] + reader.ahead
    assert reader.cache.ids[:len(cached)] == cached


def seeded(seed: int) -> Uniforms:
    return Uniforms(np.random.default_rng(seed))


# ---- caches ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_after_every_round_the_caches_hold_the_text(rule, temperature):
    healed = []

    class Watch:
        def observe(self, draft, proposals, logits, emitted, kept, done):
            healed.append(draft.taken_back is not None)

    for seed, (ours, theirs) in enumerate([(PIECES, BYTES), (BYTES, PIECES), (SMALL_PIECES, SMALL_BYTES)] * 2):
        pair = Pair(FakeModel(ours, seed, end=-9.0, context_size=40), FakeModel(theirs, seed + 1, end=-9.0))
        text, options = Text(pair), Options(verify=rule, stop=FixedLength(4), temperature=temperature, max_new_tokens=40)
        for _ in speculative(pair, "ab ba a", options, seeded(seed), Watch(), text):
            check_cache(text.target)
            check_cache(text.drafter.reader)
            assert text.target.held >= len(text.ids) - 1
            written, read = theirs.decode_bytes(text.ids), ours.decode_bytes(text.draft_ids)
            assert read and written.endswith(read.lstrip(b" "))
    assert any(healed) == (rule == "lifted")


def test_only_what_changed_is_compared_and_the_rest_is_fed_again():
    """After a healed token that the target kept, and after one that it rejected."""
    for kept in (True, False):
        pair = Pair(FakeModel(SMALL_PIECES, 0), FakeModel(SMALL_BYTES, 50))
        drafter = Drafter(pair, "ab a ", Options(temperature=0.9), Sampler(seeded(0), 0.9))
        draft = next(made for made in (drafter.draft(pair.lifting, 3) for _ in range(50)) if made.taken_back is not None)
        data = draft.data(SMALL_PIECES)
        written = drafter.follow(draft, data if kept else b"bb")
        assert (written > 0) == kept
        check_cache(drafter.reader)
        drafter.draft(pair.lifting, 2)
        check_cache(drafter.reader)
        assert drafter.reader.held >= len(drafter.ids) - 1
        assert SMALL_PIECES.decode_bytes(drafter.ids).lstrip().startswith(b"ab a " + (data if kept else b"bb")[:1])


def test_drafts_come_from_the_rows_after_what_healing_drew():
    """The context token itself, or the longer token that replaces it."""
    stood = healed = 0
    for seed in range(40):
        model = FakeModel(SMALL_PIECES, seed)
        drafter = Drafter(Pair(model, FakeModel(SMALL_BYTES, 50)), "ab a ", Options(temperature=1.0),
                          Sampler(seeded(seed), 1.0))
        draft, ids = drafter.draft(Pair(model, FakeModel(SMALL_BYTES, 50)).lifting, 2), [*drafter.ids]
        if draft.taken_back is None:
            stood += 1
            assert draft.probs[0] == pytest.approx(sampling.process(model.row(ids)))
        elif len(draft.tokens) > 1:
            healed += 1
            assert draft.probs[1] == pytest.approx(sampling.process(model.row([*ids[:-1], draft.tokens[0]])))
    assert stood > 5 and healed > 5


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_short_text_is_healed_once_a_token_precedes_its_last(count):
    """Healing reads the row before the last token, so it needs one more; a single longer token suffices for it."""
    healed = 0
    for seed in range(40):
        pair = Pair(FakeModel(SMALL_PIECES, seed), FakeModel(SMALL_BYTES, 50))
        [space], ids = SMALL_PIECES.encode_continuation("▁"), SMALL_PIECES.encode_continuation("bb")
        assert len(pair.lifting.longer(space)) == 1
        prompt = SMALL_BYTES.encode("bb "), [*ids, space][-count:]
        text, options = Text(pair), Options(temperature=1.0, stop=FixedLength(2), max_new_tokens=1)
        text.begin(*prompt, options, seeded(seed))
        text.wake()
        healed += text.drafter.draft(text.lifting, 2).taken_back == space
    assert (healed > 0) == (count > 1)


# ---- the lifting -----------------------------------------------------------------------------------------------------
def test_the_lifting_follows_the_cache():
    pair = Pair(FakeModel(PIECES, 0), FakeModel(BYTES, 1), NGramCache())
    before, token = pair.lifting, BYTES.encode_continuation("abab")[0]
    assert pair.lifting is before and token not in before.splits
    split = tuple(PIECES.encode_continuation("abab"))
    pair.cache.insert(split, token)
    assert pair.lifting is not before and pair.lifting.splits[token] == split
    assert pair.lifting is pair.lifting


def test_of_two_target_tokens_with_the_same_bytes_the_written_one_is_covered():
    """The target writes " a" as an added token; the other token with these bytes is not proposed."""
    for seed in range(200):
        pair = World(seed).pair
        spoken = pair.target.tokenizer
        for token, data in enumerate(spoken.token_bytes):
            if data and spoken.token_bytes.count(data) > 1 and token in pair.lifting.order:
                assert canonical_ids(spoken, spoken.token_bytes)[data] == token
                assert not any(other != token and spoken.token_bytes[other] == data for other in pair.lifting.splits)
                return
    raise AssertionError("no world has such tokens")


def test_of_two_draft_tokens_with_the_same_bytes_the_written_one_is_the_atom():
    pair = Pair(FakeModel(PIECES, 0), FakeModel(BYTES, 1))
    forth, back = pair.alignment.draft_to_target, pair.alignment.target_to_draft
    written = int(np.flatnonzero(forth >= 0)[-2])
    for twin in (written - 1, written + 1):  # with lower and with higher id
        forth[twin] = to = forth[written]
        pair.cache.version += 1
        assert back[to] == written and pair.lifting.splits[to] == pair.lifting.paths[written] == (written,)


def test_a_target_token_spans_its_ngram():
    pair = Pair(FakeModel(PIECES, 0), FakeModel(BYTES, 1))
    for text in ("a", "ab", "aba", "abab"):
        [token] = BYTES.encode_continuation(text) if len(BYTES.encode_continuation(text)) == 1 else [0]
        assert pair.span(token) == len(PIECES.encode_continuation(BYTES.decode_bytes([token]).decode()))
    assert pair.span(BYTES.encode_continuation("abab")[0]) > 1 and pair.span(BYTES.roles["eos"][0]) == 1


# ---- labels and features ---------------------------------------------------------------------------------------------
def expected_labels(world: World, draft: Draft, proposals, logits, sampling_settings) -> list[float]:
    """By what factor the lowest r so far falls at each drafted token; r = min(1, r P/Q) in verification's comparisons."""
    rows = [sampling.process(row, *sampling_settings) for row in logits[:, :world.pair.target.tokenizer.size]]
    rows = [np.append(row, np.zeros(logits.shape[1] - len(row))) for row in rows]
    in_text = 0 if draft.taken_back is None else len(proposals.lifting.paths[draft.taken_back])
    sizes = [len(proposals.lifting.paths[token] or (None,)) for token in draft.tokens]
    ends, r = np.cumsum(sizes) - in_text, 1.0
    after: dict[int, float] = {}  # atom's place -> r after it
    for choice in comparisons(proposals.atoms, proposals.origins, proposals.lifting, rows):
        r = after[choice.place] = ratio(r * choice.target_prob, choice.draft_prob)
        if r == 0:
            break
    least, found = 1.0, {}
    for place, r in after.items():
        number, before = int(np.searchsorted(ends, place, "right")), least
        least = min(least, r)
        found[number] = found.get(number, 1.0) * least / before
    return [found[number] for number in sorted(found)]


def test_labels_and_features_belong_to_their_tokens_with_healing_top_k_and_top_p():
    counted = {"rounds": 0, "healed": 0, "strict": 0}
    for seed in range(400):
        world = World(seed)
        pair, head = world.pair, AcceptanceHead(2)
        learner = Learner(pair, Trainer, np.random.default_rng(0), Schedule(every=100, guard=0), head)  # only the head learns
        options = Options(stop=Confidence(4, 0.05, head), temperature=1.3, top_k=3, top_p=0.9, max_new_tokens=12)
        learner.begin(options)

        class Watch:
            def observe(self, draft, proposals, logits, *rest, learner=learner, world=world):
                before = len(learner.labelled)
                learner.observe(draft, proposals, logits.copy(), *rest)
                added = [*learner.labelled][before:]
                healed = draft.taken_back is not None
                labels = expected_labels(world, draft, proposals, logits, (1.3, 3, 0.9))[healed:]
                assert [label for _, label in added] == pytest.approx(labels[:len(added)], abs=1e-9)
                assert len(added) == min(len(labels), len(draft.features))
                for token, row, (features, _) in zip(draft.tokens[healed:], draft.probs[healed:], added, strict=False):
                    q, vector = min(max(row[token], 1e-4), 1 - 1e-4), world.pair.draft.embedding[token]
                    assert features[-1] == pytest.approx(log(q / (1 - q)), rel=1e-5)
                    assert features[2:4] == pytest.approx(vector / np.sqrt((vector ** 2).mean()), rel=1e-5)
                counted["rounds"] += bool(added)
                counted["healed"] += healed and bool(added)
                counted["strict"] += any(0 < label < 1 for label in labels)

        list(speculative(pair, world.prompt, options, seeded(seed), Watch()))
        if min(counted.values()) > 20:
            return
    raise AssertionError(counted)


def test_a_table_model_takes_only_what_it_may_be_fed():
    model = TableModel(BYTES, 0, context_size=3)
    cache = model.new_cache()
    for bad in ([BYTES.size], [], [0] * 4):
        with pytest.raises(AssertionError):
            model.forward(bad, model.new_cache())
    assert model.forward([1, 2], cache, rows=2).shape == (2, BYTES.size + 2) and cache.length == 2
    with pytest.raises(AssertionError):
        cache.rewind(3)


def test_every_mutant_still_fits_the_code():
    """`make mutants` runs them; this test only looks for their texts in the code."""
    assert len(MUTANTS) >= 40 and not misplaced()
    assert f"puts {len(MUTANTS)} small faults" in (ROOT / "docs" / "exactness.md").read_text(encoding="utf-8")
