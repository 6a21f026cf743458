"""A harness.v1 worker at the minimal level: grpcio, generated stubs and nothing else.

Write your agent in `reply`; the rest is the protocol (proto/README.md). One slot is one Attach
call on a thread of its own. Output, steps and heartbeats belong to the full level, not here.
"""

import json, logging, os, queue, random, signal, socket, sys, threading, time, uuid
from pathlib import Path

import grpc
from grpc import StatusCode as Code

sys.path.append(str(Path(__file__).parent / "gen"))
from harness.v1 import envelope_pb2 as envelope
from harness.v1 import worker_service_pb2 as wire
from harness.v1 import worker_service_pb2_grpc as service


def reply(message, context):
    """The agent: takes the request's JSON value and returns the reply's.

    It may block. What it raises is answered as AGENT_ERROR. Long work asks `context.cancelled()`
    now and then, or waits with `context.wait(seconds)`, and returns once it is cancelled.
    """
    return message.upper() + "!"


# Ends of a welcomed call after which it comes back at once, and ends before a welcome that another
# try would only repeat.
STOPPED = {Code.DEADLINE_EXCEEDED, Code.CANCELLED, Code.ABORTED}
REFUSED = {Code.UNAUTHENTICATED, Code.PERMISSION_DENIED, Code.FAILED_PRECONDITION,
           Code.INVALID_ARGUMENT, Code.UNIMPLEMENTED}


class Context:
    """What `reply` may know about its request."""

    def __init__(self, request, ended):
        self.run_id, self.attempt = request.run_id, request.attempt
        self.metadata = dict(request.metadata)
        self.cancelled = ended.is_set  # cancelled(): nobody waits for the reply any more
        self.wait = ended.wait  # wait(seconds): sleeps, but only until then; returns cancelled()
        self._deadline = time.monotonic() + request.time_left.ToTimedelta().total_seconds()

    def time_left(self):
        """Seconds that are left to the attempt, never below 0."""
        return max(0.0, self._deadline - time.monotonic())


def answer(request, reply, context):
    """Calls the agent and puts what it returned or raised into the frame that ends the request."""
    frame = wire.Reply(run_id=request.run_id, attempt=request.attempt, worker_seq=1)
    try:
        value = reply(json.loads(request.payload.data or b"null"), context)
        frame.value.data = json.dumps(value, allow_nan=False).encode()
        frame.value.content_type = "application/json"
    except (Exception, SystemExit) as failure:
        frame.error.code = envelope.ERROR_CODE_AGENT_ERROR
        frame.error.type = type(failure).__name__
        frame.error.message = str(failure).encode(errors="replace")[:4096].decode(errors="ignore")
    return wire.AttachRequest(reply=frame)


