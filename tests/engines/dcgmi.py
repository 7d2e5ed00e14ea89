"""Play ``dcgmi``: print a recorded answer, as a file beside it says.

    python -I dcgmi.py PLAY ARGUMENTS…

PLAY is JSON: output (text), rc, seconds (before it answers), err (for standard error), stubborn (SIGTERM is ignored).
What it was called with goes to PLAY.called: arguments, environment and pid; a SIGTERM to PLAY.term.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time


def main(play: str, *arguments: str) -> int:
    with open(play, encoding="utf-8") as file:
        said = json.load(file)

    def told(number: int, frame: object) -> None:
        with open(play + ".term", "w", encoding="utf-8"):
            pass
        if not said.get("stubborn"):
            os._exit(203)

    signal.signal(signal.SIGTERM, told)
    with open(play + ".new", "w", encoding="utf-8") as file:
        json.dump({"arguments": arguments, "environment": dict(os.environ), "pid": os.getpid()}, file)
    os.replace(play + ".new", play + ".called")
    sys.stderr.write(said.get("err", ""))
    sys.stderr.flush()
    time.sleep(said.get("seconds", 0))
    sys.stdout.write(said.get("output", ""))
    sys.stdout.flush()
    return int(said.get("rc", 0))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
