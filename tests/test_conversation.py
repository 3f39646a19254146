"""Conversations: kept caches read only what is new, the text is that of new caches, and stopping keeps what was written."""

from __future__ import annotations

import functools
import shutil

import numpy as np
import pytest
from fakes import FakeModel
from test_cli import embedded, folders, ok, own_caches, run  # noqa: F401 (fixtures)
from test_decoding import SMALL_BYTES, SMALL_PIECES, Same
from vocabularies import byte_level, sentencepiece

from omnidraft.decoding import plain, speculative
from omnidraft.engine.load import load
from omnidraft.exactness import distribution_of, total_variation
from omnidraft.options import Options
from omnidraft.pairs.conversation import Conversation
from omnidraft.pairs.pair import Pair
from omnidraft.sampling import Uniforms
from omnidraft.stopping import Confidence, FixedLength
from omnidraft.text.errors import OmnidraftError
from omnidraft.verification import RULES

CHATML = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
LETTERS = "▁abcdefghijklmnopqrstuvwxyzQA:,.\n"
PIECES = sentencepiece(LETTERS, "▁ t, h e, ▁t he, i n")
BYTES = byte_level("Ġ t, h e, Ġt he, i n, in g", specials=("<|im_start|>", "<|im_end|>"), config={"eos_token": "<|im_end|>"})
MESSAGES = ("the thing", "in the inn", "why, then?", "and here")


def seeded(seed: int) -> Uniforms:
    return Uniforms(np.random.default_rng(seed))


def fakes(end: float = 0.5, **more) -> Pair:
    return Pair(FakeModel(PIECES, 1, end=end, **more), FakeModel(BYTES, 2, end=end, **more))


def forget(reader) -> None:
    """The ids stay, the cache is new."""
    reader.held, reader.ahead, reader.cache = 0, [], reader.model.new_cache()


def turns(talk: Conversation, options: Options, messages=MESSAGES, cold: bool = False, seed: int = 0) -> list[list[int]]:
    """The tokens of the answers, with caches kept between them or made new."""
    uniforms, written = seeded(seed), []
    for message in messages:
        if cold and talk.text.target:
            forget(talk.text.target)
        if cold and talk.text.drafter:
            forget(talk.text.drafter.reader)
        written.append([token for record in talk.ask(message, options, uniforms) for token in record.emitted])
    return written


# ---- what the models read --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("template", [None, CHATML])
@pytest.mark.parametrize("end", [-3.0, 1.5])
def test_a_turn_feeds_only_what_is_new(template, end):
    both = fakes(end)
    talk = Conversation(both, template=template)
    options = Options(stop=FixedLength(3), max_new_tokens=24, adaptive=False)
    for turn, message in enumerate(MESSAGES):
        both.draft.passes.clear(), both.target.passes.clear()
        before = [len(talk.text.ids), len(talk.text.draft_ids)] if turn else [0, 0]
        rounds = talk.ask(message, options, Uniforms([]))
        new = [len(ids) - size for (_, ids, _), size in zip(talk.turns, before, strict=True)]
        first = next(rounds)
        drafted = len(first.draft_tokens)
        if turn:
            # The ids after the answer; the answer's last token, which no pass has read; the round's own proposals.
            assert sum(both.target.passes) <= new[0] + 1 + len(first.proposals) < before[0]
            # The drafter tokenizes the boundary again: at most the last word.
            assert sum(both.draft.passes) <= new[1] + drafted + 8 < before[1]
        list(rounds)


def test_a_model_alone_keeps_its_cache_too():
    model, options = FakeModel(BYTES, 3, end=-3.0), Options(max_new_tokens=12)
    talk = Conversation(model, system="be kind", template=CHATML)
    cold = turns(talk, options, cold=True)
    talk.new()
    model.passes.clear()
    assert turns(talk, options) == cold
    assert sum(model.passes) < len(talk.text.ids) + 2


def test_the_answers_own_tokens_stay():
    talk = Conversation(fakes(-3.0), template=CHATML)
    written = turns(talk, Options(temperature=1.0, max_new_tokens=20))
    ids = talk.text.ids
    for answer in written:  # the tokens that were written, even if the tokenizer would split the text differently
        assert any(ids[i:i + len(answer)] == answer for i in range(len(ids)))
    assert [m["role"] for m in talk.messages] == ["user", "assistant"] * 4


