"""The minimal level twin of tests/src/bin/puppet.rs: an agent that does what its request says.

It stands on examples/python/worker.py and writes the same lines to standard error: `started RUN`
when it begins, `dropped RUN` when it stops because it was cancelled. PUPPET_AGENT=typed makes it
the agent `typed`, which has schemas and gives its number back.
"""

import os
import sys
import time

import worker

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
            # worker.py gives the exception's class as the error's type.
            raise type(order.get("type", "Failed"), (Exception,), {})(order["message"])
        case "hang":
            return wait(None, context)
        case "wait":
            return wait(order["ms"] / 1000, context)
        case "block":
            time.sleep(order["ms"] / 1000)
            return None
        case "exit":
            os._exit(order["code"])
    raise ValueError(f"a worker of the minimal level cannot {what}")


def wait(seconds, context):
    if context.wait(seconds):
        say(f"dropped {context.run_id}")


def typed(message, context):
    say(f"started {context.run_id}")
    return {"number": message["number"]}


def schema(**limits):
    number = {"number": INTEGER | limits}
    return {"type": "object", "properties": number, "required": ["number"]}


if __name__ == "__main__":
    if os.environ.get("PUPPET_AGENT") == "typed":
        schemas = {"request_schema": schema(), "reply_schema": schema(maximum=100)}
        sys.exit(worker.run("typed", typed, **schemas))
    sys.exit(worker.run("puppet", puppet))