class Worker:
    """The slots of one agent: what they share, and the life of each."""

    def __init__(self, stub, offer, reply):
        self.stub, self.offer, self.reply = stub, offer, reply
        self.credentials = credentials()
        self.lock = threading.RLock()  # over the three below
        self.calls = {}  # the outbox of each open call: whether a request is in hand
        self.leaving = threading.Event()
        self.state = None

    def tell(self, state, detail=""):
        """One line when the state of the whole worker changes, not one a slot or a try."""
        with self.lock:
            if state != self.state and not self.leaving.is_set():
                self.state = state
                logging.info("%s: %s%s", self.offer.agent.name, state, detail)

    def leave(self, why):
        """Takes no new request; each call is half-closed (None) once nothing is in hand."""
        self.tell("leaving", f" ({why})")
        with self.lock:
            for outbox, busy in [] if self.leaving.is_set() else self.calls.items():
                outbox.put(wire.AttachRequest(leave=wire.Leave()))
                if not busy:
                    outbox.put(None)
            self.leaving.set()

    def slot(self):
        """One call after the other. Returns True when it has left, False when it is refused."""
        released, tries = None, 0  # `released` is said until a welcome has taken the news
        while True:
            call, welcomed, stopped = self.attach(released)
            code, why = call.code(), f" ({call.code().name}: {call.details()})"
            if welcomed:
                released, tries = stopped, 0
            if code == Code.OK or (self.leaving.is_set() and not (welcomed and released)):
                return True
            if code in REFUSED and not welcomed:
                self.tell("the harness refuses this worker", why)
                return False
            if not (welcomed and code in STOPPED):
                away = code == Code.UNAVAILABLE or not welcomed
                self.tell("harness away, trying until it is back" if away else "call ended", why)
                tries += 1
                self.leaving.wait(random.uniform(1, min(10, 2 ** min(tries, 4))))

    def attach(self, released):
        """Lives one call. Returns it, whether it was welcomed, and the work it stopped, if any."""
        outbox, ended = queue.SimpleQueue(), threading.Event()
        hello = wire.Hello(released=released)
        hello.MergeFrom(self.offer)
        outbox.put(wire.AttachRequest(hello=hello))
        with self.lock:
            self.calls[outbox] = False
            if self.leaving.is_set():
                outbox.put(None)
        call = self.stub.Attach(iter(outbox.get, None), metadata=self.credentials)
        # grpcio calls it also while `reply` works or sleeps; it gives False when it is too late.
        call.add_callback(ended.set) or ended.set()
        welcomed, held, interrupted = False, None, False
        try:
            for frame in call:
                kind = frame.WhichOneof("frame")
                if kind == "welcome":
                    welcomed = True
                    self.tell("attached")
                elif kind == "request":
                    held = self.work(frame.request, outbox, ended)
                    interrupted = ended.is_set()
                elif kind == "drain":
                    self.leave(f"drained: {frame.drain.reason}")
        except grpc.RpcError:
            pass  # call.code() says it
        with self.lock:
            del self.calls[outbox]
            outbox.put(None)
        # A reply may also have crossed the end; then its run still waits for the news.
        return call, welcomed, held if interrupted or call.code() != Code.UNAVAILABLE else None

    def work(self, request, outbox, ended):
        """Answers a request. Returns what is released should nobody wait for the answer."""
        with self.lock:
            if self.leaving.is_set():
                return None  # it crossed our half-close and was not taken
            self.calls[outbox] = True
        frame = answer(request, self.reply, Context(request, ended))
        with self.lock:
            self.calls[outbox] = False
            outbox.put(frame)
            if self.leaving.is_set():
                outbox.put(None)
        return wire.Released(run_id=request.run_id, attempt=request.attempt, lease=request.lease)


def open_channel(address):
    """A channel to host:port, http://host:port or unix:/absolute/path."""
    target = address.removeprefix("http://")
    if "://" in target:
        raise ValueError(f"{address} is not host:port, http://host:port or unix:/absolute/path")
    options = [("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 10_000),
               ("grpc.http2.max_pings_without_data", 0), ("grpc.max_reconnect_backoff_ms", 1_000)]
    if target.startswith("unix:"):
        # grpcio would send the percent-encoded path, which is no valid HTTP/2 authority.
        options.append(("grpc.default_authority", "localhost"))
    return grpc.insecure_channel(target, options)


def credentials():
    """The metadata that says who calls: a pool gives each process it starts a token."""
    token = os.environ.get("HARNESS_TOKEN")
    return [("authorization", f"Bearer {token}")] if token else []


def run(agent, reply, **schemas):
    """Serves until SIGTERM, SIGINT or a refusal. `schemas`: request_schema=..., reply_schema=..."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    offer = wire.Hello(protocol_version=1)  # the same in every call of this process
    offer.agent.name, offer.worker.language = agent, "python"
    offer.worker.worker_id, offer.worker.pid = str(uuid.uuid4()), os.getpid()
    offer.worker.host = socket.gethostname()
    for name, schema in schemas.items():
        setattr(offer.agent, name, json.dumps(schema).encode())
    with open_channel(os.environ.get("HARNESS_ADDRESS") or "127.0.0.1:7070") as channel:
        worker = Worker(service.WorkerServiceStub(channel), offer, reply)

        def on_signal(number, _frame):
            signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
            worker.leave(signal.Signals(number).name)

        signal.signal(signal.SIGTERM, on_signal)
        signal.signal(signal.SIGINT, on_signal)
        left = []  # what each slot returned; one that broke printed its traceback instead
        slots = range(int(os.environ.get("HARNESS_SLOTS") or 1))
        threads = [threading.Thread(target=lambda: left.append(worker.slot())) for _ in slots]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return 0 if left == [True for _ in slots] else 1


if __name__ == "__main__":
    schema = {"type": "string"}
    sys.exit(run(os.environ.get("HARNESS_AGENT") or "shout", reply, request_schema=schema))