@pytest.mark.parametrize("ends", [True, False])
def test_ids_are_those_of_the_whole_text(ends):
    """If the answer has its canonical tokens; it may end with the template's end token, another one, or none."""
    talk = Conversation(fakes(), system="be kind", template=CHATML)
    reader, answer = talk.views[0], "here in the inn"
    messages = [*talk.messages, {"role": "user", "content": "where?"}]
    before, ids = reader.read(messages)
    latest = before, ids + BYTES.encode_continuation(answer) + [BYTES.roles["eos"][0]] * ends, answer
    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "<|im_end|> really?"}]
    text, ids = reader.read(messages, latest)
    assert (text, ids) == reader.read(messages) and ids[:len(latest[1])] == latest[1]
    messages[-2]["content"] = "changed"  # edited by the user: what was written is then no longer valid
    text, ids = reader.read(messages, latest)
    assert (text, ids) == reader.read(messages) and b"changed" in BYTES.decode_bytes(ids)


def test_a_template_that_changes_earlier_answers_is_read_again():
    source = CHATML.replace("{{ m.content }}", "{{ m.content | upper }}")
    talk = Conversation(FakeModel(BYTES, 3), template=source)
    warm = turns(talk, Options(max_new_tokens=12))
    assert talk.text.ids[:9] == talk.views[0].encode(talk.turns[0][0])[:9]
    talk.new()
    assert turns(talk, Options(max_new_tokens=12), cold=True) == warm


# ---- the same text ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rule", RULES)
def test_warm_text_is_cold_text(rule):
    for seed in range(4):
        for temperature in (0.0, 1.0):
            options = Options(verify=rule, stop=(FixedLength(4), Confidence(6, 0.2))[seed % 2], max_new_tokens=20,
                              temperature=temperature)
            talks = [Conversation(fakes(), template=CHATML if seed > 1 else None) for _ in "wc"]
            warm, cold = (turns(talk, options, cold=i, seed=seed) for i, talk in enumerate(talks))
            assert warm == cold and talks[0].messages == talks[1].messages


@functools.cache
def real_pair(draft: str, target: str) -> Pair:
    return Pair(load(draft, "float64"), load(target, "float64"))


@embedded
@pytest.mark.parametrize("rule", RULES)
def test_warm_text_is_cold_text_on_embedded_models(rule):
    questions, both = ("Ann has 3 pens and buys 4. How many has she?", "And Ben?"), real_pair("draft-tasks", "qwen-like")
    for temperature in (0.0, 1.0):
        options = Options(verify=rule, stop=Confidence(6), max_new_tokens=16, temperature=temperature)
        warm = turns(Conversation(both), options, questions)
        assert turns(Conversation(both), options, questions, cold=True) == warm
        assert temperature or turns(Conversation(both.target), options, questions) == warm


def test_views_that_differ_are_exact():
    """The text has the target's distribution, whatever the drafter reads."""
    for rule in ("lossless", "tli", "slem"):
        draft, target = FakeModel(SMALL_PIECES, 0), FakeModel(SMALL_BYTES, 50)
        pair, ids = Pair(draft, target), target.tokenizer.encode("ab a", bos=True)
        prompt = ids, draft.tokenizer.encode("bb a ", bos=True)
        options = Options(verify=rule, stop=Confidence(2, 0.3), temperature=0.9, top_k=3, max_new_tokens=2)

        def distribution(start, pair=pair, prompt=prompt, options=options):
            return distribution_of(lambda draws: tuple(t for r in start(draws) for t in r.emitted))

        one = distribution(lambda draws: speculative(pair, prompt, options, draws))  # noqa: B023
        other = distribution(lambda draws: plain(target, ids, options, draws))  # noqa: B023
        assert total_variation(one, other) < 1e-12


# ---- other behaviour -------------------------------------------------------------------------------------------------
def test_models_that_agree_still_do_in_the_second_turn():
    talk = Conversation(Pair(Same(SMALL_PIECES, 0), Same(SMALL_BYTES, 0)))
    for message in ("ab", "ba"):
        rounds = list(talk.ask(message, Options(stop=FixedLength(4), max_new_tokens=8), Uniforms([])))
        assert rounds[-1].done


