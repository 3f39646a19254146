"""The training texts: sums are right, functions pass their tests, stories stay on topic; packed rows stay separate."""

import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import omnidraft
from benchmarks.quality import check
from omnidraft.engine.load import folder, load
from omnidraft.text.tokenizer import Tokenizer
from recipes import functions, general, problems, words
from recipes.other import ANSWER, other
from recipes.rows import build, encode
from recipes.stories import story
from recipes.world import ASKED, MIX, TASKS, fresh_prompts, hand_written, prompts

SUM = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)\.")


@pytest.mark.parametrize("part", range(8))
def test_every_problem_is_told_and_solved(part, draws=12):
    rng = random.Random(1)
    for schema in problems.SCHEMAS[part::8] * draws:
        example = problems.problem(rng, schema)
        steps, marked = example["response"].split("\n#### ")
        sums = [(int(x), op, int(y), int(z)) for x, op, y, z in SUM.findall(steps)]
        assert len(sums) == len(schema.steps)
        for x, op, y, z in sums:
            assert problems.OPERATIONS[op](x, y) == z and (op != "/" or x % y == 0)
        assert sums[-1][3] == example["answer"] == int(marked)
        assert not re.search(r"[\[\]{}<>|]|  |\bNone\b(?! of)", example["prompt"] + example["response"])
        told = example["prompt"].lower()
        x = sums[0][0]
        known = {2, 7, 12, 24, 60, 100}  # numbers known without being given: a pair, a week, a dozen, a day, an hour, a dollar
        assert x in known or re.search(rf"\b{x}\b", told) or words.number_word(x) in told or "twice" in told, example
        said = steps[SUM.search(steps).end():]
        assert str(example["answer"]) in said, example


def test_invented_words_stand_for_the_same_word_everywhere():
    prompt = "A baker fills 3 crates with 12 crullers each. How many crullers is that?"
    rng, text = random.Random(5), {"prompt": prompt, "response": " 12 crullers"}
    made = [problems.unfamiliar(rng, dict(text)) for _ in range(40)]
    assert any("crullers" not in one["prompt"] for one in made)
    for one in made:
        assert one["prompt"].split()[7] == one["prompt"].split()[11] == one["response"].split()[1]
        assert {"3", "12", "each."} < {*one["prompt"].split()}


def test_misspelling_spares_numbers():
    rng, text = random.Random(5), "Eleven friends share seventeen green apples and thirty pears."
    made = {problems.misspelled(rng, text) for _ in range(200)}
    assert len(made) > 50 and all(word in one for one in made for word in ("Eleven", "seventeen", "thirty"))


def test_there_are_many_schemas_and_subjects():
    assert len(problems.SCHEMAS) >= 3000
    rng = random.Random(2)
    firsts = Counter(problems.draw_subject(rng).name.split()[0] for _ in range(600))
    assert {"I", "We", "my", "you", "we", "the"} - set(firsts) == {"We"}


@pytest.mark.parametrize(("text", "form"), [
    ("give away", "gave away"), ("buy", "bought"), ("drop", "dropped"), ("carry", "carried")])
def test_past_tense(text, form):
    assert words.past(text) == form


def test_words():
    assert words.third("carry on") == "carries on" and words.third("go") == "goes"
    assert words.plural("slice of pizza") == "slices of pizza" and words.plural("toy box") == "toy boxes"
    assert words.article("apple") == "an apple" and words.number_word(42) == "forty-two"


def test_drills_borrow_and_carry():
    rng = random.Random(3)
    drawn = [problems.draw_sum(rng) for _ in range(800)]
    assert all(problems.OPERATIONS[op](x, y) == z for x, op, y, z in drawn)
    differences = [(x, y) for x, op, y, _ in drawn if op == "-"]
    assert sum(problems.is_hard(x, "-", y) for x, y in differences) > len(differences) / 2


def test_an_answer_speaks_to_who_asks():
    schema = next(s for s in problems.SCHEMAS if s.steps == ("a+b",))
    rng = random.Random(4)
    seen = 0
    while seen < 5:
        example = problems.problem(rng, schema)
        if re.match(r"I (have|had) ", example["prompt"]):
            seen += 1
            assert " You have " in example["response"]


@pytest.mark.parametrize(("answer", "noun", "said"), [
    ("{r} {o+} are left over.", "piece of cake", "1 piece of cake is left over."),
    ("{r} {o+} are not in a full {x}.", "green apple", "1 green apple is not in a full {x}."),
    ("{r} more are needed.", "apple", "1 more is needed."), ("{r} are left.", "apple", "1 is left."),
    ("{r} pages are left.", "apple", "1 page is left."), ("{r} people were there.", "apple", "1 person was there."),
    ("{r} parents have to stand.", "apple", "1 parent has to stand."),
    ("There are {r} {o+} left.", "apple", "There is 1 apple left."),
    ("{S} <need> {r} more eggs.", "apple", "He needs 1 more egg."),
    ("{r$} is left over.", "apple", "$1 is left over."), ("{r$} are left.", "apple", "$1 is left.")])
