"""The regular expressions of a tokenizer are tried once, where they can be stopped.

An expression such as `(?:.|.){30}x` takes for ever, and Python cannot interrupt the library that
runs it. So each set of them is first run over TEXTS in a `confined` process. A file in the
`tried` folder of `default_folder` remembers that it has ended. What only a special text makes slow
is not found.
"""

import hashlib
import json
from contextlib import suppress
from typing import Any

if __package__:  # subtle: in the other process this file is not part of the package
    from . import confined
    from .errors import OmnidraftError
    from .files import default_folder, make_folder_of, write_text

TEXTS = ["the thing in the house, on the inside; and then the other! " * 4, "aB3 " * 50, "ab" * 100,
         "é漢字\u200d🙂 " * 20, "if (x != y) {\n\treturn [1, 2.5e3];\r\n}\n\n" * 5]
TEXTS += [character * 200 for character in "aZ1 _#.\n\té漢▁"]


def tried(parts: list[dict[str, Any]], name: str) -> None:
    """Raise OmnidraftError if these parts of a normalizer and pre-tokenizer take too long.

    Only parts with a regular expression are run; all others take time in proportion to a text.
    """
    parts = [part for part in parts if "Regex" in (part.get("pattern") or {})]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    place = default_folder() / "tried" / key
    if not parts or place.exists():
        return
    error = confined.run(__file__, parts=parts).get("error")
    if error:
        raise OmnidraftError(f"tokenizer {name!r} has a regular expression that fails, {error}: "
                             "use another one")
    with suppress(OmnidraftError):  # if it cannot be written, they are tried each time
        make_folder_of(place)
        write_text(place, "")


def main(job: dict[str, Any]) -> dict[str, str]:
    """Run the parts of a pipeline in `job["parts"]` over TEXTS; in the other process."""
    from tokenizers import Tokenizer
    for part in job["parts"]:
        model = {"type": "BPE", "vocab": {}, "merges": []}
        kind = "normalizer" if part["type"] == "Replace" else "pre_tokenizer"
        made = Tokenizer.from_str(json.dumps({"model": model, kind: part}))
        for text in TEXTS:
            if kind == "normalizer":
                made.normalizer.normalize_str(text)
            else:
                made.pre_tokenizer.pre_tokenize_str(text)
    return {}
