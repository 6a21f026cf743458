"""durable.py against a harness whose every frame is the test's own."""

import asyncio
import functools
import json
from contextlib import asynccontextmanager

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

import durable
from durable import Code, envelope, service, wire

SECONDS = 20  # the longest a test waits for anything


class Call:
    """One Attach call, from the harness's side."""

    def __init__(self, hello, requests, context):
        self.hello, self.requests, self.context = hello, requests, context
        self.outbox, self.over = asyncio.Queue(), asyncio.Event()

    async def welcome(self, **resume):
        welcome = wire.Welcome()
        welcome.heartbeat_interval.FromSeconds(5)
        if resume:
            welcome.resume.CopyFrom(wire.Resumed(**resume))
        await self.send(welcome=welcome)

    async def send(self, **frame):
        await self.outbox.put(wire.AttachResponse(**frame))

    async def request(self, value, entries=(), attempt=1, window=60, time_left=60):
        made = wire.Request(run_id="run", attempt=attempt, lease=b"l", durable=True)
        made.payload.data = json.dumps(value).encode()
        made.reattach_window.FromMilliseconds(int(window * 1000))
        made.time_left.FromMilliseconds(int(time_left * 1000))
        made.replay_entries = len(entries)
        await self.send(request=made)
        for seq, step in enumerate(entries, 3):
            entry = envelope.Entry(step=step)
            await self.send(entry=envelope.JournalEntry(seq=seq, attempt=1, entry=entry))

    async def frame(self, kind):
        """The next frame that is no heartbeat, which is of this kind."""
        while True:
            frame = await asyncio.wait_for(anext(self.requests), SECONDS)
            if (which := frame.WhichOneof("frame")) != "heartbeat":
                assert which == kind, frame
                return getattr(frame, which)

    async def step(self, seq):
        append = await self.frame("append")
        assert append.worker_seq == seq
        return append.entry.step

    async def acknowledge(self, seq):
        await self.send(appended=wire.Appended(worker_seq=seq))

    async def reset(self):
        """Ends the call without a word of the harness's own: it is lost."""
        await self.end(Code.UNAVAILABLE)

    async def end(self, code, reason=None):
        await self.outbox.put((code, reason))
        await self.over.wait()


class Harness(service.WorkerServiceServicer):
    def __init__(self):
        self.calls = asyncio.Queue()

    async def Attach(self, requests, context):
        hello = (await anext(requests)).hello
        call = Call(hello, requests, context)
        await self.calls.put(call)
        try:
            while isinstance(frame := await call.outbox.get(), wire.AttachResponse):
                yield frame
            code, reason = frame
            if reason:
                info = error_details_pb2.ErrorInfo(reason=reason, domain="harness.v1")
                packed = any_pb2.Any()
                packed.Pack(info)
                status = status_pb2.Status(code=code.value[0], message=reason, details=[packed])
                details = ("grpc-status-details-bin", status.SerializeToString())
                context.set_trailing_metadata([details])
            await context.abort(code, reason or "reset")
        finally:
            call.over.set()

    async def call(self, *previous):
        """The next call, of which the hello says this of the one before."""
        call = await asyncio.wait_for(self.calls.get(), SECONDS)
        assert (call.hello.WhichOneof("previous"),) == (previous or (None,)), call.hello
        return call


