"""A harness.v1 worker at the minimal level: grpcio, generated stubs and nothing else.

Write your agent in `reply`; the rest is the protocol (proto/README.md). One slot is one Attach
call on a thread of its own. Output, steps and heartbeats belong to the full level, not here.
"""

import json
import os
import queue
import random
import signal
import socket
import sys
import threading
import time
import traceback
import uuid
from pathlib import Path

import grpc

sys.path.append(str(Path(__file__).parent / "gen"))
from harness.v1 import envelope_pb2 as envelope
from harness.v1 import worker_service_pb2 as wire
from harness.v1 import worker_service_pb2_grpc as service


def reply(message, context):
    """The agent: takes the request's JSON value and returns the reply's.

    It may block. What it raises is answered as AGENT_ERROR. Long work asks `context.cancelled()`
    now and then, or waits with `context.wait(seconds)`, and returns once the harness has stopped it.
    """
    return message.upper() + "!"


# The same in every call of this process.
WORKER_ID = str(uuid.uuid4())
# Ends that tell a worker to stop its work and come back at once.
STOPPED = {
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
}
# Ends before a welcome that another try would only repeat.
REFUSED = {
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
}


class Context:
    """What `reply` may know about its request."""

    def __init__(self, request, ended):
        self.run_id = request.run_id
        self.attempt = request.attempt
        self.metadata = dict(request.metadata)
        self._ended = ended
        self._deadline = time.monotonic() + request.time_left.ToTimedelta().total_seconds()

    def cancelled(self):
        """Whether the harness has ended the call: nobody waits for the reply any more."""
        return self._ended.is_set()

    def wait(self, seconds):
        """Sleeps, but only until the harness ends the call. Returns `cancelled()`."""
        return self._ended.wait(seconds)

    def time_left(self):
        """Seconds until the run's deadline, never below 0."""
        return max(0.0, self._deadline - time.monotonic())


def answer(request, reply, context):
    """Calls the agent and puts what it returned or raised into the frame that ends the request."""
    frame = wire.Reply(run_id=request.run_id, attempt=request.attempt, worker_seq=1)
    try:
        value = reply(json.loads(request.payload.data or b"null"), context)
        frame.value.content_type = "application/json"
        frame.value.data = json.dumps(value, allow_nan=False).encode()
    except (Exception, SystemExit) as failure:
        frame.error.code = envelope.ERROR_CODE_AGENT_ERROR
        frame.error.type = type(failure).__name__
        frame.error.message = str(failure)
    return wire.AttachRequest(reply=frame)


def open_channel(address):
    """A channel to host:port, http(s)://host:port or unix:/absolute/path."""
    options = [
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
        # The back-off is ours; grpcio's own would come on top and grow to two minutes.
        ("grpc.max_reconnect_backoff_ms", 1_000),
    ]
    if address.startswith("unix:"):
        # grpcio would send the percent-encoded path, which is no valid HTTP/2 authority.
        options.append(("grpc.default_authority", "localhost"))
    scheme, _, target = address.rpartition("://")
    if scheme == "https":
        return grpc.secure_channel(target, grpc.ssl_channel_credentials(), options)
    if scheme not in ("", "http"):
        raise ValueError(f"{address}: not host:port, http(s)://host:port or unix:/absolute/path")
    return grpc.insecure_channel(target, options)


def back_off(tries):
    """Seconds to wait before the next call when `tries` in a row got no welcome."""
    return random.uniform(1, min(10, 2 ** min(tries + 1, 4)))


