"""The page that plays rounds: it shows what the loop wrote, loads nothing else, and draws every step."""

import html
import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from test_cli import embedded

from omnidraft import Options, Uniforms, speculative
from omnidraft.stopping import Confidence

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def play():
    spec = importlib.util.spec_from_file_location("play", ROOT / "docs" / "play.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_scene(scene):
    text = scene["prompt"]
    for r in scene["rounds"]:
        assert r["text"] == text and 0 <= r["accepted"] <= len(r["proposals"]) and r["kept"] <= len(r["draft"])
        assert [token for token, _ in r["emitted"]][:r["accepted"]] == r["proposals"][:r["accepted"]]
        assert len(r["emitted"]) == r["accepted"] + 1 or r is scene["rounds"][-1] or r["emitted"][-1][1] != "bonus"
        assert len(r["bars"]) == len(r["draft"]) + 1  # for each draft token, and for the end of the round
        for shown in r["bars"]:
            assert shown["rows"] and all(chance is None or 0 <= chance <= 1 + 1e-6
                                         for _, p, q, _ in shown["rows"] for chance in (p, q))
        new = [drafted.removeprefix(r["healed"] * (i == 0)) for i, drafted in enumerate(r["draft"])]
        for drafted, shown in zip(new, r["bars"], strict=False):
            [marked] = [name for name, _, _, chosen in shown["rows"] if chosen]
            assert all(q is not None for _, _, q, _ in shown["rows"])
            assert marked in ("stop", "others") or drafted.startswith(marked)
        end, (token, kind) = r["bars"][-1], r["emitted"][-1]
        if reached := re.search("inside “(.+)”", end["title"]):  # the new token begins where it was decided
            assert kind == "recovered" and token.startswith(reached[1])
        [marked] = [name for name, _, _, chosen in end["rows"] if chosen]
        if end["rows"][0][2] is None:  # the target's own distribution: the written token is marked
            assert marked == token
        elif marked != "stop" and not reached:
            kept = "".join(r["proposals"][:r["accepted"]])
            assert marked == "others" or "".join(r["draft"]).removeprefix(r["healed"] + kept).startswith(marked)
        text += "".join(token for token, _ in r["emitted"] if token != "<end>")


def test_the_toy_pair_shows_merges_expansions_and_healing(play):
    pair = play.pair_of("toy drafter", "toy target")
    scene = play.record(pair, "snow", 1.0, 60, seed=play.SEEDS["toy drafter"])
    check_scene(scene)
    kinds = {kind for r in scene["rounds"] for _, kind in r["emitted"]}
    assert {"accepted", "merged", "recovered"} <= kinds and any(r["healed"] for r in scene["rounds"])
    assert any(len(r["proposals"]) > len(r["draft"]) for r in scene["rounds"])  # an expansion
    assert any("inside" in r["bars"][-1]["title"] for r in scene["rounds"])  # decided inside a token, by *stop*
    nodes = play.trie(pair)
    assert 10 < len(nodes) < 40 and all(0 <= node["parent"] < i for i, node in enumerate(nodes) if i)
    lit = [node for r in scene["rounds"] for node in r["path"]]
    assert lit and max(lit) < len(nodes)


@embedded
def test_a_recording_is_the_pairs_own_text(play):
    pair = play.pair_of("draft-tasks", "qwen-like")
    scene = play.record(pair, play.QUESTION, 1.0, 24, seed=1)
    check_scene(scene)
    options = Options(temperature=1.0, max_new_tokens=24, stop=Confidence(8, threshold=0.2))
    wanted = [t for r in speculative(pair, play.QUESTION, options, Uniforms(np.random.default_rng(1))) for t in r.emitted]
    made = [token for r in scene["rounds"] for token, _ in r["emitted"]]
    assert made == [play.text_of(pair.target.tokenizer, token) for token in wanted]


def test_the_committed_page_holds_its_recording(play):
    """It opens directly: on a sentence that people know, of which a whole draft is kept, with measured times."""
    scenes = play.stored(ROOT / "docs" / "play.html")
    assert play.page(scenes) == (ROOT / "docs" / "play.html").read_text(encoding="utf-8")
    assert [(s["draft"], s["target"], s["prompt"], s["temperature"]) for s in scenes] == play.SCENES
    for scene in scenes:
        check_scene(scene)
        assert scene["trie"] or (scene["plain"] > 0 and all(len(r["ms"]) == 3 and sum(r["ms"]) > 0 for r in scene["rounds"]))
    first = scenes[0]["rounds"][0]
    assert scenes[0]["prompt"].startswith("Ann has 3 boxes") and first["accepted"] == len(first["draft"]) == 8
    toy = play.record(play.pair_of("toy drafter", "toy target"), "snow", 1.0, 24, seed=play.SEEDS["toy drafter"])
    assert [r["emitted"] for r in toy["rounds"]] == [[[*pair] for pair in r["emitted"]] for r in scenes[1]["rounds"]]


@pytest.fixture(scope="module")
def written(play, tmp_path_factory):
    path = tmp_path_factory.mktemp("site") / "play.html"
    scene = play.record(play.pair_of("toy drafter", "toy target"), "snow", 1.0, 12, seed=3)
    nodes = play.trie(play.pair_of("toy drafter", "toy target"))
    scene |= {"title": "toy </script><b>", "trie": nodes, "plain": 2.0}
    path.write_text(play.page([scene]), encoding="utf-8")
    return path


def test_the_page_loads_nothing(written):
    text = written.read_text(encoding="utf-8")
    assert not re.search(r"(?:src|href)\s*=|@import|url\(|fetch\(", text)
    assert set(re.findall(r"https?://[^\"']+", text)) == {"http://www.w3.org/2000/svg"}
    assert text.count("</script>") == 1  # a model's text cannot end the script
    assert json.loads(re.search(r"const scenes = (\[.*?\]);\n", text)[1])[0]["title"] == "toy </script><b>"


@pytest.mark.skipif(not shutil.which("chromium"), reason="no Chromium here")
def test_chromium_draws_every_step(written, tmp_path):
    """Also at a phone's width: the last step of a round shows bars and a highlighted path, and no script fails."""
    rounds = json.loads(re.search(r"const scenes = (\[.*?\]);\n", written.read_text(encoding="utf-8"))[1])[0]["rounds"]
    shown = next(i for i, r in enumerate(rounds) if r["path"])
    step = sum(len(r["draft"]) + (3 if r["draft"] else 2) for r in rounds[:shown + 1]) - 1
    for size in ("390,800", "1000,900"):
        done = subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
                               "--disable-component-update", "--disable-sync", "--no-first-run", "--enable-logging=stderr",
                               f"--user-data-dir={tmp_path}", f"--window-size={size}", "--dump-dom",
                               f"{written.as_uri()}#0.{step}"],
                              capture_output=True, text=True, timeout=120)
        assert "Uncaught" not in done.stderr
        assert "Probabilities of" in done.stdout and 'stroke-width="3"' in done.stdout
        assert re.search(r"After [0-9.]+ ms: \d+ tokens with the drafter, \d+ without", done.stdout)
        assert re.search(r'id="counts">target passes: <b>\d+', done.stdout) and done.stdout.count("<rect") > 5


