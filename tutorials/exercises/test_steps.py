"""Tests of your functions, step by step: `pytest tutorials/exercises`, or `omnidraft tutorial 1 --check` for one lesson."""

import importlib.util
from pathlib import Path

import grade
import pytest

HERE = Path(__file__).resolve().parent


def written(path, name):
    """The function of this name in a file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


@pytest.mark.parametrize("step", grade.STEPS, ids=lambda step: f"step{step}")
def test(step):
    stem, check, name = grade.STEPS[step]
    said = ""
    try:
        check(written(HERE / f"step{step}_{stem}.py", name))
    except grade.Wrong as wrong:
        said = f"\n{wrong}\n"
    except NotImplementedError as hint:
        said = f"not written yet; {hint}"
    if said:
        pytest.fail(said, pytrace=False)