def test_an_answer_that_was_stopped_stays():
    class Broken(FakeModel):
        left = 1000

        def forward(self, ids, cache, rows=1):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
            return super().forward(ids, cache, rows)

    for left in (1, 2, 5, None):  # stopped in the prefill, in the first round, later; None: by the caller
        both = Pair(FakeModel(PIECES, 1), Broken(BYTES, 2, end=-9.0))
        talk, options, pieces = Conversation(both, template=CHATML), Options(max_new_tokens=30), b""
        list(talk.ask("the thing", options, Uniforms([])))
        both.target.left = left or 1000
        rounds = talk.ask("and then?", options, Uniforms([]))
        try:
            for _ in range(4):
                pieces += BYTES.decode_bytes(next(rounds).emitted)
        except KeyboardInterrupt:
            assert left
        assert talk.messages[-1] == {"role": "assistant", "content": pieces.decode("utf-8", "replace").strip()}
        both.target.left = 1000
        [warm], (text, ids, _) = turns(talk, options, ["go on"]), talk.turns[0]
        ids = ids[:len(ids) - len(warm)]
        assert talk.messages[-3]["content"] in text and text.count("go on") == 1
        assert warm == [t for r in plain(both.target, ids, options, Uniforms([])) for t in r.emitted]


def test_the_oldest_turns_go_when_the_context_is_full():
    talk, dropped = Conversation(fakes(-9.0, context_size=160), system="be kind", template=CHATML), []
    for turn in range(12):
        list(talk.ask(f"the thing {turn}", Options(max_new_tokens=16), Uniforms([])))
        dropped.append(talk.dropped)
        assert talk.messages[0]["role"] == "system" and len(talk.text.ids) <= 160
        assert talk.messages[-2]["content"] == f"the thing {turn}"
    assert 0 < sum(map(bool, dropped)) < 6 and all(n % 2 == 0 for n in dropped)
    before = [*talk.messages]
    with pytest.raises(OmnidraftError, match="at most 159"):
        talk.ask("long " * 60, Options(), Uniforms([]))
    with pytest.raises(OmnidraftError, match="message is empty"):
        talk.ask(" \n", Options(), Uniforms([]))
    assert talk.messages == before


@pytest.mark.parametrize(("most", "room"), [(4, 4), (1000, 24)])
def test_short_answers_keep_more_turns(most, room):
    """The room kept for an answer is what it may need, at most a quarter of the context."""
    talk, sizes = Conversation(FakeModel(BYTES, 2, end=-9.0, context_size=96)), []
    while not talk.dropped:
        next(talk.ask("the thing", Options(max_new_tokens=most), Uniforms([])))
        sizes.append(len(talk.turns[0][1]) - 1)  # without the token that was written
    turn = sizes[-2] - sizes[-3]
    assert 96 - room - turn < sizes[-2] <= 96 - room


def test_a_replaced_drafter_has_no_cache():
    both = fakes()
    talk, options = Conversation(both, template=CHATML), Options(max_new_tokens=8, adaptive=False)
    turns(talk, options, MESSAGES[:2])
    both.draft = FakeModel(PIECES, 9)
    list(talk.ask("here", options, Uniforms([])))
    assert both.draft.passes[0] > 8 and talk.text.drafter.model is both.draft


# ---- the command -----------------------------------------------------------------------------------------------------
def models_of(folders) -> list[str]:  # noqa: F811
    return ["-d", folders["draft"], "-t", folders["target"], "-n", "12"]


