"""Build the lessons as static pages that open from disk: prose, highlighted code, and the real output of each cell.

    python docs/site.py [--out build/site] [lesson ...]

Every page contains its own style sheet and loads nothing else. Equations are MathML, figures (with matplotlib) are SVG.
Colours that a cell prints become classes, for a light and a dark page; a token's fate is also shown by its sign + * - ! ^.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import io
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import equations  # noqa: E402
from markdown_it import MarkdownIt  # noqa: E402 (comes with rich, like pygments)
from pygments import highlight  # noqa: E402
from pygments.formatters import HtmlFormatter  # noqa: E402
from pygments.lexers import PythonLexer  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.style import Style  # noqa: E402
from rich.text import Text  # noqa: E402

from omnidraft.cli.render import FATES  # noqa: E402
from omnidraft.text.files import write_text  # noqa: E402
from tutorials import runner as tutorial  # noqa: E402

CSS = """
:root { color-scheme: light dark; --page: #fff; --text: #1c2024; --soft: #5b646d; --line: #d8dde2; --block: #f5f7f9;
  --accent: #0b5cad; --red: #b3261e; --green: #1a7430; --yellow: #8a5a00; --magenta: #9a2a9a;
  --cyan: #00687a; }
@media (prefers-color-scheme: dark) { :root { --page: #15181b; --text: #e3e6e9; --soft: #a0a9b2; --line: #363d44;
  --block: #1e2226; --accent: #7db7f5; --red: #ff8a80; --green: #7fd68f; --yellow: #f0c04a; --magenta: #e59ae5;
  --cyan: #62d3e4; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 70rem; padding: 0 1rem 3rem; background: var(--page); color: var(--text);
  font: 1rem/1.6 system-ui, sans-serif; overflow-wrap: break-word; -webkit-text-size-adjust: 100%; }
nav { display: flex; flex-wrap: wrap; gap: .2rem .9rem; padding: .7rem 0; border-bottom: 1px solid var(--line); }
nav b { color: var(--text); }
a { color: var(--accent); }
nav a, a.term { text-decoration: none; }
a.term { color: inherit; font-weight: 700; border-bottom: 1px dotted var(--soft); }
h1, h2, p, ul, ol, dl { max-width: 46rem; }
h1 { font-size: 1.7rem; line-height: 1.25; } h2 { font-size: 1.25rem; margin-top: 2.2rem; }
dt { font-weight: 700; margin-top: .7rem; } dd { margin: 0 0 0 1.2rem; } dt:target { background: var(--block); }
code, pre { font: .86rem/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
pre { margin: .6rem 0; padding: .7rem .9rem; overflow-x: auto; border-radius: 6px; border: 1px solid var(--line); }
pre.code, .equation { background: var(--block); } .equation { border-left: 4px solid var(--accent); }
div.equation { margin: .6rem 0; padding: .4rem .5rem; overflow-x: auto; border-radius: 6px; }
.equation td { padding: .15rem .5rem; vertical-align: baseline; } math { font-size: 1.08em; }
figure { margin: .6rem 0; overflow-x: auto; } figure svg { width: 100%; min-width: 30rem; max-width: 42rem; height: auto; }
figure text { fill: currentColor; }
@media (max-width: 45rem) { .equation tr { display: block; padding: .2rem 0; } .equation td { display: inline-block; } }
pre.out { border-left: 4px solid var(--soft); } pre.out .row { display: block; white-space: pre-wrap; line-height: 1.8; }
.fate { white-space: nowrap; }
.fate::before { content: attr(data-sign); display: inline-block; font-weight: 400; font-size: .85em; line-height: 1;
  padding-left: .15em; vertical-align: .25em; text-decoration: none; }
.red { color: var(--red); } .green { color: var(--green); } .yellow { color: var(--yellow); }
.magenta { color: var(--magenta); } .cyan { color: var(--cyan); } .blue { color: var(--accent); }
.bold { font-weight: 700; } .dim { color: var(--soft); } .underline { text-decoration: underline; }
.strike { text-decoration: line-through; }
.legend { padding: .3rem .9rem; border: 1px solid var(--line); border-radius: 6px; font-size: .9rem; }
.legend summary { cursor: pointer; } .legend ul { margin: .4rem 0; padding-left: .4rem; list-style: none; }
.lead { color: var(--soft); }
"""


def key(style: Style) -> tuple:
    """The properties by which fates' styles differ."""
    return style.color.number if style.color else None, bool(style.bold), bool(style.underline), bool(style.strike)


COLOURS = ("", "red", "green", "yellow", "blue", "magenta", "cyan", "")  # the terminal's eight
SIGNS = {key(Style.parse(style)): sign for style, sign, _ in FATES.values()}
MARKDOWN = MarkdownIt("commonmark").enable("table")
# the lessons indent their equations
MARKDOWN.add_render_rule("code_block", lambda _, tokens, place, *rest: equations.table(tokens[place].content))
MARKDOWN.add_render_rule("text", lambda _, tokens, place, *rest: equations.cell(tokens[place].content, among_words=True))


def code(text: str, kind: str = "code") -> str:
    """Highlighted Python."""
    return f'<pre class="{kind}">{highlight(text, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)).rstrip()}</pre>\n'


def span(text: str, style: Style | None) -> str:
    """One piece of output with its classes, and with the sign of its fate if the text does not show it."""
    style = style or Style()
    classes = [name for name in ("bold", "dim", "underline", "strike") if getattr(style, name)]
    if style.color and style.color.number is not None:
        classes.append(COLOURS[style.color.number % 8])
    if not classes:
        return html.escape(text)
    sign = SIGNS.get(key(style), "") if not text.startswith("[") else ""
    fate, attribute = ("fate ", f' data-sign="{sign}"') if sign else ("", "")
    word = text.lstrip() or text  # without the space before a word, so that the sign stands next to the word
    return f'{text[:-len(word)]}<span class="{fate}{" ".join(classes)}"{attribute}>{html.escape(word)}</span>'


def output(printed: str) -> str:
    """A cell's output: lines of the package highlighted as Python, the rest in its own colours; only coloured tokens wrap."""
    made, console = [], Console(width=10_000)
    for part in re.split(r"^(# omnidraft/\S+\.py, line \d+\n(?:.+\n)+)", printed, flags=re.M):
        if part.startswith("# omnidraft/"):
            made.append(code(part, "code out"))
        elif part.strip():
            lines = []
            for line in Text.from_ansi(part.strip("\n")).split("\n"):
                shown = "".join(span(piece.text, piece.style) for piece in line.render(console, end=""))
                lines.append(f'<span class="row">{shown}</span>' if "data-sign" in shown else shown + "\n")
            made.append(f'<pre class="out">{"".join(lines).rstrip()}</pre>\n')
    return "".join(made)


SHADES = {"#000000": "currentColor", "#1f77b4": "var(--accent)", "#ff7f0e": "var(--yellow)", "#2ca02c": "var(--green)",
          "#d62728": "var(--red)", "#ffffff": "var(--page)"}


def figures(cell: int) -> str:
    """What a cell drew with matplotlib, if it is installed, as SVG in the page's colours."""
    plt, made = sys.modules.get("matplotlib.pyplot"), []
    for number in plt.get_fignums() if plt else ():
        title, file = plt.figure(number).axes[0].get_title(), io.StringIO()
        with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "omnidraft"}):
            plt.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
        drawn = re.sub("|".join(SHADES), lambda shade: SHADES[shade[0]], file.getvalue())
        drawn = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>f{cell}-{number}-", drawn)  # each id is unique in a page
        attributes = f'<svg role="img" aria-label="{html.escape(title)}" '
        made.append(f"<figure>{drawn[drawn.index('<svg'):].replace('<svg ', attributes, 1)}</figure>\n")
    if plt:
        plt.close("all")
    return "".join(made)


def glossary() -> dict[str, tuple[str, str, str]]:
    """The terms: anchor -> (names as written, meaning, lessons)."""
    lines = (ROOT / "tutorials" / "GLOSSARY.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")][2:]
    return {anchor(names.split(",")[0]): (names, meaning, where) for names, meaning, where in rows}


