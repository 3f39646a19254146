"""Chat templates: programs that others wrote, each run in a process of its own.

There it has jinja2's sandbox, SECONDS of a processor, MEMORY bytes, and may write LONGEST
characters. `run` starts the process, which is this file as a script: it imports no other.
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


def run(source: str, names: dict[str, Any], messages: list[dict[str, str]]) -> dict[str, str]:
    """{"text": what an answer to `messages` continues}, or {"error": why there is none}."""
    job = {"path": sys.path, "seconds": SECONDS, "source": source, "names": names,
           "messages": messages}
    try:  # -I: this folder's modules are not found by their names alone; a template cannot sleep
        done = subprocess.run([sys.executable, "-I", __file__], input=json.dumps(job).encode(),
                              capture_output=True, timeout=100 * SECONDS)
        return json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return {"error": f"it takes over {SECONDS} s, or too much memory"}


def main() -> None:
    """Run the template that stdin describes; what `run` returns goes to stdout."""
    job = json.load(sys.stdin)
    with suppress(ImportError, ValueError, OSError):  # not on every system
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (job["seconds"],) * 2)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    sys.path[:] = job["path"]
    try:
        text = rendered(job["source"], job["names"], job["messages"])
        found = {"text": text} if len(text) <= LONGEST else {
            "error": f"its text has over {LONGEST} characters"}
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(found))


def rendered(source: str, names: dict[str, Any], messages: list[dict[str, str]]) -> str:
    """The text of a template in jinja2's sandbox, with what transformers' templates use."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                         extensions=["jinja2.ext.loopcontrols"])
    made.globals |= {"raise_exception": refuse, "strftime_now": datetime.now().strftime}
    made.filters["tojson"] = lambda value, **how: json.dumps(value, **{"ensure_ascii": False} | how)
    for tag, same in (("generation", "if true"), ("endgeneration", "endif")):  # for trainers only
        source = re.sub(rf"(\{{%[-+]?\s*){tag}(?=\s*[-+]?%\}})", rf"\1{same}", source)
    return made.from_string(source).render(names, messages=messages, tools=None, documents=None,
                                           add_generation_prompt=True)


if __name__ == "__main__":
    main()
