"""Write docs/cli.md from the command line's own declarations; `--check` only says whether it is out of date.

    python docs/build.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from typer.main import get_command  # noqa: E402

from omnidraft.cli import app  # noqa: E402


def command_page(name: str, command: object) -> list[str]:
    """One command: what it does, its arguments and options, its examples."""
    if hasattr(command, "commands"):
        return [line for sub, one in command.commands.items() for line in command_page(f"{name} {sub}", one)]
    lines = [f"## omnidraft {name}", "", (command.help or "").strip(), "", "| option | meaning | default |", "|---|---|---|"]
    for param in command.params:
        if param.name == "help":
            continue
        argument = param.param_type_name == "argument"
        names = f"`{param.name.upper()}`" if argument else ", ".join(f"`{opt}`" for opt in [*param.opts, *param.secondary_opts])
        shown = param.show_default if isinstance(param.show_default, str) else param.default
        default = "" if shown is None or shown is False or param.required else f"`{shown}`" if shown is not True else "on"
        lines.append(f"| {names} | {(param.help or '').strip()} | {default} |".replace("\n", " "))
    examples = [line.strip() for line in command.epilog.partition("Examples:")[2].strip().splitlines()]
    return [*lines, "", "```console", *examples, "```", ""]


def page() -> str:
    """The whole page."""
    group = get_command(app)
    lines = ["# The command line", "", "Written by `python docs/build.py`. Results go to stdout, everything else to "
             "stderr. Bad input gives a one-line error and exit code 1 (`omnidraft --debug ...` shows the traceback); wrong "
             "options give a usage message and exit code 2.", ""]
    for name in group.list_commands(None):
        lines += command_page(name, group.commands[name])
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    path, text = ROOT / "docs" / "cli.md", page()
    if "--check" in sys.argv:
        sys.exit(f"{path} is stale: run `python docs/build.py`" if path.read_text(encoding="utf-8") != text else 0)
    path.write_text(text, encoding="utf-8")