def test_one_thing_is_left_over(answer, noun, said):
    telling = problems.Telling(random.Random(6), problems.SCHEMAS[0], "{S}", {}, 1)
    telling.nouns, telling.money = telling.nouns | {"o": noun, "x": "box"}, "${}"
    telling.subject = problems.Subject("Tom", "he", "him", "his", True, "he", True)
    assert telling.tell(answer, answering=True) == said.format(x="box")


@pytest.mark.parametrize("kind", functions.KINDS, ids=lambda kind: kind.name)
def test_a_function_passes_its_tests(kind):
    rng = random.Random(5)
    for form in ("plain", "named", "tested", "opening"):
        example = functions.request(rng, kind, (form,))
        text = example["prompt"] + example["response"] if form == "opening" else example["response"]
        space: dict = {}
        exec(text, space)
        assert example["tests"] and all(test.startswith("assert") for test in example["tests"])
        for test in example["tests"]:
            exec(test, space)


def test_half_of_the_requests_are_plain():
    rng = random.Random(6)
    prompts = [functions.request(rng)["prompt"] for _ in range(400)]
    assert sum("assert" not in prompt and "(" not in prompt and "`" not in prompt for prompt in prompts) >= 200


def test_stories_keep_to_their_topic():
    rng = random.Random(7)
    for _ in range(400):
        example = story(rng)
        text = example["response"]
        his, her = r"\b(he|him|his)\b", r"\b(she|her)\b"
        for wrong in {"he": [her], "she": [his]}.get(example["hero"], [his, her]):
            assert not re.search(wrong, text, re.IGNORECASE), text
        spoken = text.split()
        eights = Counter(tuple(spoken[i:i + 8]) for i in range(len(spoken) - 7))
        assert max(eights.values()) < 3
        assert not re.search(r"[\[\]{}|_=]|  |,\w|//", text + example["prompt"])
        if match := re.search(r"story about an? (?:\w+ )?(\w+)[.?]?$", example["prompt"]):
            assert text.count(match[1]) > 1 and match[1] in text.split(". ")[0].rstrip(".")


def test_no_hand_written_unrelated_prompt_is_trained():
    rng, typed = random.Random(71), {example["prompt"].lower() for example in hand_written("other")}
    drawn = [TASKS["other"](rng)["prompt"].lower() for _ in range(20_000)]
    assert typed and not [prompt for prompt in drawn if any(prompt == one or f" {one}\n" in prompt for one in typed)]


def test_stories_are_about_anything_and_no_hand_written_opening_is_trained():
    rng, typed = random.Random(70), {example["prompt"] for example in hand_written("text")}
    drawn = [story(rng) for _ in range(2000)]
    assert not typed & {example["prompt"] for example in drawn}
    form = re.compile("Write a (?:short )?story about an? (?:\\w+ )?(\\w+)[.]$")
    asked = [match[1] for example in drawn if (match := form.match(example["prompt"]))]
    assert len(set(asked)) > 0.7 * len(asked) > 20  # few topics occur twice


def test_everything_else_has_one_answer():
    rng = random.Random(8)
    drawn = [other(rng) for _ in range(300)]
    assert {example["response"] for example in drawn} == {ANSWER}
    assert all(example["prompt"].strip() for example in drawn)
    assert not any(re.search(r"[{}|]", example["prompt"]) for example in drawn)


def test_numbers_and_the_words_of_the_topic_weigh_twice():
    tokenizer = Tokenizer.load(folder("qwen-like"))
    for response, topics, heavy in ((" 12 + 3 = 15.", None, "12315"), (" A cat saw the sea. Cats!", ["cat", "sea"], "catsea")):
        example = {"task": "text" if topics else "math", "prompt": "Say 7 cats", "response": response, "topics": topics}
        ids, weights = encode(tokenizer, example)
        assert "".join(tokenizer.decode([token]).strip() for token, w in zip(ids, weights, strict=True) if w == 2) == heavy
        assert weights[0] == 0 and weights[-1] == 1


def test_rows_hold_whole_examples():
    tokenizer = Tokenizer.load(folder("qwen-like"))
    arrays = build(tokenizer, seed=9, tokens=20_000)
    ids, weight, group = arrays["ids"], arrays["weight"], arrays["group"]
    end = tokenizer.roles["eos"][0]
    assert ids.shape == weight.shape == group.shape and not weight[group == 0].any()
    for row in range(len(ids)):
        for number in range(1, group[row].max() + 1):
            here = group[row] == number
            assert ids[row, here][-1] == end and weight[row, here][0] == 0 and weight[row, here][-1] == 1
    assert np.array_equal(build(tokenizer, seed=9, tokens=20_000)["ids"], ids)
    assert set(MIX) == set(TASKS) and sum(MIX.values()) == pytest.approx(1)