def anchor(term: str) -> str:
    """The id of a term in the glossary's page."""
    return re.sub(r"\W+", "-", term.lower()).strip("-")


def prose(text: str) -> str:
    """Markdown as HTML; a term in bold (where it is explained) links to the glossary."""
    names = {anchor(name): place for place, (all_names, *_) in glossary().items() for name in all_names.split(",")}

    def linked(match: re.Match) -> str:
        term = anchor(html.unescape(match[1]))
        for form in (term, term.removesuffix("s"), term.removesuffix("ed") + "ing"):
            if form in names:
                return f'<a class="term" href="glossary.html#{names[form]}">{match[1]}</a>'
        return match[0]

    text = re.sub(r"( [=/·+-])\n *(?=\w)", r"\1 ", text)  # an equation that continues in the next line
    return re.sub(r"<strong>([^<]+)</strong>", linked, MARKDOWN.render(text))


def legend(opened: bool = False) -> str:
    """The legend of colours and signs."""
    items = []
    for style, _, meaning in FATES.values():
        name, _, rest = meaning.partition(":")
        items.append(f"<li>{span(name, Style.parse(style))}:{html.escape(rest)}</li>")
    return (f'<details class="legend"{" open" * opened}><summary>Colours and signs of tokens</summary>'
            f'<ul>{"".join(items)}</ul></details>\n')


