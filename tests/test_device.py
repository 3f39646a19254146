"""benchmarks/device.py runs on any machine, and says if something differs."""

from __future__ import annotations

import json

import pytest
from test_cli import embedded

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks import device  # noqa: E402
from omnidraft import losses_torch  # noqa: E402

SMALL = ["--device", "cpu", "--small", "--json"]


@embedded
def test_every_part_is_measured(tmp_path, capsys):
    assert device.main([*SMALL, str(tmp_path / "device.json")]) == 0
    parts = json.loads((tmp_path / "device.json").read_text())["parts"]
    assert [name.split(",")[0] for name in parts] == ["decode", "parity", "round", "update"]
    assert parts["decode"]["same text as plain"] and parts["parity, 2,000 -> 5,000"]["fine"]
    assert all(value > 0 for name, value in parts["update, 2,000 -> 5,000"].items())
    table = capsys.readouterr().out.split("\n\n", 1)[1]
    assert all(f"\n{name}\n" in table and figure in table for name, figures in parts.items() for figure in figures)


def test_a_difference_and_an_error_are_reported(tmp_path, monkeypatch, capsys):
    lifted = losses_torch.lifted

    def wrong(*given, **more):
        value, count = lifted(*given, **more)
        return value * 1.001, count

    def broken(*given):
        raise RuntimeError("out of memory")

    monkeypatch.setitem(losses_torch.LOSSES, "lifted", wrong)
    monkeypatch.setattr(device, "decoding", broken)
    for part in ("cost_of_a_round", "cost_of_an_update"):
        monkeypatch.setattr(device, part, lambda *given: {})
    assert device.main([*SMALL, str(tmp_path / "device.json")]) == 1
    parts = json.loads((tmp_path / "device.json").read_text())["parts"]
    assert "out of memory" in parts["decode"]["error"] and "out of memory" in capsys.readouterr().out
    assert not parts["parity, 2,000 -> 5,000"]["fine"]
    assert parts["parity, 2,000 -> 5,000"]["loss lifted"] == pytest.approx(0.001, rel=1e-3)


def test_without_a_gpu_one_line_says_so(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit):
        device.main(["--json"])  # as `make bench` does
    assert "give --device cpu" in capsys.readouterr().err
