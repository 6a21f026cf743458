"""A harness.v1 worker of durable runs: the full level over grpc.aio and generated stubs alone.

Write your agent in `reply`: what it does in `ctx.step` is recorded in the run's journal, and
whoever gets the run after a crash does not do it again. The rest is the protocol
(proto/README.md, sections 2 and 3): heartbeats, acknowledgements, replay, and `resume` when a
call is lost. The agent runs on the event loop: work that blocks belongs into
`await asyncio.to_thread(...)`, or heartbeats stay away.
"""

import asyncio, json, logging, os, random, signal, sys, uuid
from collections import Counter, deque
from pathlib import Path

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode as Code

sys.path.append(str(Path(__file__).parent / "gen"))
from harness.v1 import envelope_pb2 as envelope
from harness.v1 import worker_service_pb2 as wire
from harness.v1 import worker_service_pb2_grpc as service


async def reply(message, ctx):
    """The agent: takes the request's JSON value and returns the reply's.

    What it raises is answered as AGENT_ERROR. This one writes lines to a file, each of them once.
    """
    async def write(key, line):
        with open(message["file"], "a") as file:
            file.write(f"{key} {line}\n")
        return len(line)

    sizes = [await ctx.step("write", write, line) for line in message["lines"]]
    return sum(sizes)


# Ends after which it comes back at once, and ends before a welcome that another try would repeat.
STOPPED = {Code.DEADLINE_EXCEEDED, Code.CANCELLED, Code.ABORTED}
REFUSED = {Code.UNAUTHENTICATED, Code.PERMISSION_DENIED, Code.FAILED_PRECONDITION,
           Code.INVALID_ARGUMENT, Code.UNIMPLEMENTED}
WELCOME_SECONDS = 15  # a call without a welcome for so long is lost


class StepFailed(Exception):
    """The work of a step failed, now or in the attempt that recorded it."""


class OutcomeUnknown(Exception):
    """A side effect was begun by an earlier attempt, and nothing says how that ended."""


class Mismatch(Exception):
    """The code asks for another step than the journal holds: it is not the code that wrote it."""


class Attempt:
    """A request in work, and the journal of its run: what `reply` gets as `ctx`.

    It outlives its call: when that is lost the work goes on for the request's reattach window, and
    not beyond its deadline.
    """

    def __init__(self, request, entries, slot):
        self.request, self.slot, self.outbox = request, slot, slot.outbox
        now = asyncio.get_running_loop().time()
        self.deadline = now + request.time_left.ToTimedelta().total_seconds()
        self.seq, self.unacked = 0, {}  # worker_seq: the frame, and a future of its acknowledgement
        self.writing = asyncio.Lock()
        self.recorded, self.expected, self.counts = {}, deque(), Counter()
        for step in (entry.entry.step for entry in entries if entry.entry.HasField("step")):
            id = step.name, step.key
            if step.key.isdigit() and id not in self.recorded:
                self.expected.append(id)
            self.recorded[id] = step
        self.task = asyncio.create_task(self.work())

    async def step(self, name, work, *arguments, key=None, side_effect=False):
        """Returns what `await work(idempotency_key, *arguments)` returned, as JSON has it.

        A recorded result is returned without running the work. Steps without a key run one after
        the other and must come in the order recorded; a key is no plain number. A side effect that
        an earlier attempt began and did not finish is OutcomeUnknown; others run again.
        """
        if key is None:
            self.counts[name] += 1
            key = str(self.counts[name])
            if self.expected and self.expected[0] != (name, key):
                raise Mismatch(f"the code asks for {name, key}, recorded is {self.expected[0]}")
            if self.expected:
                self.expected.popleft()
        step = self.recorded.get((name, key))
        if not step:
            step = envelope.Step(name=name, key=key, kind=envelope.STEP_KIND_STARTED)
            step.idempotency_key = f"{self.request.run_id}/{name}/{key}"
            await self.append(step=step)
        elif step.kind == envelope.STEP_KIND_STARTED and side_effect:
            raise OutcomeUnknown(step.idempotency_key)
        if step.kind == envelope.STEP_KIND_STARTED:
            done = envelope.Step(kind=envelope.STEP_KIND_DONE, name=name, key=key)
            done.idempotency_key = step.idempotency_key
            try:
                value = await work(step.idempotency_key, *arguments)
                done.outcome.value.data = json.dumps(value, allow_nan=False).encode()
            except Exception as failure:
                done.outcome.error.CopyFrom(error(failure))
            await self.append(step=done)
            step = self.recorded[name, key] = done
        if step.outcome.HasField("error"):
            raise StepFailed(f"{step.outcome.error.type}: {step.outcome.error.message}")
        return json.loads(step.outcome.value.data)

    async def output(self, value):
        """Sends a piece of output."""
        payload = envelope.Payload(data=json.dumps(value, allow_nan=False).encode())
        await self.append(output=envelope.Output(payload=payload))

    async def append(self, **entry):
        """Adds an entry to the journal; returns when it will not be lost any more.

        One at a time is under way, which keeps the window without counting.
        """
        async with self.writing:
            await self.send("append", wire.Append(entry=envelope.Entry(**entry)))

    def send(self, kind, frame):
        """Numbers a frame and keeps it until it is acknowledged, which the future says."""
        self.seq += 1
        frame.run_id, frame.attempt = self.request.run_id, self.request.attempt
        frame.worker_seq = self.seq
        taken = asyncio.get_running_loop().create_future()
        self.unacked[self.seq] = frame = wire.AttachRequest(**{kind: frame}), taken
        if self.outbox:  # else the call that resumes sends it
            self.outbox.put_nowait(frame[0])
        return taken

    def acknowledged(self, seq):
        for number in [number for number in self.unacked if number <= seq]:
            _, taken = self.unacked.pop(number)
            if not taken.done():
                taken.set_result(None)

    def resume(self, outbox, seq):
        """Goes on over another call: what the harness has not taken is sent again, in order."""
        self.acknowledged(seq)
        self.outbox = outbox
        for frame, _ in self.unacked.values():
            outbox.put_nowait(frame)

    async def work(self):
        """Has the request answered; the reply of a durable run is kept until it is acknowledged."""
        frame = wire.Reply()
        try:
            value = await self.slot.reply(json.loads(self.request.payload.data or b"null"), self)
            frame.value.data = json.dumps(value, allow_nan=False).encode()
            frame.value.content_type = "application/json"
        except Exception as failure:
            frame.error.CopyFrom(error(failure))
        taken = self.send("reply", frame)
        if self.request.durable:
            await taken
        self.slot.answered(self)

    async def stop(self):
        """Stops the work; gives the proof of it."""
        self.task.cancel()
        await asyncio.wait({self.task})
        return self.lease(wire.Released)

    def lease(self, kind):
        request = self.request
        return kind(run_id=request.run_id, attempt=request.attempt, lease=request.lease)