def page(title: str, body: str, here: str, found: dict[int, Path]) -> str:
    """A whole page around its body."""
    links = [("index.html", "omnidraft"), *((f"{path.stem}.html", f"Lesson {n}" if path.stem == here else str(n))
                                            for n, path in found.items()), ("glossary.html", "Glossary"), ("play.html", "Play")]
    menu = " ".join(f"<b>{name}</b>" if to == f"{here}.html" else f'<a href="{to}">{name}</a>' for to, name in links)
    dark = HtmlFormatter(style="monokai").get_style_defs(".code")
    style = (f"{CSS}\n{HtmlFormatter(style='default').get_style_defs('.code')}\n"
             f"@media (prefers-color-scheme: dark) {{\n{dark}\n}}\npre.code {{ background: var(--block) }}")
    return ('<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{html.escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n<nav>{menu}</nav>\n{body}"
            f"<nav>{menu}</nav>\n</body>\n</html>\n")


def lesson_page(path: Path, found: dict[int, Path]) -> str:
    """The page of a lesson, which is run cell by cell. An error in a cell is raised."""
    made, names = [], {}
    for cell in tutorial.cells(path.read_text(encoding="utf-8")):
        if cell.prose:
            made.append(prose(cell.text))
            continue
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            tutorial.run(cell, path, names)
        made.append(code(cell.text) + output(printed.getvalue()) + figures(len(made)))
    if any("data-sign" in part for part in made):
        made.insert(0, legend())
    return page(f"{int(path.name[:2])} · {tutorial.title(path)}", "".join(made), path.stem, found)


def index_page(found: dict[int, Path]) -> str:
    """The first page: the list of lessons."""
    items = []
    for number, path in found.items():
        first = tutorial.cells(path.read_text(encoding="utf-8"))[0].text.split("\n\n")[1]
        items.append(f'<h2><a href="{path.stem}.html">{number} · {html.escape(tutorial.title(path))}</a></h2>\n'
                     f'<div class="lead">{prose(first)}</div>\n')
    intro = ("# Speculative decoding across vocabularies, in lessons\n\nEach lesson goes from an idea to its equation, to the "
             "lines that are this equation, to the real models of the package. All output is what the code above it printed. "
             "To try the exercises, run `omnidraft tutorial 1` in a terminal, or open `tutorials/*.py` in an editor.")
    return page("omnidraft: lessons", prose(intro) + legend(True) + "".join(items), "index", found)


def glossary_page(found: dict[int, Path]) -> str:
    """The terms, each with the lesson that explains it."""
    items = []
    for place, (names, meaning, where) in glossary().items():
        numbers = re.sub(r"\d+", lambda m: f'<a href="{found[int(m[0])].stem}.html">lesson {m[0]}</a>'
                         if int(m[0]) in found else f"lesson {m[0]}", where)
        items.append(f'<dt id="{place}">{MARKDOWN.renderInline(names)}</dt><dd>{MARKDOWN.renderInline(meaning)} '
                     f'<span class="d">({numbers})</span></dd>\n'.replace(' <span class="d">(–)</span>', ""))
    text = "# Glossary\n\np is the target's distribution, q the drafter's."
    return page("Glossary", f'{prose(text)}<dl>{"".join(items)}</dl>\n', "glossary", found)


def main() -> None:
    """Build the pages of all lessons, or of the given ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lesson", type=int, nargs="*", help="numbers of lessons; all where none is given")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    args = parser.parse_args()
    found = {n: path for n, path in tutorial.lessons().items() if not args.lesson or n in args.lesson}
    os.environ |= {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "1000"}  # colours as in a wide terminal
    os.environ.pop("NO_COLOR", None)
    args.out.mkdir(parents=True, exist_ok=True)
    if find_spec("matplotlib"):  # if installed, the lessons draw figures
        import matplotlib

        matplotlib.use("svg")
        import matplotlib.pyplot  # noqa: F401
    for path in found.values():
        print(f"lesson {path.stem} ...", file=sys.stderr)
        write_text(args.out / f"{path.stem}.html", lesson_page(path, found))
    write_text(args.out / "glossary.html", glossary_page(found))
    write_text(args.out / "play.html", (ROOT / "omnidraft" / "data" / "play.html").read_text(encoding="utf-8"))
    write_text(args.out / "index.html", index_page(found))
    print(args.out / "index.html")


if __name__ == "__main__":
    main()
