"""The servers of a soak, in a process of their own, so that what they hold is not taken for what we hold.

`python -m tests.soak.servers FOLDER` writes its ports as JSON and ends with its standard input. What each does is said
by the file `<name>.mode` in FOLDER, which is read at every request.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.collectors.openmetrics_server import serving
from tests.fuzz.corpus import GPU_PAGE, PAGE, served
from tests.tpu import Runtime

if TYPE_CHECKING:
    from tests.collectors.openmetrics_server import Answer, Handler

_LOOK: Final = 0.05
_LABELS: Final = 2500  # more than one instrument keeps, so that its limit is reached
_SERVED: Final = served()[0]


def mode(folder: Path, name: str) -> str:
    """Return what a stand-in does now, empty where all is well."""
    try:
        return (folder / f"{name}.mode").read_text().strip()
    except OSError:
        return ""


def _page(folder: Path, name: str, text: str) -> Answer:
    def answer(request: Handler) -> None:
        match mode(folder, name):
            case "fails":
                request.say("no", 404)
            case "html":
                request.say("<html>log in</html>")
            case "garbage":
                request.say(random.randbytes(3000))
            case "cut":
                request.say(text[:-20], Content_Length=str(len(text)), Content_Encoding="gzip")
            case "silent":
                while mode(folder, name) == "silent":
                    threading.Event().wait(_LOOK)
            case _:
                labels = random.sample(range(_LABELS), 60)
                request.say(text + "".join(f'churning{{x="{number}"}} 1\n' for number in labels))

    return answer


def main() -> None:
    """Serve until standard input ends."""
    folder = Path(sys.argv[1])
    over = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=listen, daemon=True).start()
    with ExitStack() as stack:
        pages = {"openmetrics": PAGE.replace("# EOF\n", ""), "dcgm": GPU_PAGE}
        servers = {name: stack.enter_context(serving(_page(folder, name, text))) for name, text in pages.items()}
        runtime, doing = Runtime(_SERVED), ""
        ports = {name: server.server_address[1] for name, server in servers.items()} | {"tpu": runtime.port}
        sys.stdout.write(json.dumps(ports) + "\n")
        sys.stdout.flush()
        while not over.wait(_LOOK):
            now = mode(folder, "tpu")
            if now != doing:
                if doing != "down":
                    runtime.stop()
                if now != "down":
                    runtime = Runtime(_SERVED, hangs=next(iter(_SERVED)) if now == "silent" else "", port=ports["tpu"])
                doing = now
        runtime.stop()


if __name__ == "__main__":
    main()
