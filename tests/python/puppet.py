"""The Python twins of tests/src/bin/puppet.rs: an agent that does what its request says.

`python puppet.py minimal` stands on examples/python/worker.py, `python puppet.py full` on full.py
beside this file. Both write the same lines to standard error: `started RUN` when a run begins,
`dropped RUN` when it stops because it was cancelled, `told RUN` when code that goes on regardless
could know that it was. PUPPET_AGENT=typed makes it the agent `typed`, which has schemas and gives
its number back. PUPPET_WALL_CLOCK=jumps makes the wall clock say something else at every look.
"""

import os
import random
import sys
import threading
import time

INTEGER = {"type": "integer"}


def say(line):
    # One write, so that the lines of several slots never mix.
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def puppet(order, context):
    say(f"started {context.run_id}")
    what = order.pop("do")
    match what:
        case "reply":
            return order["value"]
        case "fill":
            return "x" * (order["bytes"] - 2)
        case "context":
            return {
                "run_id": context.run_id,
                "attempt": context.attempt,
                "time_left_ms": int(context.time_left() * 1000),
                "metadata": context.metadata,
            }
        case "fail":
            fail(order)
        case "hang":
            return wait(None, context)
        case "wait":
            return wait(order["ms"] / 1000, context)
        case "block":
            time.sleep(order["ms"] / 1000)
            return None
        case "doze":
            threading.Thread(target=tell_end, args=[context], daemon=True).start()
            time.sleep(order["ms"] / 1000)
            return None
        case "exit":
            os._exit(order["code"])
        case "pid":
            return os.getpid()
        case "print":
            for _ in range(order["count"]):
                print(order["line"])
            return None
        case "output" if hasattr(context, "output"):
            return output(context, **order)
    raise ValueError(f"a worker of this level cannot {what}")


def fail(order):
    # Both workers give the exception's class as the error's type.
    failure = type(order.get("type", "Failed"), (Exception,), {})(order["message"])
    failure.retryable = order.get("retryable", False)  # which the minimal one does not look at
    raise failure


def wait(seconds, context):
    if context.wait(seconds):
        say(f"dropped {context.run_id}")


def tell_end(context):
    context.wait()
    say(f"told {context.run_id}")


def output(context, count, bytes=0, hang=False):
    try:
        for number in range(1, count + 1):
            context.output("x" * (bytes - 2) if bytes else number)
    except worker.Stopped:
        say(f"dropped {context.run_id}")
        raise
    return wait(None, context) if hang else count


def typed(message, context):
    say(f"started {context.run_id}")
    return {"number": message["number"]}


def schema(**limits):
    number = {"number": INTEGER | limits}
    return {"type": "object", "properties": number, "required": ["number"]}


if __name__ == "__main__":
    if os.environ.get("PUPPET_WALL_CLOCK") == "jumps":
        time.time = lambda: random.uniform(0, 4e9)
    match sys.argv[1]:
        case "minimal":
            import worker
        case "full":
            import full as worker
    agent = os.environ.get("PUPPET_AGENT") or os.environ.get("HARNESS_AGENT") or "puppet"
    if agent == "typed":
        schemas = {"request_schema": schema(), "reply_schema": schema(maximum=100)}
        sys.exit(worker.run(agent, typed, **schemas))
    sys.exit(worker.run(agent, puppet))
