"""What engines call: proposals for texts known by their ids, whatever the engine does with its rows."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from test_cli import embedded

import omnidraft
from omnidraft import Options
from omnidraft.decoding import plain
from omnidraft.engine.load import folder
from omnidraft.pairs import proposer as module
from omnidraft.pairs.proposer import Proposer, Vocabulary
from omnidraft.sampling import Uniforms

PROMPTS = ("Once upon a time", "Ann has 3 boxes of 12 pens. How many pens does she have?", "def add(a, b):", "Once upon a")


@pytest.fixture(scope="module")
def target():
    return omnidraft.load("qwen-like")


@pytest.fixture
def proposer(target):
    return Proposer(omnidraft.load("draft-tasks"), Vocabulary(target.tokenizer, target.vocab_size, target.context_size))


class Engine:
    """A greedy engine: it verifies the proposals for its texts in one pass each."""

    def __init__(self, model, prompts):
        self.model = model
        self.prompts = [model.tokenizer.encode(prompt, bos=True) for prompt in prompts]
        self.texts = [list(ids) for ids in self.prompts]
        self.caches = [model.new_cache() for _ in prompts]
        self.passes = 0

    def step(self, row: int, proposals: list[int]) -> None:
        ids, cache = self.texts[row], self.caches[row]
        cache.rewind(min(cache.length, len(ids) - 1))
        logits = self.model.forward(ids[cache.length:] + proposals, cache, len(proposals) + 1)
        self.passes += 1
        for token, best in zip([*proposals, None], np.asarray(logits).argmax(-1).tolist(), strict=True):
            ids.append(best)
            if token != best:
                break

    def written(self, row: int) -> list[int]:
        return self.texts[row][len(self.prompts[row]):]


def greedy(model, ids, count):
    options = Options(max_new_tokens=count, eos_token_id=())
    return [token for one in plain(model, ids, options, Uniforms([])) for token in one.emitted]


@embedded
def test_texts_in_any_order_that_pause_and_are_cut_back_are_plain_greedy_texts(target, proposer):
    engine, rng = Engine(target, PROMPTS), np.random.default_rng(0)
    for _ in range(25):
        rows = rng.permutation(len(PROMPTS))[:rng.integers(1, 5)].tolist()  # rows move, some pause
        found = proposer.propose([engine.texts[row] for row in rows], most=6)
        for row, proposals in zip(rows, found, strict=True):
            assert len(proposals) <= 6
            engine.step(row, proposals)
        if rng.random() < 0.2:  # an engine that lost its cache writes a part again
            row = rows[0]
            del engine.texts[row][max(len(engine.prompts[row]), len(engine.texts[row]) - 5):]
    for row in range(len(PROMPTS)):
        written = engine.written(row)
        assert written == greedy(target, engine.prompts[row], len(written))
    tokens = sum(len(engine.written(row)) for row in range(len(PROMPTS)))
    assert tokens > 2 * engine.passes  # the drafts are good, also after all that
    assert 0 < proposer.kept <= proposer.proposed


@embedded
def test_what_was_read_is_used_again_and_texts_are_forgotten(target, proposer, monkeypatch):
    text = target.tokenizer.encode(30 * "Once upon a time there was a dog. ", bos=True)
    proposer.propose([text], 4)
    read, draft = [], proposer.pair.draft
    forward, each = draft.forward, draft.forward_each
    monkeypatch.setattr(draft, "forward", lambda ids, *more: (read.append(len(ids)), forward(ids, *more))[1])
    monkeypatch.setattr(draft, "forward_each", lambda texts: (read.extend(len(ids) for ids, _ in texts), each(texts))[1])
    proposer.propose([[*text, *greedy(target, text, 3)]], 4)
    assert max(read) < 12  # only what is new
    proposer.propose([], 4)
    read.clear()
    proposer.propose([text[:-7]], 4)  # another request with the same start takes over what an idle text has read
    assert max(read) < 40 and len(proposer.texts) == 1
    for _ in range(module.PATIENCE):
        proposer.propose([], 4)
    assert not proposer.texts
    proposer.most_texts = 2
    proposer.propose([target.tokenizer.encode(prompt, bos=True) for prompt in PROMPTS], 4)
    assert len(proposer.texts) == 2


@embedded
def test_the_drafter_reads_all_texts_in_one_pass_and_drafts_for_each_as_if_it_were_alone(target, proposer, monkeypatch):
    texts, passes = [target.tokenizer.encode(prompt, bos=True) for prompt in PROMPTS], []
    each = proposer.pair.draft.forward_each
    monkeypatch.setattr(proposer.pair.draft, "forward_each", lambda texts: (passes.append(len(texts)), each(texts))[1])
    together = proposer.propose(texts, 5)
    assert passes[0] == len(texts) and len(passes) <= 5
    alone = [Proposer(proposer.pair.draft, proposer.pair.target).propose([text], 5)[0] for text in texts]
    assert together == alone and any(together)
    monkeypatch.undo()
    monkeypatch.delattr(type(proposer.pair.draft), "forward_each")  # a model that reads one text at a time
    again = Proposer(proposer.pair.draft, proposer.pair.target).propose(texts, 5)
    assert again == together


def test_a_proposal_has_a_price():
    """Steps of 10 ms, and 2 ms more for each position after the first; a drafted token takes 1 ms."""
    price = module.Price()
    assert price.least(0.4) == 0.4
    for positions, written in ((1, 1), (5, 3), (3, 2), (7, 2)) * 4:
        price.steps.append((positions, 0.010 + 0.002 * (positions - 1), written))
        price.drafts.append((positions - 1, 0.001 * (positions - 1)))
    rate = 8 / (4 * 0.010 + 0.002 * 12 + 0.001 * 12)
    assert price.least(0.4) == pytest.approx(0.003 * rate)
    for _ in range(module.STEPS):
        price.steps.append((1, 0.010, 1))
    assert price.least(0.4) == 0.4  # nothing was proposed for so long: try again


@embedded
def test_where_proposals_cost_more_than_they_gain_nothing_is_drafted(target, proposer, monkeypatch):
    """An engine whose step takes two seconds for each proposal, one without: only now and then a draft, to try again."""
    now = [0.0]
    monkeypatch.setattr(module, "perf_counter", lambda: now[0])
    text, drafted = target.tokenizer.encode("Once upon a time", bos=True), []
    written = iter(greedy(target, text, 200))
    for _ in range(90):
        [proposals] = proposer.propose([list(text)], 6)
        drafted.append(len(proposals))
        now[0] += 1.0 + 2.0 * len(proposals)
        for token in [*proposals, None]:
            text.append(next(written))
            if token != text[-1]:
                break
    assert sum(map(bool, drafted[:10])) > 5 and not any(drafted[20:60]) and any(drafted[60:])


@embedded
def test_bad_input_gets_no_proposals_and_is_said_once(target, proposer, capsys):
    good = target.tokenizer.encode("Once upon a time", bos=True)
    wrong = [[], [-1], [10**9], [*good, target.vocab_size]]
    *none, second = proposer.propose([*wrong, good], 4)
    assert none == 4 * [[]] and second
    assert capsys.readouterr().err.count("\n") == 1 and "the ids []" in proposer.error
    assert proposer.propose([good, good], 4) == [second, second]  # two requests for one prompt


@embedded
def test_vllm_gets_proposals_for_the_rows_that_sampled(target, monkeypatch, capsys):
    devices = []
    torch = SimpleNamespace(tensor=lambda values, device, dtype=None: (devices.append(device), np.array(values))[1], int32=int)
    sampler, loses = ModuleType("sampler"), [True]
    sampler.expand_batch_to_tokens = lambda x, ends, count: np.zeros(count) if loses[0] else x[[0, 0, 1]]
    monkeypatch.setitem(sys.modules, "torch", torch)
    for name in ("vllm", "vllm.v1", "vllm.v1.sample"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.v1.sample.rejection_sampler", sampler)
    platforms = ModuleType("vllm.platforms")
    platforms.current_platform = SimpleNamespace(device_type="cuda")
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    from omnidraft.vllm import Proposer as Vllm
    config = SimpleNamespace(
        model_config=SimpleNamespace(tokenizer=str(folder("qwen-like")), max_model_len=512, model="qwen-like",
                                     get_vocab_size=lambda: target.vocab_size),
        speculative_config=SimpleNamespace(num_speculative_tokens=4), scheduler_config=SimpleNamespace(max_num_seqs=8),
        additional_config={"omnidraft": {"draft": "draft-tasks"}})
    ids = target.tokenizer.encode("Once upon a time", bos=True)
    rows = np.zeros((2, 512), int)
    rows[:, :len(ids)] = ids
    call = ([[ids[-1]], []], np.array([len(ids), len(ids)]), rows)
    assert Vllm(config).propose(*call) == [[], []] and "at a wrong temperature" in capsys.readouterr().err
    loses[0] = False
    found = Vllm(config).propose(*call)
    assert found[0] and len(found[0]) <= 4 and not found[1] and not capsys.readouterr().err
    assert {*devices} == {"cuda"}  # a kernel on a GPU cannot read what is on the CPU
    loses[0] = True
    config.additional_config["omnidraft"]["greedy"] = True
    assert Vllm(config).propose(*call) == found
    config.additional_config["omnidraft"] |= {"draft": "draft-general", "adapter": "draft-general--qwen-like", "pace": False}
    learned = Vllm(config).drafts
    assert learned.pair.draft.untouched.name == "draft-general" and not learned.pace
    config.additional_config["omnidraft"]["draft"] = "draft-tasks"
    with pytest.raises(omnidraft.OmnidraftError, match="learned with another draft"):
        Vllm(config)


@embedded
def test_llama_cpp_python_gets_proposals_for_its_ids(target, monkeypatch):
    """The loop of its `Llama.generate`: it samples at each fed position, up to the first that differs from what it fed."""
    from omnidraft import llamacpp
    monkeypatch.setattr(llamacpp, "Gguf", {"target.gguf": SimpleNamespace(tokenizer=lambda: target.tokenizer)}.get)
    draft_model = llamacpp.Proposer("draft-tasks", "target.gguf")
    prompt = target.tokenizer.encode(PROMPTS[1], bos=True)
    text, cache, passes = np.array(prompt, np.intc), target.new_cache(), 0
    fed = draft_model(text)
    while len(text) < len(prompt) + 40:
        assert fed.dtype == np.intc and fed.ndim == 1 and len(fed) <= 4
        cache.rewind(min(cache.length, len(text) - 1))
        logits = target.forward([*text.tolist()[cache.length:], *fed.tolist()], cache, len(fed) + 1)
        passes += 1
        for token, best in zip([*fed, None], logits.argmax(-1), strict=True):
            text = np.append(text, np.intc(best))
            if token != best:
                break
        fed = draft_model(text)
    assert text.tolist()[len(prompt):] == greedy(target, prompt, len(text) - len(prompt)) and passes < 30
