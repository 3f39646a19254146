"""The decoding loop with both models in PyTorch: plain decoding's text, NumPy's text with the same seed, few copies
from the device, and no cost that grows with the context."""

from __future__ import annotations

import functools
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import FakeModel
from test_decoding import SMALL_BYTES, SMALL_PIECES, Narrow
from test_embedded import held_out
from vocabularies import REAL

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from test_torch_twins import HiddenCopies, as_on_a_device  # noqa: E402
from test_transformers_model import BYTES, PIECES, SIZES, TransformersModel, random_model, written  # noqa: E402

from omnidraft import sampling_torch, translation  # noqa: E402
from omnidraft.decoding import plain, speculative  # noqa: E402
from omnidraft.drafting import Drafter  # noqa: E402
from omnidraft.engine import load as models  # noqa: E402
from omnidraft.options import Options  # noqa: E402
from omnidraft.pairs.pair import Pair  # noqa: E402
from omnidraft.sampling import Sampler, Uniforms  # noqa: E402
from omnidraft.stopping import AcceptanceHead, Confidence, FixedLength  # noqa: E402
from omnidraft.text.errors import OmnidraftError  # noqa: E402
from omnidraft.verification import RULES  # noqa: E402

TARGETS = ("qwen-like", "llama3-like", "draft-general")
REAL_PAIRS = [("stories260K", "babyllama-tok361"), ("babyllama-tok361", "stories260K")]


@functools.cache
def model(name: str, backend: str = "torch"):
    folder = name if name in models.EMBEDDED else REAL / "models" / name
    try:
        return models.load(folder, "float64", backend, "cpu")
    except OmnidraftError:
        pytest.skip(f"{name} is not here")


@functools.cache
def pair(draft: str, target: str, backend: str = "torch") -> Pair:
    return Pair(model(draft, backend), model(target, backend))


@functools.cache
def alone(target: str, prompt: str, tokens: int) -> list[int]:
    ids = model(target).tokenizer.encode(prompt, bos=True)
    return written(plain(model(target), ids, Options(max_new_tokens=tokens), Uniforms([])))


@functools.cache
def random_pair(seed: int = 0, context: int = 256) -> Pair:
    sizes = {**SIZES, "num_hidden_layers": 2, "max_position_embeddings": context}
    return Pair(*(TransformersModel(random_model("LlamaForCausalLM", sizes, size, seed).double(), tokenizer)
                  for size, tokenizer, seed in ((PIECES.size, PIECES, 2 * seed + 1), (BYTES.size + 9, BYTES, 2 * seed + 2))))


def on_the_host(one):
    """The same model without the signs of a PyTorch model."""
    return SimpleNamespace(**{name: getattr(one, name) for name in (
        "tokenizer", "name", "vocab_size", "context_size", "eos_ids", "new_cache", "forward")})


def seeded(seed: int) -> Uniforms:
    return Uniforms(np.random.default_rng(seed))


def trace(rounds) -> list[tuple]:
    return [(r.draft_tokens, r.proposals, r.spans, r.accepted, r.emitted, r.kinds, r.draft_kept, r.done) for r in rounds]


class NarrowTensors(Narrow):
    """`Narrow` with its rows as tensors."""

    device = torch.device("cpu")

    def new_cache(self, on_device=False):
        return super().new_cache()

    def forward(self, *arguments):
        return torch.from_numpy(super().forward(*arguments))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_healing_draws_what_it_draws_in_numpy_where_the_model_rules_it_out(temperature: float):
    """All tokens that healing may draw have logit -inf."""
    healed = 0
    for seed in range(20):
        drafts = []
        for kind, sampler in ((Narrow, Sampler), (NarrowTensors, sampling_torch.Sampler)):
            both = Pair(kind(SMALL_PIECES, 0), FakeModel(SMALL_BYTES, 50))
            how, options = sampler(seeded(seed), temperature), Options(temperature=temperature)
            drafts.append(Drafter(both, "ab a ", options, how).draft(how.lifting(both.lifting, both.draft), 3))
        assert drafts[0].tokens == drafts[1].tokens and drafts[0].taken_back == drafts[1].taken_back
        healed += drafts[0].taken_back is not None
    assert healed > 3 or not temperature


