"""The page that plays rounds: it shows what the loop wrote, loads nothing else, and draws every step."""

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from test_cli import embedded

from omnidraft import Options, Uniforms, plain

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
        assert r["bars"]["rows"] and all(0 <= p <= 1 + 1e-6 and (q is None or 0 <= q <= 1 + 1e-6)
                                         for _, p, q, _ in r["bars"]["rows"])
        token, kind = r["emitted"][-1]
        if reached := re.search("inside “(.+)”", r["bars"]["title"]):  # the new token begins where it was decided
            assert kind == "recovered" and token.startswith(reached[1])
        [marked] = [name for name, _, _, chosen in r["bars"]["rows"] if chosen]
        if r["bars"]["rows"][0][2] is None:  # the target's own distribution: the written token is marked
            assert marked == token
        elif marked != "stop" and not reached:
            kept = "".join(r["proposals"][:r["accepted"]])
            assert marked == "others" or "".join(r["draft"]).removeprefix(r["healed"] + kept).startswith(marked)
        text += "".join(token for token, _ in r["emitted"] if token != "<end>")


def test_the_toy_pair_shows_merges_expansions_and_healing(play):
    pair = play.pair_of("toy drafter", "toy target")
    scene = play.record(pair, "snow", 1.0, 60, seed=39)
    check_scene(scene)
    kinds = {kind for r in scene["rounds"] for _, kind in r["emitted"]}
    assert {"accepted", "merged", "recovered"} <= kinds and any(r["healed"] for r in scene["rounds"])
    assert any(len(r["proposals"]) > len(r["draft"]) for r in scene["rounds"])  # an expansion
    assert any("inside" in r["bars"]["title"] for r in scene["rounds"])  # decided inside a token, by *stop*
    nodes = play.trie(pair)
    assert 10 < len(nodes) < 40 and all(0 <= node["parent"] < i for i, node in enumerate(nodes) if i)
    lit = [node for r in scene["rounds"] for node in r["path"]]
    assert lit and max(lit) < len(nodes)


@embedded
def test_a_recording_is_the_pairs_own_text(play):
    pair = play.pair_of("draft-tasks", "qwen-like")
    scene = play.record(pair, play.QUESTION, 0.0, 24)
    check_scene(scene)
    ids = pair.target.tokenizer.encode(play.QUESTION, bos=True)
    wanted = [t for r in plain(pair.target, ids, Options(max_new_tokens=24), Uniforms([])) for t in r.emitted]
    made = [token for r in scene["rounds"] for token, _ in r["emitted"]]
    assert made == [play.text_of(pair.target.tokenizer, token) for token in wanted]


@pytest.fixture(scope="module")
def written(play, tmp_path_factory):
    path = tmp_path_factory.mktemp("site") / "play.html"
    scene = play.record(play.pair_of("toy drafter", "toy target"), "snow", 1.0, 12, seed=3)
    nodes = play.trie(play.pair_of("toy drafter", "toy target"))
    scene |= {"title": "toy </script><b>", "trie": nodes}
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
        assert re.search(r'id="counts">target passes: <b>\d+', done.stdout) and done.stdout.count("<rect") > 5


@pytest.mark.skipif(not shutil.which("chromium"), reason="no Chromium here")
def test_keys_slider_and_theme(written, tmp_path):
    """Arrow keys and the slider step; space plays and pauses, or presses a focused button; the theme changes."""
    played = tmp_path / "played.html"
    played.write_text(written.read_text(encoding="utf-8").replace("</body>", """<script>
      const key = (k, on) => (on || document.body).dispatchEvent(new KeyboardEvent("keydown", { key: k, bubbles: true }));
      const seen = [], note = () => seen.push($("step").value), slider = $("step");
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
    assert re.search("<title>(.+?)</title>", done.stdout)[1] == "0|2|1|5|6|4|❚❚ pause|▶ play|dark"