def test_chat_answers_line_by_line(folders):  # noqa: F811
    both = ok("chat", *models_of(folders), input="the thing\n\nwhy\n")
    talk = Conversation(Pair(load(folders["draft"]), load(folders["target"])))
    turns(talk, Options(max_new_tokens=12), ("the thing", "why"))
    answers = [message["content"] for message in talk.messages if message["role"] == "assistant"]
    assert both.stdout.split() == " ".join(answers).split()
    assert both.stderr.count("tokens/s") == 2 and ">" not in both.stderr
    for same in (["-k", "0"], ["--verify", "slem"], ["--threshold", "0"]):
        assert ok("chat", *models_of(folders), *same, input="the thing\nwhy").stdout == both.stdout
    one = ok("chat", *models_of(folders), input="the thing\n").stdout
    assert ok("chat", *models_of(folders), input="the thing\n/new\nthe thing\n/exit\nmore\n").stdout == 2 * one
    assert ok("generate", "--chat", "the thing", *models_of(folders)).stdout.strip() == one.strip()
    assert "more" not in ok("chat", *models_of(folders), "--system", "be kind", input="/exit\nmore").stdout


def test_commands_of_chat(folders, monkeypatch):  # noqa: F811
    """/help shows help; an unknown command is refused in one line; other text that begins with a slash is a message."""
    shown = ok("chat", *models_of(folders), input="/help\n/new\n/usr/bin is what?\n")
    assert shown.stderr.count("/help shows this") == 1 and shown.stderr.count("tokens/s") == 1
    refused = run("chat", *models_of(folders), input="/x\nthe thing\n")
    assert refused.exit_code == 1 and refused.stderr.startswith("error: unknown command /x: ") and not refused.stdout
    assert len(refused.stderr.splitlines()) == 1
    monkeypatch.setattr("omnidraft.cli.generate.on_a_terminal", lambda: True)  # on a terminal the chat continues
    typed = ok("chat", *models_of(folders), input="/x\n\nthe thing\n/exit\nwhy\n")  # an empty line asks again
    assert typed.stderr.count("error: unknown command /x") == 1 and typed.stderr.count("tokens/s") == 1


def test_a_folder_with_the_name_of_an_embedded_model_keeps_its_turns(folders, tmp_path, monkeypatch):  # noqa: F811
    own, fresh = shutil.copytree(folders["target"], tmp_path / "qwen-like"), []
    new = Conversation.new
    monkeypatch.setattr(Conversation, "new", lambda talk: (fresh.append(talk), new(talk)))
    ok("chat", "-d", folders["draft"], "-t", own, "-n", "4", input="the thing\nin\n")
    assert len(fresh) == 1  # no message began another conversation


@pytest.mark.parametrize(("arguments", "given", "expected"), [
    ([], "", "no message"), ([], "\n \n", "no message"),
    (["-n", "0"], "the", "number"), (["--adapter", "x"], "the", "no adapter 'x'"), ([], "word " * 400, "at most"),
    (["-t", "{nothing}"], "the", "nothing")])
def test_bad_input_of_chat_is_one_line(arguments, given, expected, folders):  # noqa: F811
    result = run("chat", *models_of(folders), *arguments, input=given)
    assert result.exit_code == 1 and not result.stdout and expected in result.stderr
    assert len(result.stderr.splitlines()) == 1 and result.stderr.startswith("error: ")


@pytest.mark.parametrize(("terminal", "embedded"), [(False, False), (True, False), (True, True)])
def test_ctrl_c_stops_an_answer_on_a_terminal_and_all_of_a_pipe(folders, monkeypatch, terminal, embedded):  # noqa: F811
    """In a pipe the next answer would continue the line of the stopped one."""
    monkeypatch.setattr("omnidraft.cli.generate.on_a_terminal", lambda: terminal)
    monkeypatch.setattr("omnidraft.cli.generate.EMBEDDED", (folders["target"],) * embedded)
    ask, asked = Conversation.ask, []

    def stopped(talk, *arguments):
        asked.append(talk)
        records = ask(talk, *arguments)
        yield next(records)
        if len(asked) == 1:
            raise KeyboardInterrupt
        yield from records

    monkeypatch.setattr(Conversation, "ask", stopped)
    shown = run("chat", *models_of(folders), "--threshold", "1", input="the thing\nwhy\n")
    assert (shown.exit_code, len(asked), shown.stderr.count("tokens/s")) == ((0, 2, 1) if terminal else (130, 1, 0))
    assert ("stopped" in shown.stderr) == terminal  # what is said about the answer is true
    assert ("the partial answer stays" in shown.stderr) == (terminal and not embedded)
