"""A harness.v1 worker at the full level: grpc.aio, generated stubs and nothing else.

It is what the author of a worker in another language would write (proto/README.md, sections 2, 3
and 10), and the tests run it beside the Rust SDK and the minimal worker. The agent is a plain
function on a thread of its own, so that whatever it does the call is read without pause and
heartbeats go out. Left out, and allowed to be: `resume` (any end stops the work), steps, replay.
"""

import asyncio, json, logging, os, random, signal, socket, sys, threading, time, uuid
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode as Code
from harness.v1 import envelope_pb2 as envelope
from harness.v1 import worker_service_pb2 as wire
from harness.v1 import worker_service_pb2_grpc as service

# Told to stop: back at once. Refused before a welcome: another try would only repeat it; the first
# two are tried for a while if there was a welcome before, since credentials change.
STOPPED = {Code.DEADLINE_EXCEEDED, Code.CANCELLED, Code.ABORTED}
CREDENTIALS = {Code.UNAUTHENTICATED, Code.PERMISSION_DENIED}
REFUSED = CREDENTIALS | {Code.FAILED_PRECONDITION, Code.INVALID_ARGUMENT, Code.UNIMPLEMENTED}
CREDENTIALS_SECONDS = 60
WELCOME_SECONDS = 15  # a call without a welcome for so long is lost


class Stopped(Exception):
    """What `output`, `progress` and `log` raise once nobody waits for the agent's work."""


class Context:
    """What the agent may know about its request, and what it may say while it works."""

    def __init__(self, request, call):
        self.run_id, self.attempt = request.run_id, request.attempt
        self.metadata = dict(request.metadata)
        self.cancelled = call.ended.is_set  # cancelled(): nobody waits for the reply any more
        self.wait = call.ended.wait  # wait(seconds): sleeps, but only until then; is cancelled()
        self._call = call
        self._deadline = time.monotonic() + request.time_left.ToTimedelta().total_seconds()

    def time_left(self):
        """Seconds that are left to the attempt, never below 0."""
        return max(0.0, self._deadline - time.monotonic())

    def output(self, value):
        """Sends a piece of output; waits while too much is not acknowledged."""
        entry = envelope.Entry()
        entry.output.payload.data = json.dumps(value, allow_nan=False).encode()
        self._append(entry)

    def progress(self, fraction, message):
        self._append(envelope.Entry(progress=envelope.Progress(fraction=fraction, message=message)))

    def log(self, message):
        level = envelope.LOG_LEVEL_WARN
        self._append(envelope.Entry(log=envelope.Log(level=level, message=message)))

    def _append(self, entry):
        asyncio.run_coroutine_threadsafe(self._call.append(entry), self._call.worker.loop).result()


def answer(reply, request, context):
    """Calls the agent, on its thread; what it returns or raises becomes the end of the request."""
    frame = wire.Reply(run_id=request.run_id, attempt=request.attempt)
    try:
        value = reply(json.loads(request.payload.data or b"null"), context)
        frame.value.data = json.dumps(value, allow_nan=False).encode()
        frame.value.content_type = "application/json"
    except (Exception, SystemExit) as failure:
        frame.error.code = envelope.ERROR_CODE_AGENT_ERROR
        frame.error.type = type(failure).__name__
        frame.error.message = str(failure).encode(errors="replace")[:4096].decode(errors="ignore")
        frame.error.retryable = getattr(failure, "retryable", False)
    return frame


class End:
    """How a call ended: the gRPC code, and of our details the reason and the least wait."""

    def __init__(self, code, details="", trailers=()):
        self.code, self.details, self.reason, self.least = code, details, None, 0.0
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        for packed in (value for key, value in trailers if key == "grpc-status-details-bin"):
            for detail in status_pb2.Status.FromString(packed).details:
                if detail.Unpack(info) and info.domain == "harness.v1":
                    self.reason = info.reason
                elif detail.Unpack(retry):
                    self.least = retry.retry_delay.ToTimedelta().total_seconds()
        # Whoever made it means this work. Anything else is a lost call.
        self.stop = self.reason is not None and code != Code.UNAVAILABLE

    def __str__(self):
        return f"{self.code.name} {self.reason or '(not the harness)'}: {self.details}"


