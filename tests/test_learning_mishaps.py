"""Learning that is interrupted, that gets unusable input, or that is saved next to other adapters."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import weakref
from contextlib import suppress
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
from fakes import byte_level, interrupted
from safetensors.numpy import load_file, save_file
from test_cli import ROOT, own_caches, run, write_model  # noqa: F401 (a fixture)
from test_learning import PROMPTS, adapt, folders, learner_of, paired, resumed, serve  # noqa: F401 (fixtures)

from omnidraft import losses
from omnidraft.engine.load import load
from omnidraft.learning import adapters, online
from omnidraft.learning.adapters import Adapter, Adapters
from omnidraft.learning.online import Schedule
from omnidraft.learning.training import Recipe
from omnidraft.ngram_cache import NGramCache
from omnidraft.pairs.pair import Pair
from omnidraft.stopping import AcceptanceHead, Confidence
from omnidraft.text import files
from omnidraft.text.errors import OmnidraftError


def last(result) -> dict:
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("where", ["expected_acceptance", "step"])
def test_ctrl_c_within_an_update_leaves_what_was_learned(folders, monkeypatch, where):  # noqa: F811
    learner = learner_of(paired(folders), Schedule(every=1))
    serve(learner, PROMPTS[:3])
    before, calls = learner.trainer.state(), []
    owner, name = (learner.trainer, where) if where == "expected_acceptance" else (learner.trainer.optimizer, where)
    real = getattr(owner, name)

    def interrupted(*given):
        calls.append(given)
        if where == "step":  # half of the parameters have changed
            next(iter(learner.trainer.parameters.values()))[...] = 7.0
        if where == "step" or len(calls) == 2:  # while the guard tests the best weights
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        serve(learner, PROMPTS[3:4])
    assert all((before[k] == v).all() for k, v in learner.trainer.state().items())
    monkeypatch.undo()
    assert learner.close().updated and len(learner.guard.compared) == 1  # the guard counts the same texts once


def test_a_text_that_cannot_be_learned_from_is_not_replayed(folders, monkeypatch):  # noqa: F811
    learner, lifted, bad = learner_of(paired(folders), Schedule(every=1, replay=100)), losses.LOSSES["lifted"], []
    serve(learner, PROMPTS[:1])

    def broken(logits, example, *given, **more):
        if len(bad) == 0:
            bad.append(example)
        value = lifted(logits, example, *given, **more)
        return (np.nan, *value[1:]) if example is bad[0] else value

    monkeypatch.setitem(losses.LOSSES, "lifted", broken)
    notes = [one.note for one in serve(learner, PROMPTS[1:6])]
    assert "not finite" in notes[0] and not any(notes[1:]) and learner.skipped == 1


def test_rows_that_are_no_numbers_skip_the_text_and_learning_goes_on(folders):  # noqa: F811
    learner = learner_of(paired(folders), Schedule(every=2))
    finish, count = learner.finish, []

    def spoiled(*given):
        count.append(given)
        if len(count) == 2:
            learner._rows[0][:] = np.nan
        return finish(*given)

    learner.finish = spoiled
    learned = serve(learner, PROMPTS[:4], temperature=0.0)
    assert "skipped" in learned[1].note and len(learned) == 4 and np.isfinite(learned[3].loss) and learner.skipped == 1


def test_a_head_may_learn_from_a_grammar(folders):  # noqa: F811
    """Its labels must not read rows after a proposal that is not kept: there a processor may leave no token."""
    pair = paired(folders)
    allowed, head = pair.target.tokenizer.encode("the in a t h"), AcceptanceHead(pair.draft.config.width)
    start = len(pair.target.tokenizer.encode(PROMPTS[0], bos=True))

    def grammar(ids, row):
        possible = np.isin(np.arange(len(row)), allowed) & bool(np.isin(ids[start:], allowed).all())
        return np.where(possible, row, -np.inf)

    learner = learner_of(pair, Schedule(every=2, head="joint"), head)
    learned = serve(learner, PROMPTS[:1] * 2, processor=grammar, stop=Confidence(6, 0.0, head))
    assert not any(one.note for one in learned) and learned[1].updated and len(learner.labelled) > 20


def test_a_text_that_the_drafter_cannot_spell_teaches_nothing(folders, tmp_path):  # noqa: F811
    drafter = load(write_model(tmp_path / "ab", byte_level([("a", "b")]), 7))  # no byte tokens, no <s>
    learner = learner_of(Pair(drafter, load(folders["target"])), Schedule(every=1))
    learned = serve(learner, ["日本", "ab a"], temperature=0.0, max_new_tokens=1)
    assert [one.updated for one in learned] == [False, True] and not any(one.note for one in learned)


def test_replay_takes_no_more_memory_than_it_may(folders):  # noqa: F811
    learner = learner_of(paired(folders), Schedule(every=1, replay=1, guard=0, memory_bytes=1))
    serve(learner, PROMPTS[:3])
    assert len(learner.memory) == 1
    learner = learner_of(paired(folders), Schedule(every=1, guard=0))
    serve(learner, PROMPTS[:3])
    assert not len(learner.memory)  # nothing is replayed


def test_its_memory_is_an_option_of_the_command(folders, monkeypatch):  # noqa: F811
    seen, made = [], online.Schedule

    class Seen(made):
        def __post_init__(self) -> None:
            seen.append(self)

    monkeypatch.setattr(online, "Schedule", Seen)
    for more in ((), ("--replay-mb", "3")):
        assert adapt(folders, "math", "--limit", "1", "--no-save", *more).exit_code == 0
    assert [one.memory_bytes for one in seen] == [made().memory_bytes, 3 << 20]


def test_numbers_that_cannot_be_read_again_replace_no_adapter(folders, tmp_path):  # noqa: F811
    learner = resumed(folders, tmp_path)
    serve(learner, PROMPTS[:2])
    store = Adapters(tmp_path)
    store.keep(learner)
    learner.trainer.parameters[next(iter(learner.trainer.parameters))][:] = np.inf  # as after steps that are far too large
    with pytest.raises(OmnidraftError, match="NaN or infinite"):
        store.keep(learner)
    assert store.load(paired(folders)).version == 1 and [*tmp_path.parent.glob(f"{tmp_path.name}-rescued*")] == []


def test_the_rate_that_the_guard_has_found_is_kept(folders, tmp_path, monkeypatch):  # noqa: F811
    store, schedule = Adapters(tmp_path), Schedule(every=1)
    learner = store.resume(paired(folders), Recipe(rank=4, rate=0.01), schedule, np.random.default_rng(0))
    values = cycle([0.6, 0.5])  # the best weights, then the present ones: every update is rolled back
    monkeypatch.setattr(learner.trainer, "expected_acceptance", lambda pair, texts: next(values))
    serve(learner, PROMPTS[:3])
    assert learner.rollbacks == 2
    store.keep(learner)
    assert resumed(folders, tmp_path).trainer.optimizer.rate == 0.01 / 16 and learner.statistics.rate_share == 1 / 16
    given = resumed(folders, tmp_path, rate=0.02)
    assert given.trainer.optimizer.rate == 0.02 and given.statistics.rate_share == 1
    serve(learner, PROMPTS[:4])  # the rate does not fall below this
    assert learner.rollbacks == 6 and learner.statistics.rate_share == 1 / 64


def test_what_was_kept_without_its_optimizer_is_gone_on_from(folders, tmp_path):  # noqa: F811
    store, learner = Adapters(tmp_path), resumed(folders, tmp_path)
    serve(learner, PROMPTS[:4])
    lora = learner.trainer.lora
    store.save(paired(folders), Adapter(lora))
    again = resumed(folders, tmp_path)
    assert all((again.trainer.served[k] == v).all() for k, v in lora.parameters.items())
    assert any(v.any() for k, v in lora.parameters.items() if "lora_B" in k)
    assert "tiny-draft--tiny-target" in run("adapters", "list", "--adapters", str(tmp_path)).stdout  # without statistics


def test_an_adapter_learned_in_float64_is_kept_in_float64(folders, tmp_path):  # noqa: F811
    def of(dtype: str) -> Pair:
        return Pair(load(folders["draft"], dtype), load(folders["target"]))

    store, recipe, schedule = Adapters(tmp_path), Recipe(rank=4, rate=0.01), Schedule(every=2, guard=0)
    learner = store.resume(of("float64"), recipe, schedule, np.random.default_rng(0))
    serve(learner, PROMPTS[:2])
    store.keep(learner)
    state = store.resume(of("float64"), recipe, schedule, np.random.default_rng(0)).trainer.state()
    assert all((state[name] == array).all() for name, array in learner.trainer.state().items())
    single = of("float32")
    drafter = store.load(single).drafter(single.draft)
    assert drafter.forward([5], drafter.new_cache()).dtype == np.float32


def test_every_changed_byte_of_the_manifest_is_found(folders, tmp_path, monkeypatch):  # noqa: F811
    store, learner = Adapters(tmp_path), resumed(folders, tmp_path)
    serve(learner, PROMPTS[:2])
    path = store.keep(learner) / "current.json"
    good, pair = path.read_bytes(), paired(folders)
    for place in range(0, len(good), 7):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1:])
        assert "error" in store.all()["tiny-draft--tiny-target"] or json.loads(path.read_bytes()) == json.loads(good)
    path.write_bytes(good)
    assert store.load(pair) is not None


def test_a_save_while_another_process_reads_is_not_taken_for_damage(folders, tmp_path, monkeypatch):  # noqa: F811
    store, learner = Adapters(tmp_path), resumed(folders, tmp_path)
    serve(learner, PROMPTS[:2])
    store.keep(learner)
    check, saved = adapters.check, []

    def meanwhile(*given, **models):
        if not saved:
            saved.append(1)
            store.keep(learner)
        return check(*given, **models)

    monkeypatch.setattr(adapters, "check", meanwhile)
    assert store.load(paired(folders)).lora is not None


def test_a_full_disk_stays_no_fuller(folders, tmp_path, monkeypatch):  # noqa: F811
    store, learner = Adapters(tmp_path), resumed(folders, tmp_path)
    serve(learner, PROMPTS[:2])
    store.keep(learner)

    def full(*_):
        raise OmnidraftError("No space left on device")

    monkeypatch.setattr(adapters, "write_manifest", full)
    with pytest.raises(OmnidraftError, match="No space"):
        store.keep(learner)
    assert [p.name[:3] for p in store.folder(learner.pair).glob("v*")] == ["v1-"]


def test_another_target_of_the_same_name_and_tokenizer_has_an_adapter_of_its_own(folders, tmp_path):  # noqa: F811
    store, learner = Adapters(tmp_path), resumed(folders, tmp_path)
    serve(learner, PROMPTS[:2])
    place = store.keep(learner)
    foreign = paired(folders, target="second")
    foreign.target.name = "tiny-target"
    assert store.load(foreign) is None
    with pytest.raises(OmnidraftError, match="learned with another target"):
        store.load(foreign, "tiny-draft--tiny-target")
    other = store.resume(foreign, Recipe(rank=4), Schedule(every=2, guard=0), np.random.default_rng(0))
    serve(other, PROMPTS[:2])
    beside = store.keep(other)
    assert beside != place and beside.name.startswith("tiny-draft--tiny-target--")
    assert store.load(paired(folders)).folder == place and store.load(foreign).folder == beside


def test_a_pair_finds_its_adapter_wherever_its_models_lie(folders, tmp_path):  # noqa: F811
    """Copies in other folders are the same models; one changed number makes another model."""
    store, learner = Adapters(tmp_path / "kept"), resumed(folders, tmp_path / "kept")
    serve(learner, PROMPTS[:2])
    place = store.keep(learner)
    copies = {role: str(shutil.copytree(folders[role], tmp_path / "copied" / Path(folders[role]).name))
              for role in ("draft", "target")}
    moved = paired(copies)
    assert store.folder(moved) == place and store.load(moved).statistics.prompts == 2
    other = store.resume(moved, Recipe(rank=4), Schedule(every=2, guard=0), np.random.default_rng(0))
    serve(other, PROMPTS[2:4])
    assert store.keep(other) == place and [*store.all()] == [place.name] and store.load(moved).version == 2
    path = Path(copies["draft"]) / "model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"][0] += 1
    save_file(weights, path)
    assert store.load(paired(copies)) is None


def test_a_copy_of_an_adapter_counts_only_by_its_name(folders, tmp_path):  # noqa: F811
    store, learner = Adapters(tmp_path), resumed(folders, tmp_path)
    serve(learner, PROMPTS[:2])
    place = store.keep(learner)
    shutil.copytree(place, tmp_path / "zzz-backup")
    serve(learner, PROMPTS[2:4])
    assert store.keep(learner) == place and store.load(paired(folders)).version == 2
    assert store.load(paired(folders), "zzz-backup").version == 1
    fingerprint = store.all()["zzz-backup"]["fingerprint"]
    with pytest.raises(OmnidraftError, match="no adapter '[0-9a-f]{8}', or several: give a name"):
        store.named(fingerprint[:8])
    assert store.named("tiny-draft--tiny-target") == tmp_path / "tiny-draft--tiny-target"


def test_models_that_were_renamed_keep_their_adapter(folders, tmp_path):  # noqa: F811
    store, learner = Adapters(tmp_path), resumed(folders, tmp_path)
    serve(learner, PROMPTS[:2])
    place = store.keep(learner)
    renamed, other = paired(folders), paired(folders, target="second")
    renamed.target.name = "downloaded-elsewhere"
    assert store.folder(renamed) == place and store.load(renamed).statistics.prompts == 2
    again = store.resume(renamed, Recipe(rank=4), Schedule(every=2, guard=0), np.random.default_rng(0))
    serve(again, PROMPTS[2:4])
    assert store.keep(again) == place and [*store.all()] == [place.name]
    other.target.name = "tiny-target"  # the same names, other weights
    assert store.load(other) is None
    shutil.copytree(place, tmp_path / "a-backup")  # its name is before all others
    assert store.folder(paired(folders)) == place
    place.rename(tmp_path / "b-moved")
    assert store.folder(paired(folders)).name == "a-backup"


def test_without_the_optimizer_s_file_an_adapter_is_whole_and_goes_on(folders, tmp_path):  # noqa: F811
    store, learner = Adapters(tmp_path), resumed(folders, tmp_path)
    serve(learner, PROMPTS[:4])
    place = store.keep(learner)
    [states] = place.glob("v1-*/optimizer.safetensors")
    weights = next(place.glob("v1-*/adapter_model.safetensors"))
    assert states.stat().st_size > 2 * weights.stat().st_size  # the file that need not be copied
    states.unlink()
    assert not store.load(paired(folders)).states
    again = resumed(folders, tmp_path)
    assert again.follows == learner.follows
    assert all((again.trainer.served[k] == v).all() for k, v in learner.trainer.served.items())
    assert serve(again, PROMPTS[4:6])[1].updated and again.trainer.optimizer.steps == 1


def test_the_lifting_is_that_of_the_cache_in_use(folders):  # noqa: F811
    pair = paired(folders)
    items = [(ngram, token) for ngram, token, _ in pair.cache.items()]
    one, other = NGramCache(), NGramCache()
    one.insert(*items[0])
    other.insert(*items[1])
    pair.cache = one
    assert pair.lifting.splits[items[0][1]] == items[0][0]
    pair.cache = other
    assert pair.lifting.splits[items[1][1]] == items[1][0] and items[0][1] not in pair.lifting.splits


# ----------------------------------------------------------------------------------------------------- command line

@pytest.mark.parametrize("arguments, says", [
    (["--limit", "0"], "limit is 0"), (["--limit", "-1"], "limit is -1"),
    (["--replay-mb", "-1"], "memory_bytes is -1048576, but must be"),
    (["--head", "interleaved", "--every", "1"], "set every to 2 or more")])
def test_settings_are_checked_before_anything_is_served(folders, arguments, says):  # noqa: F811
    result = adapt(folders, "math", *arguments)
    assert result.exit_code == 1 and says in result.stderr and "learning" not in result.stderr
    assert isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("kind, settings, says", [
    (Schedule, {"replay": -1}, "replay is -1"), (Schedule, {"held_out": -3}, "held_out is -3"),
    (Schedule, {"guard": -1}, "guard is -1"), (Schedule, {"every": 2.5}, "every is 2.5, but must be a whole number from 1"),
    (Schedule, {"steps": 1.5}, "steps is 1.5"), (Recipe, {"loss": "hybrid", "weight": -1}, "weight is -1"),
    (Recipe, {"weight": float("inf")}, "weight is inf"), (Recipe, {"weight": "x"}, "must be a number")])
def test_settings_of_learning_are_checked(kind, settings, says):
    with pytest.raises(OmnidraftError, match=says):
        kind(**settings)


def test_a_bad_line_keeps_what_was_learned_before_it(folders, tmp_path):  # noqa: F811
    path = tmp_path / "late.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": p}) for p in PROMPTS[:4]) + "\n{broken\n")
    result = adapt(folders, "late.jsonl")
    assert result.exit_code == 1 and "not a JSON object" in result.stderr and "saved to" in result.stderr
    path.write_text("\n".join(json.dumps({"prompt": p}) for p in PROMPTS))
    assert last(adapt(folders, "late.jsonl", "--json"))["prompts"] == 8


def test_lines_end_where_json_says(folders, tmp_path):  # noqa: F811
    text = json.dumps({"prompt": "the\u2028thing\x85in"}, ensure_ascii=False) + "\n"
    (tmp_path / "lines.jsonl").write_text(text, encoding="utf-8-sig")
    assert last(adapt(folders, "lines.jsonl", "--no-save", "--json"))["prompts"] == 1


def test_text_on_stdin_may_begin_with_a_brace_and_must_be_utf_8(folders, monkeypatch):  # noqa: F811
    assert last(adapt(folders, "-", "--no-save", "--json", input="the thing\n{ in }\n"))["prompts"] == 2
    assert last(adapt(folders, "-", "--no-save", "--json", input='{"prompt": "in"}\n{"text": "the"}\n'))["prompts"] == 2
    result = adapt(folders, "-", input='{"prompt": "in"}\n{}\n'.encode("utf-8-sig"))  # a byte order mark is no text
    assert result.exit_code == 1 and "stdin: a line is not a JSON object" in result.stderr
    result = adapt(folders, "-", input=b"the thing\n\xff\n")
    assert result.exit_code == 1 and "the input is not valid UTF-8: convert it" in result.stderr


def test_an_update_at_the_end_counts(folders, tmp_path):  # noqa: F811
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    found = last(adapt(folders, "prompts.txt", "--limit", "3", "--json"))
    assert found["updates"] == 2 and found["prompts"] == 3


def test_another_file_of_the_same_name_begins_at_its_beginning(folders, tmp_path, monkeypatch):  # noqa: F811
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "prompts.txt").write_text("\n".join(PROMPTS[:2]))
        monkeypatch.chdir(tmp_path / name)
        found = adapt(folders, "prompts.txt", "--adapters", str(tmp_path / "kept"), "--json")
        assert found.exit_code == 0, found.stderr
    assert last(found)["prompts"] == 4
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two" / "prompts.txt").write_text("\n".join(PROMPTS[:4]))
    found = adapt(folders, "two/prompts.txt", "--adapters", str(tmp_path / "kept"), "--json")
    assert last(found)["prompts"] == 6 and "skipping the first 2 prompts" in found.stderr
    [current] = (tmp_path / "kept").glob("*/current.json")
    assert "prompts.txt" not in current.read_text() and str(tmp_path) not in current.read_text()  # others may get it


def test_ctrl_c_before_the_first_prompt_says_so(folders, monkeypatch):  # noqa: F811
    from omnidraft.learning import online

    def interrupted(*_):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(online, "learn", interrupted)
    result = adapt(folders, "math")
    assert result.exit_code == 1 and "nothing new was learned" in result.stderr


def test_a_save_for_another_target_keeps_the_lock(folders, tmp_path):  # noqa: F811
    store, one = Adapters(tmp_path), paired(folders)
    other = Pair(one.draft, load(folders["draft"]))
    with store.writing(one) as folder:
        store.save(other, Adapter(learner_of(other).trainer.lora))
        with store.writing(one) as again, pytest.raises(OmnidraftError, match="another process"):
            assert again == folder != store.folder(other)
            with Adapters(tmp_path).writing(one):
                pass


# ------------------------------------------------------------------------------- what others keep in an adapter's folder

def test_a_save_removes_only_versions_that_saves_have_made(folders, tmp_path):  # noqa: F811
    store, learner = Adapters(tmp_path / "kept"), resumed(folders, tmp_path / "kept")
    place, elsewhere = store.folder(learner.pair), tmp_path / "elsewhere"
    for name in ("vacation-photos", "v9", "v1-0123abcd"):  # the last has a version's name, but was put here by somebody
        (place / name).mkdir(parents=True)
        (place / name / "x.jpg").write_text("x")
    elsewhere.mkdir()
    (elsewhere / "x.jpg").write_text("x")
    (place / "v2").symlink_to(elsewhere)
    for _ in range(3):
        serve(learner, PROMPTS[:2])
        store.keep(learner)
        named = json.loads((place / "current.json").read_text())["folder"]
        assert {path.name for path in place.glob("v*")} == {"vacation-photos", "v9", "v2", "v1-0123abcd", named}
    assert len([*place.glob("*/x.jpg")]) == 4


def test_a_manifest_from_others_has_nothing_else_deleted(folders, tmp_path):  # noqa: F811
    store, learner = Adapters(tmp_path / "kept"), resumed(folders, tmp_path / "kept")
    serve(learner, PROMPTS[:2])
    place = store.keep(learner)
    manifest = adapters.manifest_of(place)
    for name in ("photos", "v1-0123abcd"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.jpg").write_text("x")
    (place / "photos").mkdir()
    (place / "v1-0123abcd").symlink_to(tmp_path / "photos")
    (place / f"v99-{manifest['fingerprint'][:8]}").symlink_to(tmp_path / "photos")
    for name in ("photos", "v1-0123abcd"):
        adapters.write_manifest(place, manifest | {"folder": name})
        assert Adapters(tmp_path / "kept").save(paired(folders), Adapter(learner.trainer.lora)) == place
    for name in ("../photos", "../v1-0123abcd", ".", "..", "", 5, None):
        adapters.write_manifest(place, manifest | {"folder": name})
        with pytest.raises(OmnidraftError, match="is damaged"):
            store.save(paired(folders), Adapter(learner.trainer.lora))
    assert (place / "photos").is_dir() and len([*tmp_path.glob("*/x.jpg")]) == 2
    assert len([path for path in place.glob("v*") if not path.is_symlink()]) == 1


@pytest.mark.parametrize("end", [KeyboardInterrupt, OmnidraftError])
def test_what_a_broken_save_left_is_removed_by_the_next_one(folders, tmp_path, monkeypatch, end):  # noqa: F811
    store, learner = Adapters(tmp_path), resumed(folders, tmp_path)
    serve(learner, PROMPTS[:2])
    for _ in range(2):
        with monkeypatch.context() as patch, pytest.raises(end):
            patch.setattr(adapters, "write_manifest", lambda *_: (_ for _ in ()).throw(end()))
            store.keep(learner)
    place = store.keep(learner)
    assert [path.name for path in place.glob("v*")] == [json.loads((place / "current.json").read_text())["folder"]]


def test_a_delete_leaves_what_others_keep_there(folders, tmp_path):  # noqa: F811
    store, learner = Adapters(tmp_path / "kept"), resumed(folders, tmp_path / "kept")
    serve(learner, PROMPTS[:2])
    place = store.keep(learner)
    (place / "photos").mkdir()
    (place / "photos" / "x.jpg").write_text("x")
    (place / "notes.txt").write_text("x")
    (place / "v9-0123abcd").mkdir()  # like a version's folder, but no save has made it
    done = run("adapters", "delete", place.name, "--yes", "--adapters", str(store.root))
    assert done.exit_code == 0 and "not what else is there: notes.txt, photos, v9-0123abcd" in done.stderr
    left = sorted(path.relative_to(place).as_posix() for path in place.rglob("*"))
    assert left == ["notes.txt", "photos", "photos/x.jpg", "v9-0123abcd"]
    assert store.all() == {}


SAVING = ("omnidraft.learning.adapters", "omnidraft.text.files")


def test_an_interrupt_anywhere_in_a_save_is_not_taken_for_another_process(folders, tmp_path):  # noqa: F811
    """Ctrl-C at every 16th line of a save; then the learner saves as before, and nothing is left over.

    `tests/soak.py interrupts` takes every line.
    """
    store, learner, pair = Adapters(tmp_path / "kept"), resumed(folders, tmp_path / "kept"), paired(folders)
    serve(learner, PROMPTS[:2])
    store.keep(learner)
    lines = interrupted(lambda: store.keep(learner), 0, SAVING)
    assert lines > 100
    for at in range(1, lines, 16):
        interrupted(lambda: store.keep(learner), at, SAVING)
        assert store.load(pair).lora is not None, at
        place = store.keep(learner)
        named = json.loads((place / "current.json").read_text())["folder"]
        assert [path.name for path in place.glob("v*")] == [named], at
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]  # nothing had to be rescued


def test_an_interrupt_just_after_the_manifest_is_replaced(folders, tmp_path, monkeypatch):  # noqa: F811
    store, learner = Adapters(tmp_path / "kept"), resumed(folders, tmp_path / "kept")
    serve(learner, PROMPTS[:2])
    place, real = store.keep(learner), files._sync
    before = (place / "current.json").read_text()

    def sync(folder):
        if (place / "current.json").read_text() != before:
            raise KeyboardInterrupt
        real(folder)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(files, "_sync", sync)
        store.keep(learner)
    assert store.keep(learner) == place and store.load(paired(folders)).version == 3
    other = resumed(folders, tmp_path / "kept")
    store.keep(other)
    with pytest.raises(OmnidraftError, match="another process has saved"):  # which is still found out
        store.keep(learner)


# ------------------------------------------------------------------------------------------------------------- signals

def learning(folders, count: int = 400, **how) -> subprocess.Popen:  # noqa: F811
    """A run of `adapt` in a process of its own, in this folder."""
    Path("prompts.txt").write_text("\n".join(PROMPTS[i % len(PROMPTS)] for i in range(count)))
    code = ("import signal, sys; from omnidraft_main import main\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler); main()")  # it is ignored in the background
    pair = ["-d", folders["draft"], "-t", folders["target"], "--adapters", "kept"]
    if sys.platform != "win32":  # whoever started the tests may have them ignore a closed terminal
        how.setdefault("preexec_fn", lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
    return subprocess.Popen([sys.executable, "-c", code, "adapt", "prompts.txt", *pair, "-n", "8", "--rank", "2", "--json"],
                            env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, **how)


def prompts_saved() -> int:
    """How many prompts the adapter in ./kept was learned from; 0 if there is none."""
    return next(iter(Adapters("kept").all().values()), {"statistics": {"prompts": 0}})["statistics"]["prompts"]


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_that_ends_the_run_saves_what_was_learned(folders, name):  # noqa: F811
    with learning(folders, stderr=subprocess.PIPE) as process:
        for _ in range(10):
            process.stdout.readline()
        process.send_signal(getattr(signal, name))
        if name != "SIGINT":
            process.send_signal(signal.SIGHUP)  # the second comes during the save
        said = process.stderr.read().decode()
    assert process.returncode == 0 and "stopped" in said and "Traceback" not in said
    assert 10 <= prompts_saved() < 400


@pytest.mark.skipif(sys.platform == "win32", reason="no terminals of this kind")
def test_a_terminal_that_is_closed_saves_what_was_learned(folders):  # noqa: F811
    ours, theirs = os.openpty()
    with learning(folders, stderr=theirs, start_new_session=True) as process:
        os.close(theirs)
        os.set_blocking(ours, False)
        for _ in range(10):  # they come by the pipe, although there is a terminal for the remarks
            assert process.stdout.readline().startswith(b'{"type": "prompt"')
            with suppress(BlockingIOError):
                os.read(ours, 1 << 16)  # otherwise the process would wait until somebody reads
        os.close(ours)  # from now on, every remark fails
        process.send_signal(signal.SIGHUP)
        process.stdout.read()
    assert process.returncode in (0, 1) and 10 <= prompts_saved() < 400


@pytest.mark.skipif(sys.platform == "win32", reason="no such signal")
def test_after_nohup_a_closed_terminal_ends_nothing(folders):  # noqa: F811
    with learning(folders, count=40, stderr=subprocess.PIPE,
                  preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        process.stdout.read()
    assert process.returncode == 0 and prompts_saved() == 40


def test_a_run_without_end_keeps_few_results(folders, monkeypatch):  # noqa: F811
    seen, most = [], [0]
    real = online.learn

    def learn(*given):
        for learned in real(*given):
            seen.append(weakref.ref(learned))
            most.append(sum(one() is not None for one in seen))
            yield learned

    monkeypatch.setattr(online, "learn", learn)
    Path("prompts.txt").write_text("\n".join(PROMPTS * 10))
    result = adapt(folders, "prompts.txt", "--no-save", "--rank", "2", "-n", "2", "--json")
    assert last(result)["prompts"] == len(seen) == 80 and max(most) <= 40, max(most)


# ------------------------------------------------------------------------------------------------------ whose it is

@pytest.mark.parametrize("kind", ["sparse", "folder", "pipe", "device", "nothing"])
def test_only_the_files_that_were_loaded_are_hashed(folders, tmp_path, kind):  # noqa: F811
    """A folder from others may hold anything, with any size."""
    made = {role: Path(shutil.copytree(folders[role], tmp_path / role)) for role in ("draft", "target")}
    before = adapters.identity(paired(folders))["fingerprint"]
    for folder in made.values():
        path = folder / "zzz.safetensors"
        if kind == "sparse":
            with open(path, "wb") as file:
                file.truncate(1 << 40)
        elif kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero" if kind == "device" else "/nowhere")
    assert adapters.identity(paired(made))["fingerprint"] == before
    assert adapt(made, "math", "--limit", "2", "--rank", "2").exit_code == 0


def test_the_weights_are_hashed_once_in_a_run(folders, monkeypatch):  # noqa: F811
    hashed, real = [], adapters.checksum
    monkeypatch.setattr(adapters, "checksum", lambda path: (hashed.append(path), real(path))[1])
    Path("prompts.txt").write_text("\n".join(PROMPTS * 5))
    assert adapt(folders, "prompts.txt", "--rank", "2", "-n", "4").exit_code == 0  # it saves three times
    assert hashed.count(Path(folders["draft"], "model.safetensors")) == 1


def test_the_file_of_a_model_that_is_one_file_is_hashed(folders, tmp_path):  # noqa: F811
    pair, seen = paired(folders), set()
    for content in (b"a", b"b"):
        pair.draft.folder = tmp_path / "model.gguf"
        pair.draft.folder.write_bytes(content)
        seen.add(adapters.hash_of_weights(pair.draft, sample=False))
        seen.add(adapters.hash_of_weights(pair.draft, sample=True))
    assert len(seen) == 4
    pair.draft.folder = pair.draft.folder.rename(tmp_path / "as-people-name-it.gguf")
    assert seen >= {adapters.hash_of_weights(pair.draft, sample) for sample in (False, True)}
