"""Chat templates: programs that others wrote, each run in a process of its own.

There it has jinja2's sandbox, SECONDS of a processor, MEMORY bytes, and may write LONGEST
characters. `run` starts the process, which is this file as a script.
"""

import json
import re
import subprocess
import sys
from contextlib import suppress
from datetime import datetime
from typing import Any

SECONDS, MEMORY, LONGEST = 4, 2**29, 2**22
NEEDED = "a chat template needs jinja2: pip install 'jinja2>=3.1.6'"


def is_usable() -> bool:
    """Whether jinja2 is here; there are known ways out of the sandboxes before 3.1.6."""
    try:
        import jinja2
        return [*map(int, jinja2.__version__.split(".")[:3])] >= [3, 1, 6]
    except ImportError:
        return False


def run(source: str, names: dict[str, Any], messages: list[dict[str, str]], owner: str) -> str:
    """The text that an answer to `messages` continues; OmnidraftError, in a line, if it fails."""
    job = {"path": sys.path, "seconds": SECONDS, "source": source, "names": names,
           "messages": messages}
    try:  # -I: this folder's modules are not found by their names alone; a template cannot sleep
        done = subprocess.run([sys.executable, "-I", __file__], input=json.dumps(job).encode(),
                              capture_output=True, timeout=100 * SECONDS)
        found = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        found = {"error": f"it takes over {SECONDS} s, or too much memory"}
    if "text" not in found:
        raise broken(owner, found["error"])
    return found["text"]


def broken(owner: str, why: str) -> Exception:
    """The error for a template, which is a program that somebody else wrote."""
    from ..errors import OmnidraftError  # here: as a script this file is in no package

    return OmnidraftError(f"the chat template of {owner} fails, {why}".splitlines()[0])


def compiled(source: str) -> Any:
    """A template in jinja2's sandbox, with what transformers' templates use."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    made.add_extension("jinja2.ext.loopcontrols")
    made.globals |= {"raise_exception": refuse, "strftime_now": datetime.now().strftime}
    made.filters["tojson"] = lambda value, **how: json.dumps(value, **{"ensure_ascii": False} | how)
    for tag, same in (("generation", "if true"), ("endgeneration", "endif")):  # for trainers only
        source = re.sub(rf"(\{{%[-+]?\s*){tag}(?=\s*[-+]?%\}})", rf"\1{same}", source)
    return made.from_string(source)


def main() -> None:
    """Run the template that stdin describes."""
    job = json.load(sys.stdin)
    with suppress(ImportError, ValueError, OSError):  # not on every system
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (job["seconds"],) * 2)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    sys.path[:] = job["path"]
    try:
        text = compiled(job["source"]).render(
            job["names"], messages=job["messages"], tools=None, documents=None,
            add_generation_prompt=True)
        found = {"text": text} if len(text) <= LONGEST else {
            "error": f"its text has over {LONGEST} characters"}
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
