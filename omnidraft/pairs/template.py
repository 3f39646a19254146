"""Chat templates are programs written by others; each one runs in a `confined` process.

There it has jinja2's sandbox, and may write LONGEST characters.
"""

import json
import re
from datetime import datetime
from typing import Any

LONGEST = 2**22
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
    from ..text import confined  # here: in the other process this file is not part of the package
    return confined.run(__file__, source=source, names=names, messages=messages)


def main(job: dict[str, Any]) -> dict[str, str]:
    """The result of `run`; in the other process."""
    text = rendered(job["source"], job["names"], job["messages"])
    if len(text) > LONGEST:
        return {"error": f"its text has over {LONGEST} characters"}
    return {"text": text}


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