class Call:
    """One Attach call: what is written in which order, and what is not acknowledged yet."""

    def __init__(self, worker, released):
        self.worker, self.channel, self.welcome = worker, worker.channel, None
        self.hello = wire.Hello(released=released)
        self.hello.MergeFrom(worker.offer)
        self.stream = service.WorkerServiceStub(self.channel).Attach(metadata=credentials())
        self.writing = asyncio.Lock()  # grpc.aio takes one write at a time
        self.room = asyncio.Condition()  # over the next two
        self.seq, self.unacked = 0, deque()  # (worker_seq, bytes) of each append
        self.held, self.busy, self.working, self.closed = None, False, None, False
        self.ended = threading.Event()  # what the agent's thread looks at

    async def live(self):
        """Lives it from hello to end. When it returns, the work in it has stopped too."""
        await self.send(hello=self.hello)
        if self.worker.leaving.is_set():
            await self.half_close()
        beats, quiet = None, WELCOME_SECONDS
        while frame := await self.read(quiet):
            kind = frame.WhichOneof("frame")
            if kind == "welcome":
                self.welcome = frame.welcome
                interval = frame.welcome.heartbeat_interval.ToTimedelta().total_seconds()
                quiet = 3 * interval
                beats = asyncio.create_task(self.beat(interval))
                self.worker.tell("attached")
            elif kind == "request" and not self.closed:
                # Else it crossed our half-close and was not taken.
                self.working = asyncio.create_task(self.work(frame.request))
            elif kind == "appended":
                await self.acknowledged(frame.appended.worker_seq)
            elif kind == "drain":
                self.worker.leave(f"drained: {frame.drain.reason}")
            # A heartbeat was heard; replayed entries and what v1 adds later are passed over.
        if beats:
            beats.cancel()
        async with self.room:
            self.room.notify_all()
        if self.working:
            await asyncio.wait({self.working})
        return self.end

    async def read(self, quiet):
        """The next frame; None when the call is over, and `self.end` then says how."""
        reading = asyncio.ensure_future(self.stream.read())
        heard, _ = await asyncio.wait({reading}, timeout=quiet)
        if heard and not reading.exception() and reading.result() is not grpc.aio.EOF:
            return reading.result()
        self.ended.set()
        if heard:
            code, details = await self.stream.code(), await self.stream.details()
            self.end = End(code, details, await self.stream.trailing_metadata() or ())
        else:
            self.stream.cancel()
            self.end = End(Code.UNAVAILABLE, f"nothing was heard for {quiet:.1f} s")
        if not heard or self.end.reason == "HEARTBEATS_MISSED":
            # Its connection may still stand, and is not to be trusted with the next hello.
            self.worker.renew(self.channel)
        return None

    async def send(self, **frame):
        """Writes one frame. One that the end of the call has overtaken is dropped."""
        async with self.writing:
            try:
                if not self.ended.is_set() and not self.closed:
                    await self.stream.write(wire.AttachRequest(**frame))
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass  # the reader learns how it ended
            except asyncio.CancelledError:
                if not self.ended.is_set():
                    raise

    async def half_close(self):
        async with self.writing:
            if not self.closed and not self.ended.is_set():
                self.closed = True
                await self.stream.done_writing()

    async def leave(self):
        await self.send(leave=wire.Leave())
        if not self.busy:
            await self.half_close()

    async def beat(self, interval):
        while not self.ended.is_set():
            await asyncio.sleep(interval)
            await self.heartbeat()

    async def heartbeat(self):
        await self.send(heartbeat=wire.WorkerHeartbeat(**self.named() if self.busy else {}))

    def named(self):
        return {"run_id": self.held.run_id, "attempt": self.held.attempt}

    async def work(self, request):
        """Accepts a request, has it answered and sends that."""
        self.held, self.busy, self.seq = request, True, 0
        self.unacked.clear()
        await self.heartbeat()
        context = Context(request, self)
        answered = self.worker.threads.submit(answer, self.worker.reply, request, context)
        frame = await asyncio.wrap_future(answered)
        if not self.ended.is_set():
            self.busy = False
            frame.worker_seq = self.seq + 1
            await self.send(reply=frame)
            if self.worker.leaving.is_set():
                await self.half_close()

    async def append(self, entry):
        """Numbers an entry and sends it once the window has room."""
        size = entry.ByteSize()
        async with self.room:
            await self.room.wait_for(lambda: self.ended.is_set() or self.has_room(size))
            if self.ended.is_set():
                raise Stopped("nobody waits for this work any more")
            self.seq += 1
            self.unacked.append((self.seq, size))
            append = wire.Append(worker_seq=self.seq, entry=entry, **self.named())
        # Not under the lock, for which an acknowledgement and so the reading of the call may wait.
        await self.send(append=append)

    def has_room(self, size):
        """Within both limits; a larger entry than the window goes when nothing is unacknowledged."""
        limits, waiting = self.welcome.limits, sum(size for _, size in self.unacked)
        return not self.unacked or (
            len(self.unacked) < limits.unacked_entries and waiting + size <= limits.unacked_bytes
        )

    async def acknowledged(self, seq):
        async with self.room:
            while self.unacked and self.unacked[0][0] <= seq:
                self.unacked.popleft()
            self.room.notify_all()

    def stopped(self):
        """What the next hello says has stopped: what was in work, or may have crossed its end."""
        our_farewell = self.end.code == Code.UNAVAILABLE and self.end.reason
        if self.held is None or (our_farewell and not self.busy):
            return None
        return wire.Released(lease=self.held.lease, **self.named())


