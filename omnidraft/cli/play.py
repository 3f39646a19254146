"""`omnidraft play`: a page on this machine where a prompt is written live, round by round.

Only this machine reaches the server, and only who knows the token in the address. It has the page,
and `write`, which takes the prompt and answers with `rounds.lines`, one JSON object per line.
"""

import json
import re
import secrets
import webbrowser
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

from .. import OmnidraftError, Pair
from ..verification import RULES
from . import options
from .app import command, one_line
from .demo import USUAL
from .printing import escape, note, say
from .prompts import Request, asked
from .rounds import lines

PAGE = Path(__file__).parents[1] / "data" / "play.html"
CONTROLS = ("verify", "temperature", "threshold", "draft_length", "seed")  # of the page
LARGEST = 2**16  # bytes of a request
PATIENCE = 20  # seconds that a browser may keep the server waiting
SAFE = {"Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; "
                                   "style-src 'unsafe-inline'; connect-src 'self'",
        "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store"}


@command("omnidraft play", "omnidraft play --target smollm2",
         "omnidraft play -d draft-tasks -t llama3-like --port 8000 --open",
         temperature=1.0, max_new_tokens=48)
def play(
    models: options.Served, decoding: options.Decoding,
    chat: options.Chat = None,
    port: Annotated[int, options.output(
        min=0, max=65535, help="Port of the page; 0: any free one.")] = 0,
    open_page: Annotated[bool, options.output(
        "--open", help="Open the page in the browser.")] = False,
) -> None:
    """Type a prompt on a page on this machine, and watch every round of the text."""
    pair, how = models.served(decoding.options())
    pair.generate(USUAL["text"], replace(how, max_new_tokens=8))  # loads the weights
    with Server(port, pair, decoding, how.stop.head, chat) as server:
        say(server.address)
        note("Open this address in a browser on this machine; Ctrl-C stops.")
        if open_page:
            webbrowser.open(server.address)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def filled(**constants: Any) -> str:
    """The page with the values of some of its constants; no text in them can end the script."""
    page = PAGE.read_text(encoding="utf-8")
    for name, value in constants.items():
        data = json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
        line = f"const {name} = {data};"
        page = re.sub(rf"^const {name} = .*;$", lambda _: line, page, flags=re.M)  # noqa: B023
    return page


class Server(ThreadingHTTPServer):
    """Serves the page of one pair on the loopback address, and writes one text at a time."""

    daemon_threads = True

    def __init__(self, port: int, pair: Pair, decoding: options.Decoding, head: Any = None,
                 chat: bool | None = None) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.pair = pair
        self.decoding = decoding
        self.head = head
        self.chat = chat
        self.path = f"/{secrets.token_urlsafe(16)}/"
        self.address = f"http://127.0.0.1:{self.server_port}{self.path}"
        self.hosts = [f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")]
        self.busy = Lock()
        controls = {name: getattr(decoding, name) for name in CONTROLS}
        live = controls | {"rules": list(RULES), "prompt": USUAL["math"],
                           "draft": pair.draft.name, "target": pair.target.name}
        self.page = filled(live=live, scenes=[])

    def write(self, asking: dict[str, Any]) -> Iterator[dict]:
        """The lines for what the page asks for."""
        prompt = asking.get("prompt")
        if not isinstance(prompt, str) or not prompt.strip():
            raise OmnidraftError("the prompt is empty: type some text")
        given = {name: asking[name] for name in CONTROLS if name in asking}
        decoding = replace(self.decoding, **given)
        [request] = asked(self.pair.target, [Request(prompt)], self.chat)
        how = options.with_head(decoding.options(), self.head)
        end = "" if isinstance(request, str) else "\n"  # the answer to a chat begins on a new line
        yield from lines(self.pair, request, prompt + end, how, decoding.seed)


class Handler(BaseHTTPRequestHandler):
    """Answers a request, after its host, address and size are checked."""

    server: Server
    timeout = PATIENCE

    def do_GET(self) -> None:
        """The page."""
        if self.allowed(""):
            self.reply(200, self.server.page, "text/html; charset=utf-8")

    def do_POST(self) -> None:
        """A prompt's lines, each sent when it is known."""
        if not self.allowed("write"):
            return
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,9}", length) or int(length) > LARGEST:
            self.reply(413, f"the request is over {LARGEST:,} bytes: shorten the prompt")
        elif not self.server.busy.acquire(blocking=False):
            self.reply(409, "another text is being written: wait until it is done")
        else:
            try:
                self.stream(self.rfile.read(int(length)))
            finally:
                self.server.busy.release()

    def allowed(self, name: str) -> bool:
        """May this request be answered? If not, it is refused in one line."""
        if self.headers.get("Host") not in self.server.hosts:  # subtle: a name that an attacker
            self.reply(403, "this page is only for this machine")  # lets point to 127.0.0.1
            return False
        wanted = (self.server.path + name).encode()
        if not secrets.compare_digest(self.path.encode("utf-8", "replace"), wanted):
            self.reply(404, "not found: use the address that `omnidraft play` printed")
            return False
        return True

    def stream(self, body: bytes) -> None:
        """The answer to a prompt; an error is the last line."""
        try:
            asking = json.loads(body)
            if not isinstance(asking, dict):
                raise ValueError
        except (ValueError, RecursionError):
            self.reply(400, "the request is not a JSON object")
            return
        self.head(200, "application/x-ndjson")
        with suppress(OSError):  # the page was closed
            try:
                for line in self.server.write(asking):
                    self.send(line)
                self.send({"done": True})
            except Exception as error:
                self.send({"error": escape(one_line(error), "")})

    def send(self, line: dict[str, Any]) -> None:
        """A line of an answer."""
        self.wfile.write(json.dumps(line).encode() + b"\n")

    def reply(self, status: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        """A whole answer."""
        self.head(status, kind)
        self.wfile.write(text.encode())

    def head(self, status: int, kind: str) -> None:
        """The status and headers; the answer ends with the connection."""
        self.send_response(status)
        for name, value in ({"Content-Type": kind} | SAFE).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nothing: the address is secret."""
