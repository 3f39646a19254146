"""`omnidraft play`: what its page shows is what the loop wrote; its server lets nobody else in; Chromium draws every step."""

from __future__ import annotations

import html
import http.client
import importlib.util
import json
import re
import shutil
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from test_cli import LETTERS, embedded, folders, write_model  # noqa: F401 (a fixture)
from vocabularies import byte_level, sentencepiece

import omnidraft
from omnidraft import OmnidraftError, Options, Uniforms, speculative, verification
from omnidraft.cli import rounds
from omnidraft.cli.options import Decoding
from omnidraft.cli.play import LARGEST, Server, filled
from omnidraft.cli.printing import escape

ROOT = Path(__file__).resolve().parent.parent
NASTY = "</script><b>the</b> \u202ethe \x1b[31m thing\u2028 & \"'"
chromium = pytest.mark.skipif(not shutil.which("chromium"), reason="no Chromium here")


@pytest.fixture(scope="module")
def play():
    spec = importlib.util.spec_from_file_location("play", ROOT / "docs" / "play.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pair(folders):  # noqa: F811
    return omnidraft.pair(folders["draft"], folders["target"])


def check_scene(scene):
    for r in scene["rounds"]:
        assert 0 <= r["accepted"] <= len(r["proposals"]) and r["kept"] <= len(r["draft"])
        assert [token for token, *_ in r["emitted"]][:r["accepted"]] == r["proposals"][:r["accepted"]]
        if r["decided"] is None:
            assert r["accepted"] == len(r["emitted"])  # the text ends with an accepted token
        for shown in r["frames"]:
            assert 0 < len(shown["bars"]) <= rounds.BARS and sum(bar["marked"] for bar in shown["bars"]) == 1
            assert all(bar[of] is None or 0 <= bar[of] <= 1.001 for bar in shown["bars"] for of in "PQ")
            [name] = [bar["name"] for bar in shown["bars"] if bar["marked"]]
            if shown["node"] == [] and name is not None and shown["draft"]:
                assert name in r["draft"][shown["draft"]]  # the drafted atom is a part of its token


def lines_of(pair, seed=0, prompt="the thing", **more):
    how = Options.of(**{"temperature": 1.0, "max_new_tokens": 40, "draft_length": 6, "threshold": 0.0} | more)
    return how, list(rounds.lines(pair, prompt, prompt, how, seed))


@pytest.mark.parametrize(("rule", "temperature"),
                         [("lifted", 1.0), ("lifted", 0.0), ("omnidraft", 1.0), ("slem", 0.8), ("tli", 1.0)])
def test_lines_are_the_rounds_of_the_text(pair, rule, temperature):
    how, lines = lines_of(pair, 3, verify=rule, temperature=temperature)
    found = [line["round"] for line in lines if "round" in line]
    wanted = list(speculative(pair, "the thing", how, Uniforms(np.random.default_rng(3))))
    names = [[rounds.name(pair.target.tokenizer, token) for token in one.emitted] for one in wanted]
    assert [[name for name, *_ in one["emitted"]] for one in found] == names
    assert lines[0]["prompt"] == "the thing" and lines[0]["rule"] == rule
    assert 0 < sum("plain" in line for line in lines) <= 40
    check_scene({"rounds": found})
    judged = [one for one in found if one["accepted"] < len(one["proposals"])]
    assert judged and all(one["frames"][one["decided"]]["row"] == one["accepted"] for one in judged)
    assert any(shown["node"] is not None for one in found for shown in one["frames"]) == (rule == "lifted" and temperature > 0)


def test_lines_of_models_in_pytorch(tmp_path):
    pytest.importorskip("torch")
    spelled = {"draft": sentencepiece(LETTERS, "▁ t, ▁t h, ▁th e", name="draft"),
               "target": byte_level("Ġ t, h e", name="target")}
    made = {name: write_model(tmp_path / name, one, 1, model_type="llama", tie_word_embeddings=False)
            for name, one in spelled.items()}
    pair = omnidraft.pair(str(made["draft"]), str(made["target"]), backend="torch")
    for rule in ("lifted", "tli"):
        lines = json.loads(json.dumps(lines_of(pair, verify=rule)[1]))
        check_scene({"rounds": [line["round"] for line in lines if "round" in line]})


@embedded
def test_the_comparison_that_is_shown_is_the_one_that_was_rejected(monkeypatch):
    """It is found from what was written; here with what `verification.keep` returned."""
    pair, decided, keep = omnidraft.pair("draft-tasks", "qwen-like"), [], verification.keep

    def watched(*given):
        found = keep(*given)
        decided.append(found[1])
        return found

    monkeypatch.setattr(verification, "keep", watched)
    for seed in range(2):
        decided.clear()
        _, lines = lines_of(pair, seed, "Write a story about a dog.", threshold=0.1)
        found = [line["round"] for line in lines if "round" in line]
        assert len(found) == len(decided) > 3 and any(decided)
        for one, step in zip(found, decided, strict=True):
            shown = one["frames"][one["decided"]] if one["decided"] is not None else None
            if step is None:
                assert shown is None or shown["bars"][0]["Q"] is None
            else:
                node = [rounds.name(pair.draft.tokenizer, atom) for atom in step.node]
                assert (shown["row"], shown["node"]) == (step.row, node)


@contextmanager
def served(pair, **more):
    server = Server(0, pair, Decoding(**{"temperature": 1.0, "max_new_tokens": 12, "draft_length": 4, "threshold": 0.0} | more))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(server, method="GET", path="", body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request(method, path if path.startswith("/") else server.path + path, body, headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


def written(server, **asking):
    answer, text = ask(server, "POST", "write", json.dumps(asking))
    assert answer.status == 200 and text.isascii()
    return [json.loads(line) for line in text.splitlines()]


def test_a_prompt_is_written_line_by_line_and_errors_are_one_line(pair):
    with served(pair) as server:
        lines = written(server, prompt=NASTY, verify="slem", temperature=0.5, draft_length=3, seed=1)
        assert lines[0]["prompt"] == escape(NASTY) and lines[0]["rule"] == "slem" and lines[-1] == {"done": True}
        assert all(len(line["round"]["draft"]) <= 3 for line in lines if "round" in line)
        shown = json.dumps(lines, ensure_ascii=False)
        assert not any(control in shown for control in "\x1b\u202e\u2028")
        for bad, said in [({"prompt": " "}, "the prompt is empty"), ({}, "the prompt is empty"),
                          ({"prompt": 3}, "the prompt is empty"), ({"prompt": "the " * 900}, "reads at most"),
                          ({"prompt": "the", "temperature": -1}, "temperature is -1"),
                          ({"prompt": "the", "seed": "x"}, "seed is"),
                          ({"prompt": "the", "verify": "\x1b"}, "unknown rule '\\x1b'")]:
            [error] = [line["error"] for line in written(server, **bad) if "error" in line]
            assert said in error and "\n" not in error and "bug" not in error
        assert written(server, prompt="the")[-1] == {"done": True}  # and the next text is written


def test_the_server_answers_only_this_machine_and_who_knows_the_address(pair):
    with served(pair) as server:
        assert server.server_address[0] == "127.0.0.1" and len(server.path) > 20
        page, text = ask(server)
        assert page.status == 200 and text == server.page and "\nconst scenes = [];\n" in text
        assert "default-src 'none'" in page.headers["Content-Security-Policy"]
        assert page.headers["Referrer-Policy"] == "no-referrer" and page.headers["Cache-Control"] == "no-store"
        good = json.dumps({"prompt": "the"})
        for status, given in [(404, ("GET", "/")), (404, ("GET", "/x" + server.path)), (404, ("POST", "/write", good)),
                              (404, ("GET", "write")), (404, ("POST", "", good)), (400, ("POST", "write", "[]")),
                              (400, ("POST", "write", "{")), (400, ("POST", "write", "[" * 60_000)),
                              (400, ("POST", "write", b"\xff")), (413, ("POST", "write", "x" * (LARGEST + 1))),
                              (501, ("PUT", "write", good)), (501, ("OPTIONS", ""))]:
            answer, text = ask(server, *given)
            assert answer.status == status and server.path not in text, given
        for host in ("evil.example", f"evil.example:{server.server_port}", "localhost", "127.0.0.1:1", ""):
            assert ask(server, Host=host)[0].status == ask(server, "POST", "write", good, Host=host)[0].status == 403
        assert ask(server, Host=f"localhost:{server.server_port}")[0].status == 200


def test_one_text_at_a_time_and_a_closed_page_ends_it(pair, monkeypatch):
    with served(pair) as server:
        go, left = threading.Event(), threading.Event()

        def slow(_):
            yield {"prompt": "first"}
            go.wait(10)
            try:
                while True:
                    yield {"plain": ["x" * 100_000, 1]}
            finally:
                left.set()

        monkeypatch.setattr(server, "write", slow)
        body = json.dumps({"prompt": "the"})
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
        connection.request("POST", server.path + "write", body)
        first = connection.getresponse()
        assert json.loads(first.readline()) == {"prompt": "first"}  # sent before the text is finished
        answer, text = ask(server, "POST", "write", body)
        assert answer.status == 409 and text.startswith("another text is being written")
        assert ask(server)[0].status == 200  # the page is not kept waiting
        first.close()
        connection.close()
        go.set()
        assert left.wait(10)
        assert server.busy.acquire(timeout=10)
        server.busy.release()


def test_a_taken_port_is_one_line(pair):
    with served(pair) as server, pytest.raises((OSError, OmnidraftError)):
        Server(server.server_port, pair, Decoding())


def test_the_one_page_has_a_recording(play):
    """It opens on a round with a merge, an expansion and a rejection, and says what an atom is."""
    scenes = play.stored()
    text = play.PAGE.read_text(encoding="utf-8")
    assert not [*ROOT.glob("docs/*play*.html")] and filled(scenes=scenes) == text
    assert "\nconst live = null;\n" in text and "An atom is a token of the drafter" in text
    assert [(s["draft"], s["target"], s["prompt"], s["temperature"]) for s in scenes] == [scene[:4] for scene in play.SCENES]
    for scene in scenes:
        check_scene(scene)
        assert scene["plain"] and all(len(r["ms"]) == 3 and sum(r["ms"]) > 0 for r in scene["rounds"])
    shown = [r for r in scenes[0]["rounds"] if any(kind == "merged" for _, kind, _ in r["emitted"])
             and r["accepted"] < len(r["proposals"]) and "".join(r["draft"]) == "".join(r["proposals"])]
    assert any(len(r["proposals"]) >= len(r["draft"]) for r in shown)  # merged, and yet as many tokens: one was expanded


@embedded
def test_a_scene_is_recorded_again_as_it_is_stored(play):
    draft, target, prompt, temperature, seed = play.SCENES[0]
    again, kept = play.record(play.pair_of(draft, target), prompt, temperature, seed), play.stored()[0]
    assert [r["emitted"] for r in again["rounds"]] == [r["emitted"] for r in kept["rounds"]]


def test_the_page_loads_nothing_and_text_cannot_end_its_script():
    nasty = {"draft": "a", "target": NASTY, "prompt": NASTY, "rounds": [], "plain": []}
    text = filled(scenes=[nasty])
    assert not re.search(r"(?:src|href)\s*=|@import|url\(|innerHTML", text)
    assert re.findall(r"fetch\((.+?),", text) == ['"write"']  # to the page's own address
    assert set(re.findall(r"https?://[^\"']+", text)) == {"http://www.w3.org/2000/svg"}
    assert text.count("</script>") == 1 and text.isascii() == filled().isascii()
    assert json.loads(re.search(r"^const scenes = (.*);$", text, re.M)[1]) == [nasty]


CHROMIUM = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", "--no-first-run", "--enable-logging=stderr"]


def driven(text, script):
    return text.replace("</body>", f"<script>{script}</script></body>")


WIDE = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


@chromium
@pytest.mark.parametrize("size", ["390,844", "1280,900"])
def test_chromium_draws_every_step_of_the_committed_page(play, tmp_path, size):
    """Bars, keys, clicks, theme; the sliders belong to the pair that is shown; nothing is wider than the page."""
    page = tmp_path / "page.html"
    page.write_text(driven(play.PAGE.read_text(encoding="utf-8"), """
      const key = (k, on = document.body) => on.dispatchEvent(new KeyboardEvent("keydown", { key: k, bubbles: true }));
      const opened = [telling(scenes[0].rounds[steps()[step].round]), steps()[step].phase,
        /merge.*expansion/.test($("lane").textContent)];
      const wrong = [], sliders = [], slid = () => ["k", "a", "c", "v"].map(id => $(id).value).join();
      scenes.forEach((s, i) => { open(i); sliders.push(slid()); steps().forEach((at, n) => { go(n);
        if (at.phase === 2 && !$("bars").querySelector("i")) wrong.push(`${i}.${n}`); }); });
      open(0); const back = slid() === sliders[0];
      go(0); key("ArrowRight"); key("ArrowRight"); key("ArrowLeft"); const at = +$("step").value;
      key(" "); const playing = $("play").textContent; key(" ", $("next")); key(" "); const paused = $("play").textContent;
      go(opening()); const title = $("barsTitle").textContent, before = $("bars").textContent;
      $("lane").querySelector("g").onclick({}); const clicked = $("bars").textContent !== before;
      $("theme").click();
      const set = (id, value) => { $(id).value = value; $(id).dispatchEvent(new Event("input")); };
      set("k", 4); set("a", 0.8); set("c", 0.1); set("v", 1.4);
      document.title = JSON.stringify({ opened, wrong, sliders: new Set(sliders).size, back, at, playing, paused, title,
        clicked,
        theme: document.documentElement.dataset.theme, speedup: $("speedup").textContent, best: $("best").textContent,
        wide: """ + WIDE + """ });
    """), encoding="utf-8")
    done = subprocess.run([*CHROMIUM, f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={size}", "--dump-dom",
                           page.as_uri()], capture_output=True, text=True, timeout=120)
    assert "Uncaught" not in done.stderr
    said = json.loads(html.unescape(re.search("<title>(.+?)</title>", done.stdout)[1]))
    assert said["opened"] == [True, 2, True] and not said["wrong"] and not said["wide"]
    assert said["sliders"] == len(play.SCENES) and said["back"]
    assert (said["at"], said["playing"], said["paused"], said["theme"]) == (1, "❚❚ pause", "▶ play", "dark")
    assert said["title"] == "The next atom" and said["clicked"]

    def speedup(k):
        return sum(0.8 ** i for i in range(k + 1)) / (k * 0.1 + 1 + 0.1 * k)
    best = max(range(17), key=speedup)
    assert said["speedup"] == f"k = 4: {speedup(4):.2f}×" and said["best"] == f"best with k = {best}: {speedup(best):.2f}×"


@chromium
@pytest.mark.parametrize("size", ["390,844", "1280,900"])
def test_chromium_writes_a_typed_prompt_live(pair, tmp_path, size, monkeypatch):
    """Also one that tries to end the script; an error is one line on the page; then another text can be written."""
    with served(pair) as server:
        answer, said, heard = server.write, {}, threading.Event()

        def write(asking):  # the page tells the test through the server what it shows
            if "said" not in asking:
                return answer(asking)
            said.update(asking["said"])
            heard.set()
            return iter(())

        monkeypatch.setattr(server, "write", write)
        server.page = driven(server.page, """
          const nasty = """ + json.dumps(NASTY).replace("<", "\\u003c") + """, said = {};
          onerror = message => { said.failed = message; };
          (async () => {
            while ($("write").disabled) await new Promise(go => setTimeout(go, 20));
            said.first = [scenes[0].rounds.length > 0, $("error").textContent];
            $("prompt").value = " "; await write(); said.error = $("error").textContent;
            $("prompt").value = nasty; $("verify").value = "slem"; $("draft_length").value = 2; await write();
            said.text = $("text").textContent; said.drafts = Math.max(...scenes[0].rounds.map(r => r.draft.length));
            said.rule = scenes[0].rule; said.left = $("error").textContent;
            go(Infinity); said.plain = $("plain").textContent.length > scenes[0].prompt.length;
            said.injected = document.querySelectorAll(".text b, svg b").length; said.wide = """ + WIDE + """;
            said.sliders = !$("pays").hidden;
            await fetch("write", { method: "POST", body: JSON.stringify({ said }) });
          })();
        """)
        browser = subprocess.Popen([*CHROMIUM, "--remote-debugging-port=0", f"--user-data-dir={tmp_path / 'profile'}",
                                    f"--window-size={size}", server.address],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            assert heard.wait(60)
        finally:
            browser.terminate()
            browser.wait(20)
    assert said["first"] == [True, ""] and said["error"] == "the prompt is empty: type some text"
    assert said["text"].startswith(escape(NASTY)) and said["rule"] == "slem" and 0 < said["drafts"] <= 2 and said["plain"]
    assert not said["left"] and not said["injected"] and not said["wide"] and said["sliders"] and "failed" not in said