@pytest.mark.parametrize("task", ASKED)
def test_prompt_files_tell_trained_kinds_from_hand_written_ones(task):
    examples = prompts(task)
    unseen = [example["prompt"] for example in examples if not example["seen_template"]]
    assert len({example["prompt"] for example in examples}) == 200 and 30 <= len(unseen) <= 67
    assert len(set(unseen) & set(fresh_prompts(task, 300, 0))) < 3  # "Once upon a time" may occur in both
    assert {"math": "answer", "code": "tests", "text": "prompt"}[task] in set.intersection(*map(set, examples))
    assert examples[0]["seen_template"] and examples == prompts(task)


def test_recipes_use_names_that_the_package_has():
    for file in Path(problems.__file__).parent.glob("*.py"):
        for name in re.findall(r"\bod\.(\w+)", file.read_text(encoding="utf-8")):
            assert hasattr(omnidraft, name), f"{file.name}: od.{name}"


def test_fresh_prompts_depend_on_the_seed():
    assert fresh_prompts("math", 20, 1) == fresh_prompts("math", 20, 1)
    assert len(set(fresh_prompts("math", 20, 1)) & set(fresh_prompts("math", 20, 2))) < 3


def test_hand_written_functions_have_tests_that_can_pass():
    for example in prompts("code"):
        assert example["tests"] and all(compile(test, "test", "exec") for test in example["tests"])


def test_the_check_of_answers_knows_right_from_wrong():
    rng = random.Random(9)
    drawn = {"math": problems.problem, "sums": problems.bare_sum, "code": functions.request, "text": story, "other": other}
    for task, draw in drawn.items():
        example = draw(rng)
        marks = [[*check(task, example, text).values()][-1] for text in (example["response"], "They went")]
        assert marks == [True, False]
    example = functions.request(rng, functions.KINDS[0], ("plain",))
    assert not check("code", example, example["response"].replace("+", "*"))["passes"]


def test_a_mean_of_checkpoints_keeps_shares_and_number_type():
    torch = pytest.importorskip("torch")
    from recipes.average import mean

    one, other = (torch.tensor(numbers, dtype=torch.float16) for numbers in ([1.0, 2.0], [5.0, -2.0]))
    made = mean([({"a": one}, 0.25), ({"a": other}, 0.75)])["a"]
    assert made.tolist() == [4.0, -1.0] and made.dtype == torch.float16


def test_a_deeper_model_begins_as_its_source_and_a_shallower_one_has_its_own_tokenizer(tmp_path):
    pytest.importorskip("torch")
    from recipes.grow import grow

    source, shape = folder("qwen-like"), folder("llama3-like")
    before = load(source)
    layers = [*range(before.config.layers)]
    grow(source, source, tmp_path / "deeper", [layers[0], *layers, layers[-1]])
    deeper = load(tmp_path / "deeper")
    assert deeper.config.layers == len(layers) + 2
    ids = before.tokenizer.encode("Ann has 3 boxes.", bos=True)
    logits = [model.forward(ids, model.new_cache(), len(ids)) for model in (before, deeper)]
    np.testing.assert_allclose(*logits, atol=1e-4)
    grow(source, shape, tmp_path / "other", layers[:2])
    other = load(tmp_path / "other")
    assert other.tokenizer.strings == load(shape).tokenizer.strings and other.config.layers == 2


def test_the_general_drafter_reads_no_answer(monkeypatch):
    monkeypatch.setattr(general, "stdlib", lambda: general.pieces("def f():\n" + "    return 1\n" * 200))
    assert all(len(piece) <= 700 for piece in general.stdlib())
    tokenizer = Tokenizer.load(folder("draft-general"))
    rows = build(tokenizer, 3, 20_000, corpus=general)
    text = "".join(tokenizer.decode_bytes(row).decode() for row in rows["ids"])
    assert "####" not in text and "only know" not in text and ">>> " in text and "return 1" in text
    bos = rows["ids"] == tokenizer.roles["bos"][0]  # everything but the first token of a text is learned
    assert np.array_equal(rows["weight"] == 0, bos | (rows["group"] == 0))
    sessions = {general.read_sums(random.Random(seed)) for seed in range(20)}
    for text in sessions:
        if text.startswith("assert"):
            exec(text)  # raises AssertionError for a wrong sum
        else:
            lines = text.splitlines()
            assert [eval(line.removeprefix(">>> ")) for line in lines[::2]] == [int(line) for line in lines[1::2]]
    assert len({text[:3] for text in sessions}) == 2