@asynccontextmanager
async def attached(reply):
    """A harness, the slot of a worker with this agent, and its first call, welcomed."""
    server, harness = grpc.aio.server(), Harness()
    service.add_WorkerServiceServicer_to_server(harness, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    offer = wire.Hello(protocol_version=1, heartbeats=True)
    slot = durable.Slot(f"127.0.0.1:{port}", offer, reply)
    serving = asyncio.create_task(slot.run())
    try:
        call = await harness.call()
        await call.welcome()
        yield harness, slot, call
    finally:
        serving.cancel()
        await asyncio.wait({serving})
        await server.stop(None)


def awaited(scenario):
    """Makes a test of an async function."""
    return functools.wraps(scenario)(lambda *given, **named: asyncio.run(scenario(*given, **named)))


KINDS = envelope.STEP_KIND_STARTED, envelope.STEP_KIND_DONE


def step(name, key, value=None):
    made = envelope.Step(name=name, key=key, kind=KINDS[value is not None])
    made.idempotency_key = f"run/{name}/{key}"
    if value is not None:
        made.outcome.value.data = json.dumps(value).encode()
    return made


class Agent:
    """Two steps, the second a side effect; remembers the keys under which their work ran."""

    def __init__(self):
        self.ran = []

    async def work(self, key, value):
        self.ran.append(key)
        return value

    async def __call__(self, message, ctx):
        one = await ctx.step("one", self.work, 1)
        two = await ctx.step("two", self.work, 2, side_effect=True)
        return [message, one, two]


@awaited
async def test_a_step_is_begun_done_and_answered_as_each_is_acknowledged():
    agent = Agent()
    async with attached(agent) as (_, _, call):
        await call.request("x")
        for seq, (name, kind) in enumerate([("one", 0), ("one", 1), ("two", 0), ("two", 1)], 1):
            recorded = await call.step(seq)
            assert (recorded.name, recorded.key, recorded.kind) == (name, "1", KINDS[kind])
            assert recorded.idempotency_key == f"run/{name}/1"
            # The work of a step runs when its begin is acknowledged, not before.
            assert len(agent.ran) == seq // 2
            await call.acknowledge(seq)
        reply = await call.frame("reply")
        assert (reply.worker_seq, json.loads(reply.value.data)) == (5, ["x", 1, 2])


@pytest.mark.parametrize(
    ("entries", "ran", "answer"),
    [
        ([step("one", "1", 7), step("two", "1"), step("two", "1", 8)], [], ["x", 7, 8]),
        ([step("one", "1")], ["run/one/1", "run/two/1"], ["x", 1, 2]),
        ([step("one", "1", 7), step("two", "1")], [], "OutcomeUnknown"),
        ([step("other", "1", 7)], [], "Mismatch"),
    ],
)
@awaited
async def test_what_is_recorded_is_not_done_again(entries, ran, answer):
    agent = Agent()
    async with attached(agent) as (_, _, call):
        await call.request("x", entries, attempt=2)
        while (frame := await anext(call.requests)).WhichOneof("frame") != "reply":
            if frame.HasField("append"):
                await call.acknowledge(frame.append.worker_seq)
        assert agent.ran == ran
        if isinstance(answer, list):
            assert json.loads(frame.reply.value.data) == answer
        else:
            assert frame.reply.error.type == answer
            mismatch = frame.reply.error.code == envelope.ERROR_CODE_JOURNAL_MISMATCH
            assert mismatch == (answer == "Mismatch")


@awaited
async def test_a_lost_call_is_resumed_and_what_is_unacknowledged_sent_again():
    agent = Agent()
    async with attached(agent) as (harness, _, call):
        await call.request("x")
        await call.step(1)
        await call.acknowledge(1)
        await call.step(2)
        await call.reset()
        call = await harness.call("resume")
        assert (call.hello.resume.run_id, call.hello.resume.lease) == ("run", b"l")
        await call.welcome(last_worker_seq=1)
        await call.step(2)
        await call.acknowledge(2)
        await call.step(3)
        await call.acknowledge(3)
        await call.step(4)
        # The acknowledgement is lost with the call: the welcome makes up for it.
        await call.reset()
        call = await harness.call("resume")
        await call.welcome(last_worker_seq=4)
        assert (await call.frame("reply")).worker_seq == 5
        await call.reset()
        call = await harness.call("resume")
        await call.welcome(last_worker_seq=4)
        assert (await call.frame("reply")).worker_seq == 5
        await call.acknowledge(5)
        assert agent.ran == ["run/one/1", "run/two/1"]
        # The slot is free.
        await call.request("y", [step("one", "1", 1), step("two", "1", 2)])
        assert (await call.frame("reply")).worker_seq == 1


async def forever(message, ctx):
    await ctx.output("begun")
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("code", "reason", "previous"),
    [
        (Code.ABORTED, "SUPERSEDED", "released"),
        (Code.CANCELLED, "CANCELLED", "released"),
        (Code.ABORTED, "NOT_YOURS", None),
    ],
)
@awaited
async def test_a_harness_that_will_not_have_it_back_stops_the_work(code, reason, previous):
    async with attached(forever) as (harness, slot, call):
        await call.request(None)
        await call.frame("append")
        await call.reset()
        call = await harness.call("resume")
        task = slot.attempt.task
        await call.end(code, reason)
        await harness.call(previous)
        assert task.cancelled()


@pytest.mark.parametrize("limit", [{"window": 0.3}, {"time_left": 0.3}])
@awaited
async def test_work_that_no_call_resumes_in_its_window_is_stopped_and_released(limit):
    async with attached(forever) as (harness, slot, call):
        await call.request(None, **limit)
        await call.frame("append")
        task = slot.attempt.task
        await call.reset()
        while True:
            call = await asyncio.wait_for(harness.calls.get(), SECONDS)
            if not call.hello.HasField("resume"):
                break
            await call.reset()
        assert call.hello.released.run_id == "run"
        assert task.cancelled()


@awaited
async def test_it_leaves_when_its_reply_is_acknowledged():
    async with attached(Agent()) as (_, slot, call):
        await call.request("x", [step("one", "1", 1), step("two", "1", 2)])
        reply = await call.frame("reply")
        slot.leave()
        await call.frame("leave")
        await call.acknowledge(reply.worker_seq)
        with pytest.raises(StopAsyncIteration):
            await call.frame("nothing")


@awaited
async def test_the_agent_writes_each_line_once(tmp_path):
    file = tmp_path / "lines"
    async with attached(durable.reply) as (_, _, call):
        await call.request({"file": str(file), "lines": ["a", "bc"]}, [step("write", "1", 1)])
        for seq in 1, 2:
            await call.step(seq)
            await call.acknowledge(seq)
        assert (await call.frame("reply")).value.data == b"3"
    assert file.read_text() == "run/write/2 bc\n"
