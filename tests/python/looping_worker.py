"""A worker of the JSON Lines dialect that answers until its standard input ends.

It gives every message back, but for two: {"do": "pid"} is answered with its process id, and
{"do": "hang"} never, whatever SIGTERM says.
"""

import json
import os
import signal
import sys
import time


def work(message: object) -> object:
    order = message.get("do") if isinstance(message, dict) else None
    if order == "pid":
        return os.getpid()
    if order == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(3600)
    return message


for line in sys.stdin:
    request = json.loads(line)
    reply = {"id": request["id"], "ok": True, "value": work(request["message"])}
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()
