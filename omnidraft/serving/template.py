"""Chat templates are programs written by others; each one runs in a separate process.

There it has jinja2's sandbox, SECONDS of CPU time and MEMORY bytes, and may write LONGEST
characters. `run` starts the process: this file as a script, which imports no other of the package.
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
    """Is jinja2 installed, and recent enough? Sandboxes before 3.1.6 have known escapes."""
    try:
        import jinja2
        return [*map(int, jinja2.__version__.split(".")[:3])] >= [3, 1, 6]
    except ImportError:
        return False


def run(source: str, names: dict[str, Any], messages: list[dict[str, str]]) -> dict[str, str]:
    """{"text": the text that the answer to `messages` continues}, or {"error": why it failed}."""
    job = dict(path=sys.path, seconds=SECONDS, source=source, names=names, messages=messages)
    try:  # -I: do not import from this folder; the timeout is long, as a template cannot sleep
        done = subprocess.run([sys.executable, "-I", __file__], input=json.dumps(job).encode(),
                              capture_output=True, timeout=100 * SECONDS)
        return json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return {"error": f"it takes over {SECONDS} s, or too much memory"}


def main() -> None:
    """Run the template that stdin describes; the result of `run` goes to stdout."""
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
    """Render a template in jinja2's sandbox, with the functions that transformers provides."""
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