@pytest.mark.skipif(not shutil.which("chromium"), reason="no Chromium here")
def test_keys_slider_and_theme(written, tmp_path):
    """Arrow keys and the slider step; space plays and pauses, or presses a focused button; the theme changes."""
    played = tmp_path / "played.html"
    played.write_text(written.read_text(encoding="utf-8").replace("</body>", """<script>
      const key = (k, on) => (on || document.body).dispatchEvent(new KeyboardEvent("keydown", { key: k, bubbles: true }));
      const seen = [], note = () => seen.push($("step").value), slider = $("step");
      const opened = steps()[step]; seen.push(opened.round, opened.phase); go(0);
      note(); key("ArrowRight"); key("ArrowRight"); note(); key("ArrowLeft"); note();
      slider.value = 5; slider.dispatchEvent(new Event("input")); note();
      $("next").click(); note(); $("back").click(); $("back").click(); note();
      key(" "); seen.push($("play").textContent); key(" ", $("next")); key(" "); seen.push($("play").textContent);
      $("theme").click(); seen.push(document.documentElement.dataset.theme);
      document.title = seen.join("|");
    </script></body>"""), encoding="utf-8")
    done = subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
                           "--no-first-run", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", played.as_uri()],
                          capture_output=True, text=True, timeout=120)
    assert re.search("<title>(.+?)</title>", done.stdout)[1] == "0|2|0|2|1|5|6|4|❚❚ pause|▶ play|dark"


@pytest.mark.skipif(not shutil.which("chromium"), reason="no Chromium here")
def test_every_frame_of_the_committed_page_has_probabilities_and_sliders_move_the_curve(tmp_path):
    """All scenes and steps at a phone's width: bars, nothing wider than the page; the curve is the formula's."""
    driven = tmp_path / "driven.html"
    driven.write_text((ROOT / "docs" / "play.html").read_text(encoding="utf-8").replace("</body>", """<script>
      const wrong = [];
      scenes.forEach((_, i) => { scene = i; setSliders(); steps().forEach((_, n) => { go(n);
        if (!$("bars").querySelector("rect")) wrong.push(`${i}.${n}`); }); });
      const set = (id, value) => { $(id).value = value; $(id).dispatchEvent(new Event("input")); };
      const said = [], note = () => said.push($("speedup").textContent, $("best").textContent);
      set("k", 4); set("a", 0.8); set("c", 0.1); set("v", 1.4); note(); set("c", 1); note(); set("a", 0.2); note();
      const wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
      document.title = JSON.stringify([wrong, said, wide]);
    </script></body>"""), encoding="utf-8")
    done = subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
                           "--no-first-run", f"--user-data-dir={tmp_path / 'profile'}", "--window-size=390,844", "--dump-dom",
                           driven.as_uri()], capture_output=True, text=True, timeout=120)
    wrong, said, wide = json.loads(html.unescape(re.search("<title>(.+?)</title>", done.stdout)[1]))
    assert not wrong and not wide

    def speedup(k, a, c, v):
        return sum(a ** i for i in range(k + 1)) / (k * c + v)
    assert said[0] == f"k = 4: {speedup(4, 0.8, 0.1, 1.4):.2f}×" and said[2] == f"k = 4: {speedup(4, 0.8, 1, 1.4):.2f}×"
    best = max(range(17), key=lambda k: speedup(k, 0.8, 0.1, 1 + 0.1 * k))
    assert said[1] == f"best with k = {best}: {speedup(best, 0.8, 0.1, 1 + 0.1 * best):.2f}×"
    assert said[5] == "best without a drafter (k = 0)"
