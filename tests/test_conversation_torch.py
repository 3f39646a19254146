"""PyTorch models in conversations: kept caches of every kind give the same text as new ones, and read less where possible."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from test_cli import ok, own_caches  # noqa: E402, F401 (a fixture)
from test_conversation import CHATML, MESSAGES, turns  # noqa: E402
from test_transformers_model import BYTES, KINDS, PIECES, SIZES, TransformersModel, random_model, saved  # noqa: E402

from omnidraft import sampling_torch  # noqa: E402
from omnidraft.engine import transformers_cache  # noqa: E402
from omnidraft.engine.load import load  # noqa: E402
from omnidraft.options import Options  # noqa: E402
from omnidraft.pairs.conversation import Conversation  # noqa: E402
from omnidraft.pairs.pace import usual as as_usual  # noqa: E402
from omnidraft.pairs.pair import Pair  # noqa: E402
from omnidraft.pairs.prompts import uniforms_of  # noqa: E402
from omnidraft.stopping import Confidence  # noqa: E402
from omnidraft.verification import RULES  # noqa: E402

LONG = {"max_position_embeddings": 256}


def model(kind: str, tokenizer, seed: int) -> TransformersModel:
    architecture, sizes, _ = KINDS[kind]
    return TransformersModel(random_model(architecture, sizes | LONG, tokenizer.size, seed).double(), tokenizer)


@pytest.mark.parametrize("rule", RULES)
def test_warm_text_is_cold_text(rule, monkeypatch):
    both = Pair(model("llama", PIECES, 1), model("qwen2", BYTES, 2))
    assert both.sampler is sampling_torch.CpuSampler
    fed = {"draft": [], "target": []}
    for name, counts in fed.items():
        one = getattr(both, name)
        monkeypatch.setattr(one, "forward", lambda ids, cache, rows=1, counts=counts, forward=one.forward: (
            counts.append(len(ids)), forward(ids, cache, rows))[1])
    for temperature in (0.0, 1.0):
        options = Options(verify=rule, stop=Confidence(4, 0.1), max_new_tokens=12, temperature=temperature, adaptive=False)
        texts, most = [], []
        for cold in (False, True):
            for counts in fed.values():
                counts.clear()
            texts.append(turns(Conversation(both, template=CHATML), options, MESSAGES, cold))
            most.append([sum(counts) for counts in fed.values()])
        assert texts[0] == texts[1]
        assert all(warm < 0.7 * cold for warm, cold in zip(*most, strict=True)), most


@pytest.mark.parametrize("kind", [kind for kind, (*_, cache) in KINDS.items() if cache != "cut" or "window" in kind])
def test_a_cache_of_any_kind_is_never_wrong(kind):
    both = Pair(model(kind, PIECES, 1), model(kind, BYTES, 2))
    options = Options(stop=Confidence(3, 0.1), max_new_tokens=6)
    warm, cold = (turns(Conversation(both), options, MESSAGES[:3], cold) for cold in (False, True))
    assert warm == cold == turns(Conversation(both.target), options, MESSAGES[:3])


def test_the_template_of_the_folder_is_used(tmp_path):
    folder = saved(tmp_path / "target", BYTES, sizes=SIZES | LONG)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "<{{ messages[-1].content }}>"}))
    assert Conversation(load(folder, backend="torch", device="cpu")).views[0].render(
        [{"role": "user", "content": "hi"}]) == "<hi>"
    drafter = saved(tmp_path / "draft", PIECES, sizes=SIZES | LONG)
    done = ok("chat", "--backend", "torch", "--device", "cpu", "-d", drafter, "-t", folder, "-n", "8", input="the\nand\n")
    assert done.stderr.count("tokens/s") == 2


@pytest.mark.parametrize("at_once", [True, False])
def test_a_target_that_reads_proposals_one_at_a_time_writes_without_drafts_unless_asked(at_once):
    """In every way of writing; it would take a pass for each proposal."""
    both = Pair(model("convolution and attention", PIECES, 1), model("convolution and attention", BYTES, 2))
    both.target.choice = replace(both.target.choice, alone="" if at_once else "wrong")
    both.target.speaks, prompt = None, BYTES.encode("the king")

    def drafts(**stop) -> list[bool]:
        """Was anything drafted by `generate`, `stream`, a conversation, and inside transformers?"""
        how, streamed = {"max_new_tokens": 8, "eos_token_id": (), "adaptive": False} | stop, []
        written = both.generate(prompt, **how)
        assert "".join(both.stream(prompt, Options.of(**how), rounds=streamed)) == written.text
        answer = [*Conversation(both).ask("the king", Options.of(**how), uniforms_of(0))]
        found = [any(one.draft_tokens for one in rounds) for rounds in (written.rounds, streamed, answer)]
        return [*found, as_usual(both.decoder(**stop).options, both.target).stop.limit > 0]

    usual = drafts()  # random models are never confident: only the options say that these would draft
    assert usual[3] == at_once and (at_once or not any(usual))
    assert drafts(draft_length=3, threshold=0.0) == drafts(stop=Confidence(3, 0.0)) == [True] * 4


@pytest.mark.parametrize(("four_at_once", "wanted"), [(1.0, True), (3.5, False), (4.5, False)])
def test_proposals_are_read_at_once_only_if_that_is_clearly_faster(four_at_once, wanted, monkeypatch, capsys):
    """A clock in which four tokens take so long together, in units of one token."""
    now, run = [0.0], TransformersModel.run

    def timed(self, texts, *how, **more):
        now[0] += {1: 1.0, 4: four_at_once}.get(texts.shape[1], 9.0)
        return run(self, texts, *how, **more)

    monkeypatch.setattr(TransformersModel, "run", timed)
    monkeypatch.setattr(transformers_cache.time, "perf_counter", lambda: now[0])
    made = model("convolution and attention", BYTES, 2)
    assert (made.choice.alone == "", made.drafting_pays) == (wanted, wanted)
    assert ("writes without drafts" in capsys.readouterr().err) != wanted