# ---- the same text ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rule", RULES)
def test_greedy_text_is_that_of_plain_decoding(rule: str, target: str):
    prompt = held_out("math")[0]["prompt"]
    for stop in (FixedLength(1), Confidence(5), FixedLength(16)):
        options = Options(verify=rule, stop=stop, max_new_tokens=12)
        text = written(speculative(pair("draft-tasks", target), prompt, options, Uniforms([])))
        assert text == alone(target, prompt, 12), stop
    assert pair("draft-tasks", target).sampler is sampling_torch.CpuSampler


@pytest.mark.parametrize("draft, target", REAL_PAIRS)
@pytest.mark.parametrize("rule", RULES)
def test_greedy_text_is_that_of_plain_decoding_on_real_models(rule: str, draft: str, target: str):
    prompt, both = "Once upon a time, there was a", pair(draft, target)
    for stop in (FixedLength(1), FixedLength(4), Confidence(8), FixedLength(16)):
        options = Options(verify=rule, stop=stop, max_new_tokens=24)
        assert written(speculative(both, prompt, options, Uniforms([]))) == alone(target, prompt, 24), stop


@pytest.mark.parametrize("device", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("draft, target", [("draft-tasks", "qwen-like"), *REAL_PAIRS])
@pytest.mark.parametrize("rule", RULES)
def test_a_seed_gives_the_text_that_it_gives_in_numpy(monkeypatch, rule: str, draft: str, target: str, device: bool):
    if device:
        as_on_a_device(monkeypatch)
    prompt = "Once upon a time, there was a"
    for seed, stop in enumerate((FixedLength(4), Confidence(8, 0.1))):
        options = Options(verify=rule, stop=stop, max_new_tokens=16, temperature=1.0)
        one, other = (trace(speculative(pair(draft, target, backend), prompt, options, seeded(seed)))
                      for backend in ("numpy", "torch"))
        assert one == other and sum(len(r[0]) for r in one) > 4


@pytest.mark.parametrize("rule", RULES)
def test_every_round_is_that_of_the_numpy_loop(monkeypatch, rule: str):
    """The same models in both loops; they have little in common, so that rare cases occur too."""
    seen = Counter()
    for case in range(24):
        draft, target = random_pair(case % 5).draft, random_pair(case % 5).target
        monkeypatch.setattr(draft, "eos_ids", (2, *range(259, 259 + case % 6 * 4)))  # "▁", "a", "b", ...
        both, hosted = Pair(draft, target), Pair(on_the_host(draft), on_the_host(target))
        assert both.sampler is sampling_torch.CpuSampler and hosted.sampler is Sampler
        options = Options(verify=rule, stop=(FixedLength(5), Confidence(6, 0.2))[case % 2], max_new_tokens=16,
                          learn=case % 3 == 0, temperature=(0.0, 0.3, 0.7, 1.0)[case // 2 % 4],
                          top_k=(0, 20)[case % 7 == 0], top_p=(1.0, 0.9)[case % 5 == 0])
        prompt = ("the king and the thing ", "in a thin", "ouch ½")[case % 3]
        one, other = (trace(speculative(some, prompt, options, seeded(case))) for some in (hosted, both))
        assert one == other
        for drafted, _, _, accepted, _, kinds, *_ in one:
            seen["ended"] += case % 2 == 0 and len(drafted) < 5 and bool(drafted) and drafted[-1] in draft.eos_ids
            seen["kept"] += accepted > 0
            seen["refused"] += kinds[-1] == "recovered"
    assert min(seen["ended"], seen["refused"]) > 10 and seen["kept"] > (0 if rule == "slem" else 10), seen
    ids = target.tokenizer.encode("the king", bos=True)
    for temperature in (0.0, 0.8):
        options = Options(max_new_tokens=20, temperature=temperature)
        assert trace(plain(target, ids, options, seeded(3))) == trace(plain(hosted.target, ids, options, seeded(3)))


def test_one_torch_model_and_another_meet_in_numpy():
    both = Pair(model("draft-tasks"), model("draft-general", "numpy"))
    options = Options(max_new_tokens=12, temperature=1.0)
    assert both.sampler is Sampler
    one, other = (trace(speculative(some, "Once upon", options, seeded(0)))
                  for some in (both, pair("draft-tasks", "draft-general", "numpy")))
    assert one == other


def test_one_drafter_serves_three_targets_by_turns_and_none_is_changed():
    """All in one process; each text equals that of a pair with only one target."""
    def checksum(some) -> int:
        state = some.model.state_dict()
        return hash(b"".join(name.encode() + state[name].numpy().tobytes() for name in sorted(state)))

    pairs, options = [pair("draft-tasks", target) for target in TARGETS], Options(max_new_tokens=16, temperature=0.8)
    prompt, served = held_out("text")[1]["prompt"], [pairs[0].draft, *(some.target for some in pairs)]
    before = [checksum(some) for some in served]
    turns, together = [speculative(some, prompt, options, seeded(5)) for some in pairs], [[], [], []]
    for _ in range(16):
        for rounds, tokens in zip(turns, together, strict=True):
            tokens += written([record for record in [next(rounds, None)] if record])
    assert [checksum(some) for some in served] == before and len({id(some.draft) for some in pairs}) == 1
    for target, tokens in zip(TARGETS, together, strict=True):
        alone = Pair(*(models.load(name, "float64", "torch", "cpu") for name in ("draft-tasks", target)))
        assert written(speculative(alone, prompt, options, seeded(5))) == tokens, target


# ---- what a round costs ----------------------------------------------------------------------------------------------
@pytest.fixture
def copied(monkeypatch):
    """Copies from device to host in each round of a text, counted as if the tensors were on a device."""
    count = Counter()
    as_on_a_device(monkeypatch)
    for name in ("item", "cpu", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__"):
        own = getattr(torch.Tensor, name)

        def wrapper(self, *args, method=own, name=name, **kwargs):
            count[name] += 1
            return method(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, wrapper)

    def run(rounds) -> list[tuple[int, int]]:
        found = []
        while True:
            count.clear()
            with HiddenCopies() as hidden:
                record = next(rounds, None)
            if record is None:
                return found[1:]  # the first round reads the prompt
            hidden_ones = sum(name != "_local_scalar_dense" for name in hidden.found)  # this one is counted by its method
            found.append((count.total() + hidden_ones, len(record.draft_tokens)))

    return run


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", RULES)
def test_copies_do_not_grow_with_the_draft(copied, rule: str, temperature: float):
    """Comparing with the target's choices takes one copy; above T = 0 the other rules read the numbers that they compare."""
    compares = temperature > 0 and rule != "slem"
    for k in (1, 4, 16):
        options = Options(verify=rule, stop=FixedLength(k), max_new_tokens=40, temperature=temperature)
        found = copied(speculative(random_pair(1), "the king and", options, seeded(k)))
        most = 2 + (rule == "lifted") + compares * 6 * (k + 1)  # the drafted tokens, a healed one, the choices
        assert max(copies for copies, _ in found) <= most and max(drafted for _, drafted in found) == k
    for threshold in (0.0, 0.02):  # above 0 the first row is read too
        options = Options(verify=rule, stop=Confidence(6, threshold), max_new_tokens=40, temperature=temperature)
        found = copied(speculative(random_pair(1), "the king", options, seeded(0)))
        most = 2 + (rule == "lifted") + compares * 6 * 7
        assert all(copies <= drafted + (threshold > 0) + most for copies, drafted in found)
    found = copied(plain(random_pair(1).target, [70, 71], Options(max_new_tokens=9, temperature=temperature), seeded(0)))
    assert [copies for copies, _ in found] == [1] * 8


class Stored:
    """A model that returns, at once, the next of a few stored rows of random logits."""

    sampler, device = sampling_torch.Sampler, torch.device("cpu")
    context_size, eos_ids = 1 << 20, ()

    def __init__(self, tokenizer, seed: int) -> None:
        self.tokenizer, self.name, self.vocab_size = tokenizer, tokenizer.name, tokenizer.size
        generator = torch.Generator().manual_seed(seed)
        self.rows, self.at = 3 * torch.randn(64, tokenizer.size, generator=generator), 0

    def new_cache(self, on_device: bool = False):
        """A cache that is only a length."""
        cache = SimpleNamespace(length=0)
        cache.rewind = lambda length: setattr(cache, "length", length)
        return cache

    def forward(self, ids, cache, rows: int = 1):
        """The next `rows` rows."""
        cache.length += len(ids)
        self.at = (self.at + rows) % (len(self.rows) - 16)
        return self.rows[self.at:self.at + rows]


def test_a_round_reads_no_more_of_a_long_context(monkeypatch):
    """With 100 and 4,000 tokens, and models that cost nothing: ids fed, ids tokenized again, ids compared."""
    draft, target = (Stored(tokenizer, seed) for seed, tokenizer in enumerate((PIECES, BYTES)))
    both, read = Pair(draft, target), Counter()
    for name, one in (("draft", both.draft), ("target", both.target)):
        def counted(ids, cache, rows=1, name=name, forward=one.forward):
            read[name] += len(ids)
            return forward(ids, cache, rows)

        monkeypatch.setattr(one, "forward", counted)

    def counted_text(tokenizer, ids, data, retokenize=translation.retokenize):
        start, made = retokenize(tokenizer, ids, data)
        read["tokenized"] += len(made)
        return start, made

    def counted_prefix(a, b, common_prefix=translation.common_prefix):
        read["compared"] += min(len(a), len(b))
        return common_prefix(a, b)

    monkeypatch.setattr(translation, "retokenize", counted_text)
    monkeypatch.setattr(translation, "common_prefix", counted_prefix)
    worst = {25: Counter(), 1000: Counter()}
    for words in (25, 1000):
        prompt = "the king " * words
        assert len(BYTES.encode(prompt)) == 4 * words + 2
        for rule in RULES:
            options = Options(verify=rule, stop=FixedLength(4), max_new_tokens=12, temperature=1.0)
            rounds = speculative(both, prompt, options, seeded(1))
            next(rounds)  # reads the prompt
            read.clear()
            for _ in rounds:
                worst[words] |= read  # the larger of each two counts
                read.clear()
            read.clear()
    assert all(worst[1000][name] <= 2 * worst[25][name] for name in ("draft", "target", "tokenized", "compared")), worst
    assert min(worst[25].values()) > 0 and len(worst[25]) == 4


# ---- around the loop -------------------------------------------------------------------------------------------------
def test_the_readers_of_rounds_are_not_in_inference_mode():
    for rounds in (speculative(random_pair(), "the", Options(max_new_tokens=4), Uniforms([])),
                   plain(random_pair().target, [70], Options(max_new_tokens=4), Uniforms([]))):
        for _ in rounds:
            assert not torch.is_inference_mode_enabled()


def test_an_acceptance_head_stops_as_it_does_in_numpy():
    head, rng = AcceptanceHead(128), np.random.default_rng(5)
    head.parameters["out.weight"][:-1] = 0.05 * rng.normal(size=256)  # so that it reads hidden states and embeddings
    prompt = held_out("text")[0]["prompt"]
    for temperature in (0.0, 1.0):
        options = Options(stop=Confidence(8, 0.3, head), temperature=temperature, max_new_tokens=32)
        one, other = ([record.draft_tokens for record in speculative(
            pair("draft-tasks", "qwen-like", backend), prompt, options, Uniforms(np.random.default_rng(2)))]
            for backend in ("numpy", "torch"))
        assert one == other and len({*map(len, one)}) > 1


def test_a_learner_is_told_numpy_rows():
    seen = []
    learner = SimpleNamespace(observe=lambda draft, proposals, logits, emitted, kept, done: seen.append((logits, emitted)))
    list(speculative(random_pair(), "the king", Options(max_new_tokens=9), Uniforms([]), learner))
    assert all(isinstance(logits, np.ndarray) and len(logits) >= len(emitted) for logits, emitted in seen)
    assert [row.argmax() for logits, emitted in seen for row in logits[:len(emitted)]] == [t for _, some in seen for t in some]


@pytest.mark.parametrize("broken", ["draft", "target"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_are_told(broken: str, temperature: float):
    both = Pair(random_pair(8).draft, random_pair(9).target)
    with torch.no_grad():
        getattr(both, broken).model.model.norm.weight.fill_(float("nan"))
    try:
        for rule in RULES:
            for stop in (FixedLength(3), Confidence(3, 0.0)):
                options = Options(verify=rule, stop=stop, max_new_tokens=8, temperature=temperature)
                with pytest.raises(OmnidraftError, match="NaN or infinite") as caught:
                    list(speculative(both, "the king", options, seeded(0)))
                assert "\n" not in str(caught.value)
    finally:
        random_pair.cache_clear()
