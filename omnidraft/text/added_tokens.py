"""Added tokens that a folder names outside its tokenizer.json, read as transformers reads them."""

from pathlib import Path
from typing import Any

import tokenizers

from .files import read_json
from .special_tokens import name_of
from .tokenizer_checks import check_id

AddedToken = tokenizers.AddedToken


def read_settings(folder: Path) -> dict[str, Any]:
    """What tokenizer_config.json says of special tokens; without a list of tokens, older files too.

    Extra tokens with names, as `"extra_special_tokens": {"image_token": "<img>"}`, become settings
    like `bos_token`.
    """
    found = read_json(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in found:
        found |= read_json(folder / "special_tokens_map.json")
    extra = found.get("extra_special_tokens") or found.get("additional_special_tokens") or []
    found["extra_special_tokens"] = extra if isinstance(extra, list) else []
    for named in (extra, found.pop("model_specific_special_tokens", None)):
        if isinstance(named, dict):
            found |= named
    return found


def add_missing(raw: tokenizers.Tokenizer, settings: dict[str, Any], folder: Path) -> bool:
    """Add the tokens that only the settings name: those with ids first; was there one?

    TypeError or ValueError if they are not described as tokens; OmnidraftError if the library
    would give one another id.
    """
    named = [value for key, value in settings.items() if key.endswith("_token") and name_of(value)]
    named += settings["extra_special_tokens"]
    special = {token.content: token for token in map(_special, named)}
    if "added_tokens_decoder" in settings:
        listed = {int(i): AddedToken(**one) for i, one in settings["added_tokens_decoder"].items()}
    else:
        listed = {i: AddedToken(name, normalized=True)
                  for name, i in read_json(folder / "added_tokens.json").items()}
    known = {token.content for token in raw.get_added_tokens_decoder().values()}
    listed = {i: token for i, token in sorted(listed.items()) if token.content not in known}
    tokens = {token.content: token for token in listed.values()}
    tokens |= {name: token for name, token in special.items() if name not in known}
    if tokens:
        raw.add_tokens(list(tokens.values()))
    for i, token in listed.items():
        check_id(folder, token.content, i, raw)
    return bool(tokens)


def _special(setting: str | dict[str, Any]) -> tokenizers.AddedToken:
    """A special token as a setting describes it."""
    flags = {"content": setting} if isinstance(setting, str) else setting
    return AddedToken(**{key: value for key, value in flags.items() if key != "__type"}
                      | {"special": True})
