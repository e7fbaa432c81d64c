"""The child process of one engine start: `python -m fk_plugin.e2e.worker ENGINE SOCKET`, requests as JSON lines.

The engine writes its logs to standard output and error as it likes; answers go through the socket alone.
"""

from __future__ import annotations

import json
import pkgutil
import socket
import sys
import time
import traceback
from typing import Any

from fk_plugin import registry
from fk_plugin.e2e.protocol import Options


def _answer(launcher: Any, request: dict[str, Any]) -> dict[str, Any]:
    began = time.perf_counter()
    completions = launcher.generate(**request)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "completions": [c.to_json() for c in completions]}


def main() -> None:
    """Start the engine, answer requests until the parent hangs up, stop the engine."""
    engine, path = sys.argv[1:3]
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        stream = link.makefile("rw", encoding="utf-8", newline="\n")

        def send(**message: Any) -> None:
            stream.write(json.dumps(message) + "\n")
            stream.flush()

        launcher = None
        try:
            options = Options(**json.loads(stream.readline()))
            launcher = pkgutil.resolve_name(registry.adapter(engine).launcher)(options)
            send(ready=launcher.describe())
            for line in stream:
                send(**_answer(launcher, json.loads(line)))
        except Exception as error:  # noqa: BLE001  # boundary: the parent must hear what the engine raises
            traceback.print_exc()
            send(error=f"{type(error).__name__}: {error}")
        finally:
            if launcher is not None:
                launcher.close()


if __name__ == "__main__":
    main()