def error(failure):
    text = str(failure).encode(errors="replace")[:4096].decode(errors="ignore")
    mismatch = isinstance(failure, Mismatch)
    code = envelope.ERROR_CODE_JOURNAL_MISMATCH if mismatch else envelope.ERROR_CODE_AGENT_ERROR
    return envelope.Error(code=code, type=type(failure).__name__, message=text)


class End:
    """How a call ended: the gRPC code, and of the harness's details its reason and least wait."""

    def __init__(self, code, details="", trailers=()):
        self.code, self.details, self.reason, self.least = code, details, None, 0.0
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        for packed in (value for key, value in trailers if key == "grpc-status-details-bin"):
            for detail in status_pb2.Status.FromString(packed).details:
                if detail.Unpack(info) and info.domain == "harness.v1":
                    self.reason = info.reason
                elif detail.Unpack(retry):
                    self.least = retry.retry_delay.ToTimedelta().total_seconds()
        # Whoever made it means this work. Any other end is a lost call.
        self.stop = self.reason is not None and code != Code.UNAVAILABLE


class Slot:
    """One call after the other, on a connection of its own."""

    def __init__(self, address, offer, reply):
        self.address, self.offer, self.reply = address, offer, reply
        self.attempt = None  # in work, or its reply unacknowledged
        self.until = None  # when that has to stop, once its call is lost
        self.released = None  # what has stopped; said until a welcome has taken the news
        self.leaving, self.outbox, self.channel = asyncio.Event(), None, None

    def leave(self):
        """Takes no new request; half-closes (None) once nothing is in hand."""
        self.leaving.set()
        if self.outbox:
            self.outbox.put_nowait(wire.AttachRequest(leave=wire.Leave()))
            if not self.attempt:
                self.outbox.put_nowait(None)

    def answered(self, attempt):
        if self.attempt is attempt:
            self.attempt = None
            if self.leaving.is_set() and self.outbox:
                self.outbox.put_nowait(None)

    async def run(self):
        """Serves until it has left. False when the harness refuses it for good."""
        tries, now = 0, asyncio.get_running_loop().time
        while True:
            end, welcomed = await self.call()
            tries = 0 if welcomed else tries + 1
            if self.attempt:
                self.attempt.outbox = None
                self.until = self.until or min(now() + self.window(), self.attempt.deadline)
                if end.stop or now() >= self.until:
                    released, self.attempt = await self.attempt.stop(), None
                    self.released = None if end.reason == "NOT_YOURS" else released
            if not self.attempt:
                self.until = None
                news = welcomed and self.released  # that the harness has not heard
                if end.code == Code.OK or (self.leaving.is_set() and not news):
                    return True
            if end.code in REFUSED and not welcomed:
                logging.info("the harness refuses this worker (%s: %s)", end.code.name, end.details)
                return False
            if not (end.stop and end.code in STOPPED):
                logging.info("a call was lost (%s: %s)", end.code.name, end.details)
                wait = max(end.least, random.uniform(0, min(10, 2 ** min(tries, 4))))
                if self.attempt:  # it has no time for more
                    wait = min(wait, 1, max(0, self.until - now()))
                await asyncio.sleep(wait)

    def window(self):
        return self.attempt.request.reattach_window.ToTimedelta().total_seconds()

    async def call(self):
        """Lives one call. Returns how it ended and whether it was welcomed."""
        self.channel = self.channel or open_channel(self.address)
        hello, quiet, welcomed, beats = wire.Hello(), WELCOME_SECONDS, False, None
        hello.MergeFrom(self.offer)
        if self.attempt:
            hello.resume.CopyFrom(self.attempt.lease(wire.Resume))
            quiet = max(0, min(quiet, self.until - asyncio.get_running_loop().time()))
        elif self.released:
            hello.released.CopyFrom(self.released)
        self.outbox = outbox = asyncio.Queue()
        outbox.put_nowait(wire.AttachRequest(hello=hello))
        if self.leaving.is_set():
            self.leave()
        stub = service.WorkerServiceStub(self.channel)
        stream = stub.Attach(frames(outbox), metadata=credentials())
        request, entries = None, []
        try:
            while (frame := await asyncio.wait_for(stream.read(), quiet)) is not grpc.aio.EOF:
                kind = frame.WhichOneof("frame")
                if kind == "welcome":
                    welcomed, self.released = True, None
                    interval = frame.welcome.heartbeat_interval.ToTimedelta().total_seconds()
                    quiet, beats = 3 * interval, asyncio.create_task(self.beat(interval, outbox))
                    if self.attempt and not frame.welcome.HasField("resume"):
                        # It knows nothing of it, and takes this slot for a free one.
                        self.released, self.attempt = await self.attempt.stop(), None
                        return End(Code.ABORTED, "not resumed"), welcomed
                    if self.attempt:
                        self.until = None
                        self.attempt.resume(outbox, frame.welcome.resume.last_worker_seq)
                elif kind == "request":
                    request, entries = frame.request, []
                elif kind == "entry":
                    entries.append(frame.entry)
                elif kind == "appended" and self.attempt:
                    self.attempt.acknowledged(frame.appended.worker_seq)
                elif kind == "drain":
                    self.leave()
                if request and len(entries) == request.replay_entries:
                    self.attempt, request = Attempt(request, entries, self), None
                    outbox.put_nowait(self.heartbeat())
        except asyncio.TimeoutError:
            self.channel = None  # it may be half open: the next call goes another way
            return End(Code.UNAVAILABLE, f"nothing was heard for {quiet:.1f} s"), welcomed
        except grpc.aio.AioRpcError:
            pass  # the call's code says it
        finally:
            self.outbox = None
            outbox.put_nowait(None)
            if beats:
                beats.cancel()
            if not stream.done():
                stream.cancel()
        trailers = await stream.trailing_metadata() or ()
        return End(await stream.code(), await stream.details(), trailers), welcomed

    async def beat(self, interval, outbox):
        while True:
            await asyncio.sleep(interval)
            outbox.put_nowait(self.heartbeat())

    def heartbeat(self):
        named = self.attempt.request if self.attempt else wire.Request()
        beat = wire.WorkerHeartbeat(run_id=named.run_id, attempt=named.attempt)
        return wire.AttachRequest(heartbeat=beat)