class Worker:
    """The slots of one agent and what they share."""

    def __init__(self, address, offer, reply, slots):
        self.address, self.offer, self.reply, self.slots = address, offer, reply, slots
        self.loop = asyncio.get_running_loop()
        self.leaving = asyncio.Event()
        self.threads = ThreadPoolExecutor(max_workers=slots)
        self.channel, self.state = open_channel(address), None
        self.calls, self.farewells = set(), []

    def renew(self, channel):
        """The next calls go over a new connection, if that is not so already."""
        if channel is self.channel:
            self.channel = open_channel(self.address)

    def tell(self, state, detail=""):
        """One line when the state of the whole worker changes, not one a slot or a try."""
        if state != self.state and not self.leaving.is_set():
            self.state = state
            logging.info("%s: %s%s", self.offer.agent.name, state, detail)

    def leave(self, why):
        """Takes no new request; each call is half-closed once nothing is in hand."""
        self.tell("leaving", f" ({why})")
        if not self.leaving.is_set():
            self.leaving.set()
            self.farewells = [asyncio.create_task(call.leave()) for call in self.calls]

    async def run(self):
        """Serves until it has left. False when the harness refuses it for good."""
        left = await asyncio.gather(*(self.slot() for _ in range(self.slots)))
        await self.channel.close()
        return all(left)

    async def slot(self):
        """One call after the other."""
        released, tries, trusted = None, 0, -CREDENTIALS_SECONDS
        while True:
            call = Call(self, released)
            self.calls.add(call)
            end = await call.live()
            self.calls.remove(call)
            if call.welcome:
                released, tries, trusted = call.stopped(), 0, time.monotonic()
            if end.code == Code.OK or (self.leaving.is_set() and not (call.welcome and released)):
                return True
            may_pass = end.code in CREDENTIALS and time.monotonic() < trusted + CREDENTIALS_SECONDS
            if end.code in REFUSED and not call.welcome and not may_pass:
                self.tell("the harness refuses this worker", f" ({end})")
                return False
            if not (call.welcome and end.stop and end.code in STOPPED):
                away = end.code == Code.UNAVAILABLE or not call.welcome
                state = "harness away, trying until it is back" if away else "call ended"
                self.tell(state, f" ({end})")
                # Up to 1 s the first time, 10 s in the end.
                await self.pause(max(end.least, random.uniform(0, min(10, 2 ** min(tries, 4)))))
                tries += 1

    async def pause(self, seconds):
        try:
            await asyncio.wait_for(self.leaving.wait(), seconds)
        except asyncio.TimeoutError:
            pass


def open_channel(address):
    """A channel of its own to host:port, http://host:port or unix:/absolute/path."""
    target = address.removeprefix("http://")
    # grpcio would send the percent-encoded path of a socket, which is no valid HTTP/2 authority.
    unix = [("grpc.default_authority", "localhost")] if target.startswith("unix:") else []
    # Channels of one process share their connections unless they are told not to.
    return grpc.aio.insecure_channel(target, [
        ("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 1_000),
        ("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0), *unix,
    ])


def credentials():
    """The metadata that says who calls: a pool gives each process it starts a token."""
    token = os.environ.get("HARNESS_TOKEN")
    return [("authorization", f"Bearer {token}")] if token else []


async def serve(agent, reply, schemas):
    offer = wire.Hello(protocol_version=1, heartbeats=True)  # the same in every call
    offer.agent.name, offer.worker.language = agent, "python"
    offer.worker.worker_id, offer.worker.pid = str(uuid.uuid4()), os.getpid()
    offer.worker.host = socket.gethostname()
    for name, schema in schemas.items():
        setattr(offer.agent, name, json.dumps(schema).encode())
    address = os.environ.get("HARNESS_ADDRESS") or "127.0.0.1:7070"
    worker = Worker(address, offer, reply, int(os.environ.get("HARNESS_SLOTS") or 1))

    def on_signal(which):
        worker.loop.remove_signal_handler(which)  # a second one ends the process at once
        worker.leave(which.name)

    for which in (signal.SIGTERM, signal.SIGINT):
        worker.loop.add_signal_handler(which, on_signal, which)
    return await worker.run()


def run(agent, reply, **schemas):
    """Serves until SIGTERM, SIGINT or a refusal. `schemas`: request_schema=..., reply_schema=..."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    return 0 if asyncio.run(serve(agent, reply, schemas)) else 1
