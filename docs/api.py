"""Write docs/api.md from the package's docstrings and docs/recipes.py; `--check` only says whether it is out of date.

    python docs/api.py [--check]
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from omnidraft.text.files import write_text  # noqa: E402

# Module -> its public names, each with the methods to show. A test checks that all exports of `omnidraft` are here.
API = {
    "omnidraft": {"pair": "", "Pair": "generate stream decoder", "Generation": "sequences to_dict", "Options": "of", "load": "",
                  "speculative": "", "plain": "", "Round": "", "Uniforms": "", "Tokenizer": "load encode decode decode_bytes",
                  "Learner": "begin finish close", "learn": "", "Adapters": "resume keep load save named all",
                  "OmnidraftError": ""},
    "omnidraft.pairs.conversation": {"Conversation": "ask new"},
    "omnidraft.stopping": {"FixedLength": "", "Confidence": "", "AcceptanceHead": ""},
    "omnidraft.metrics": {"summarize": "", "Summary": "", "speedup": ""},
    "omnidraft.learning.training": {"Recipe": ""},
    "omnidraft.learning.online": {"Schedule": "", "Learned": ""},
    "omnidraft.learning.adapters": {"Adapter": "drafter"},
    "omnidraft.exactness": {"check": "", "Finding": "", "distribution_of": "", "total_variation": ""},
}


def recipes() -> dict[str, str]:
    """Title -> code of each recipe."""
    parts = re.split(r"^# %% (.+)\n", (ROOT / "docs" / "recipes.py").read_text(encoding="utf-8"), flags=re.M)[1:]
    return dict(zip(parts[::2], (code.strip() for code in parts[1::2]), strict=True))


def entry(name: str, thing: object, level: int) -> list[str]:
    """A function or class: its signature or fields, and its docstring."""
    lines, inner = ["#" * level + f" {name}", ""], inspect.unwrap(getattr(thing, "fget", None) or thing)
    inner = getattr(inner, "__func__", inner)  # the function of a class method
    source = textwrap.dedent(inspect.getsource(inner))
    node, own = ast.parse(source).body[0], name.split(".")[-1]
    if isinstance(node, ast.ClassDef):
        made = [one for one in node.body if getattr(one, "name", "") == "__init__"]
        fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and not one.target.id.startswith("_")]
        code = signature(own, made[0]) if made else ""
        if fields:
            first, last = fields[0].lineno - 1, fields[-1].end_lineno
            while source.splitlines()[first - 1].strip().startswith("#"):
                first -= 1
            code = f"class {own}:\n" + "\n".join(source.splitlines()[first:last])
            code = re.sub(r"# noqa: [^;]*; ", "# ", code)
    else:
        code = signature(own, node)
    lines += ["```python", code, "```", ""] if code and not isinstance(thing, property) else []
    text = inspect.cleandoc(inner.__doc__ or "")
    for part in re.split(r"\n\n+", text):
        shown = re.sub(r" *# doctest: \+SKIP", "", part)
        lines += ["```pycon", shown, "```", ""] if part.startswith(">>>") else [shown, ""]
    return lines


def signature(name: str, node: ast.FunctionDef) -> str:
    """The signature of a function as one or more lines of code."""
    if node.args.args and node.args.args[0].arg in ("self", "cls"):
        del node.args.args[0]
    returned = ast.unparse(node.returns) if node.returns else "None"
    whole = f"{name}({ast.unparse(node.args)})" + f" -> {returned}" * (returned != "None")
    whole = re.sub(r"-> '(.*)'$", r"-> \1", whole)  # a class that names itself as its type
    whole = re.sub(r"(?<!,) ", "\0", whole)  # break lines only after commas
    lines = textwrap.wrap(whole, 100, subsequent_indent=" " * (len(name) + 1), break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


def page() -> str:
    """The whole page."""
    lines = ["# The Python API", "", "Written by `python docs/api.py` from the docstrings. Bad input raises an "
             "`OmnidraftError` with a one-line message.", "", "## Recipes", ""]
    for title, code in recipes().items():
        lines += [f"### {title}", "", "```python", code, "```", ""]
    for module, names in API.items():
        lines += [f"## {module}", "", inspect.cleandoc(import_module(module).__doc__).split("\n")[0], ""]
        for name, methods in names.items():
            thing = getattr(import_module(module), name)
            lines += entry(name, thing, 3)
            for method in methods.split():
                lines += entry(f"{name}.{method}", inspect.getattr_static(thing, method), 4)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    path, text = ROOT / "docs" / "api.md", page()
    if "--check" in sys.argv:
        sys.exit(f"{path} is stale: run `python docs/api.py`" if path.read_text(encoding="utf-8") != text else 0)
    write_text(path, text)