async def frames(outbox):
    while (frame := await outbox.get()) is not None:
        yield frame


def open_channel(address):
    """A connection of its own to host:port, http://host:port or unix:/absolute/path."""
    target = address.removeprefix("http://")
    # grpcio would send the percent-encoded path of a socket, which is no valid HTTP/2 authority.
    unix = [("grpc.default_authority", "localhost")] if target.startswith("unix:") else []
    return grpc.aio.insecure_channel(target, [
        ("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 1_000),
        ("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0), *unix,
    ])


def credentials():
    """The metadata that says who calls: a pool gives each process it starts a token."""
    token = os.environ.get("HARNESS_TOKEN")
    return [("authorization", f"Bearer {token}")] if token else []


async def serve(agent, reply, address, slots=1):
    offer = wire.Hello(protocol_version=1, heartbeats=True)  # the same in every call
    offer.agent.name, offer.worker.language = agent, "python"
    offer.worker.worker_id, offer.worker.pid = str(uuid.uuid4()), os.getpid()
    slots = [Slot(address, offer, reply) for _ in range(slots)]
    for which in (signal.SIGTERM, signal.SIGINT):
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(which, lambda: [slot.leave() for slot in slots])
    return all(await asyncio.gather(*(slot.run() for slot in slots)))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    where = os.environ.get("HARNESS_ADDRESS") or "127.0.0.1:7070"
    count = int(os.environ.get("HARNESS_SLOTS") or 1)
    name = os.environ.get("HARNESS_AGENT") or "ledger"
    sys.exit(0 if asyncio.run(serve(name, reply, where, count)) else 1)
