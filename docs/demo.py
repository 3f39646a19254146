"""Draw what `omnidraft demo` prints, in its colours, as docs/demo.svg.

    python docs/demo.py [--out docs/demo.svg]

The texts and the legend only: speeds belong to a machine, and stand in a table.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 92
PLAIN_SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {terminal_width} {terminal_height}" role="img">
<style>.{unique_id}-matrix {{ font: {char_height}px/1.2 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }}
{styles}</style>
<defs>{lines}</defs>
<rect width="{terminal_width}" height="{terminal_height}" rx="8" fill="#1e2226"/>
<g transform="translate(12, 6)">{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


def printed() -> tuple[str, str]:
    """The demo's texts and its legend, with colours."""
    colours = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(WIDTH)}
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | colours
    done = subprocess.run([sys.executable, "cli.py", "demo"], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    legend, _, _ = done.stderr.partition("--- math")
    return done.stdout.rstrip(), legend.rstrip()


def picture(texts: str, legend: str) -> str:
    """Both as SVG, without fonts from elsewhere."""
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True, color_system="truecolor")
    console.print("$ make demo", style="bold", highlight=False)
    for part in (legend, texts):
        console.print(Text.from_ansi(part))
        console.print()
    return console.export_svg(theme=SVG_EXPORT_THEME, code_format=PLAIN_SVG, unique_id="demo")


def main() -> None:
    """Run the demo and draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "demo.svg")
    path = parser.parse_args().out
    path.write_text(picture(*printed()), encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