class Slot(threading.Thread):
    """One Attach call after the other, at most one request in it, until the worker leaves."""

    def __init__(self, stub, offer, reply, events):
        super().__init__(daemon=True)
        self.stub, self.offer, self.reply, self.events = stub, offer, reply, events
        self.released = None  # cancelled work that has stopped, until a welcome has taken the news
        self.lock = threading.Lock()  # over the three below
        self.outbox = queue.SimpleQueue()
        self.busy = False
        self.leaving = threading.Event()

    def run(self):
        try:
            self.events.put(("ended", self.serve()))
        except Exception:
            self.events.put(("ended", traceback.format_exc()))

    def serve(self):
        """Attaches again and again. Returns None after a leave, else why the worker must stop."""
        tries = 0
        while True:
            welcomed, code, details = self.attach()
            if code == grpc.StatusCode.OK:
                return None
            if code in REFUSED and not welcomed:
                return f"the harness refuses this worker: {code.name}: {details}"
            if self.leaving.is_set() and not (welcomed and self.released):
                return None
            if welcomed and self.released and code in STOPPED:
                tries = 0
                continue
            tries = 0 if welcomed else tries + 1
            self.events.put(("away", f"{code.name}: {details}"))
            self.leaving.wait(back_off(tries))

    def attach(self):
        """Keeps one call open as long as it goes, and says how it ended."""
        with self.lock:
            self.outbox = outbox = queue.SimpleQueue()
            hello = wire.Hello(released=self.released)
            hello.MergeFrom(self.offer)
            outbox.put(wire.AttachRequest(hello=hello))
            if self.leaving.is_set():
                outbox.put(wire.AttachRequest(leave=wire.Leave()))
                outbox.put(None)
        token = os.environ.get("HARNESS_TOKEN")
        call = self.stub.Attach(
            iter(outbox.get, None),  # None is the half-close
            metadata=[("authorization", f"Bearer {token}")] if token else None,
        )
        ended = threading.Event()  # set by grpcio, also while `reply` works or sleeps
        if not call.add_callback(ended.set):
            ended.set()
        welcomed, held, interrupted = False, None, False
        try:
            for frame in call:
                kind = frame.WhichOneof("frame")
                if kind == "welcome":
                    welcomed, self.released = True, None
                    self.events.put(("attached", None))
                elif kind == "request" and self.work(frame.request, ended):
                    held, interrupted = frame.request, ended.is_set()
                elif kind == "drain":
                    self.events.put(("leave", f"drained: {frame.drain.reason}"))
        except grpc.RpcError:
            pass  # the code and the details below say it
        finally:
            outbox.put(None)
        # A reply may also have crossed the end; then its run still waits for the news.
        if held and (interrupted or call.code() in STOPPED):
            self.released = wire.Released(
                run_id=held.run_id, attempt=held.attempt, lease=held.lease
            )
        return welcomed, call.code(), call.details()

    def work(self, request, ended):
        """Answers one request. Returns False for one that crossed a half-close: it was not taken."""
        with self.lock:
            if self.leaving.is_set():
                return False
            self.busy = True
        frame = answer(request, self.reply, Context(request, ended))
        with self.lock:
            self.busy = False
            self.outbox.put(frame)
            if self.leaving.is_set():
                self.outbox.put(None)
        return True

    def leave(self):
        """Takes no new request; the call is half-closed once nothing is in hand."""
        with self.lock:
            if self.leaving.is_set():
                return
            self.leaving.set()
            self.outbox.put(wire.AttachRequest(leave=wire.Leave()))
            if not self.busy:
                self.outbox.put(None)


def run(agent, reply, *, address=None, slots=None, request_schema=None, reply_schema=None):
    """Serves `reply` as `agent` until SIGTERM, SIGINT or a refusal. Returns the exit code.

    `address` and `slots` come from HARNESS_ADDRESS and HARNESS_SLOTS when they are not given.
    """
    address = address or os.environ.get("HARNESS_ADDRESS") or "127.0.0.1:7070"
    slots = slots or int(os.environ.get("HARNESS_SLOTS") or 1)
    offer = wire.Hello(
        protocol_version=1,
        worker=wire.WorkerInfo(
            worker_id=WORKER_ID, pid=os.getpid(), host=socket.gethostname(), language="python"
        ),
        agent=wire.AgentInfo(
            name=agent,
            request_schema=json.dumps(request_schema).encode() if request_schema else b"",
            reply_schema=json.dumps(reply_schema).encode() if reply_schema else b"",
        ),
    )
    events = queue.SimpleQueue()

    def on_signal(number, _frame):
        signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
        events.put(("leave", signal.Signals(number).name))

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)

    def say(text):
        # One write a line: print makes two, and what `reply` logs could come between.
        sys.stderr.write(f"{agent}: {text}\n")
        sys.stderr.flush()

    with open_channel(address) as channel:
        stub = service.WorkerServiceStub(channel)
        team = [Slot(stub, offer, reply, events) for _ in range(slots)]
        for slot in team:
            slot.start()
        failure, state, open_slots = None, None, slots
        while open_slots:
            event, text = events.get()
            if event == "ended":
                open_slots -= 1
                if text and text != failure:
                    say(text)
                failure = failure or text
            elif event == "leave" and state != "leave":
                state = event
                say(f"leaving ({text})")
                for slot in team:
                    slot.leave()
            elif event != state != "leave":
                state = event
                if event == "attached":
                    say(f"attached to {address}")
                else:
                    say(f"harness away, trying until it is back ({text})")
    return 1 if failure else 0


if __name__ == "__main__":
    name = os.environ.get("HARNESS_AGENT") or "shout"
    sys.exit(run(name, reply, request_schema={"type": "string"}))
