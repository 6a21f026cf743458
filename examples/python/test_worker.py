"""The parts of worker.py that need no harness."""

import json
import sys
import threading

import pytest

import worker
from worker import Code, envelope, wire


def request(value, seconds_left=2):
    made = wire.Request(run_id="r", attempt=3, lease=b"l")
    made.payload.data = json.dumps(value).encode()
    made.time_left.FromSeconds(seconds_left)
    return made


def answered(value, agent):
    context = worker.Context(request(value), threading.Event())
    return worker.answer(request(value), agent, context).reply


def test_reply_is_a_plain_function():
    assert worker.reply("hello", None) == "HELLO!"


def test_a_returned_value_is_answered_as_json_under_the_attempt_that_asked():
    frame = answered({"a": 1}, lambda message, _: [message, None])
    assert (frame.run_id, frame.attempt, frame.worker_seq) == ("r", 3, 1)
    assert frame.value.content_type == "application/json"
    assert json.loads(frame.value.data) == [{"a": 1}, None]


def test_an_absent_payload_is_null():
    context = worker.Context(wire.Request(), threading.Event())
    frame = worker.answer(wire.Request(), lambda message, _: message is None, context).reply
    assert frame.value.data == b"true"


@pytest.mark.parametrize(
    ("agent", "type_name", "message"),
    [
        (lambda message, _: 1 / message, "ZeroDivisionError", "division by zero"),
        (lambda *_: sys.exit(3), "SystemExit", "3"),
        (lambda *_: float("nan"), "ValueError", "not JSON compliant"),
        (lambda *_: object(), "TypeError", "not JSON serializable"),
    ],
)
def test_what_reply_raises_or_cannot_return_is_an_agent_error(agent, type_name, message):
    frame = answered(0, agent)
    assert frame.WhichOneof("outcome") == "error"
    assert frame.error.code == envelope.ERROR_CODE_AGENT_ERROR
    assert frame.error.type == type_name
    assert message in frame.error.message


def test_an_error_text_is_cut_and_never_breaks_the_frame():
    def fail(*_):
        raise ValueError("\ud800" + "ä" * 10_000)

    message = answered(0, fail).error.message
    assert message.startswith("?ä")
    assert 4090 < len(message.encode()) <= 4096


def test_the_context_tells_when_the_call_has_ended_and_what_time_is_left():
    ended = threading.Event()
    context = worker.Context(request("x", seconds_left=60), ended)
    assert not context.cancelled()
    assert 0 < context.time_left() <= 60
    assert worker.Context(wire.Request(), ended).time_left() == 0
    ended.set()
    assert context.cancelled()
    assert context.wait(60)


@pytest.mark.parametrize(
    "address",
    ["localhost:7070", "http://localhost:7070", "unix:/run/harness.sock"],
)
def test_every_form_of_address_makes_a_channel(address):
    worker.open_channel(address).close()


@pytest.mark.parametrize("address", ["ftp://localhost:1", "https://localhost:1"])
def test_another_scheme_is_refused_by_name(address):
    with pytest.raises(ValueError, match=address):
        worker.open_channel(address)


class Call(list):
    """An Attach call that welcomes, then ends with `end`, as grpcio shows it."""

    def __init__(self, end, welcome=True):
        super().__init__([wire.AttachResponse(welcome=wire.Welcome())] if welcome else [])
        self.end = end

    def add_callback(self, _):
        return True

    def code(self):
        return self.end

    def details(self):
        return "over"


class Calls:
    """A stub whose calls end one after the other as told, the last one with OK."""

    def __init__(self, *calls):
        self.calls, self.hellos, self.shown = [*calls, Call(Code.OK)], [], []

    def Attach(self, frames, metadata):
        self.hellos.append(next(frames).hello)
        self.shown.append(metadata)
        return self.calls.pop(0)


@pytest.fixture
def waits(monkeypatch):
    """Every back-off, as the least and the most it may take; none is slept."""
    seen = []
    monkeypatch.setattr(worker.random, "uniform", lambda *least_most: seen.append(least_most) or 0)
    return seen


@pytest.mark.parametrize("code", [Code.DEADLINE_EXCEEDED, Code.CANCELLED, Code.ABORTED])
def test_after_a_stop_it_comes_back_at_once_though_it_never_read_a_request(code, waits):
    assert worker.Worker(Calls(Call(code), Call(code)), wire.Hello(), worker.reply).slot()
    assert waits == []


@pytest.mark.parametrize(
    ("code", "said"),
    [(Code.DEADLINE_EXCEEDED, True), (Code.RESOURCE_EXHAUSTED, True), (Code.UNAVAILABLE, False)],
)
def test_what_was_answered_is_released_when_the_harness_ended_the_call(code, said, waits):
    call = Call(code)
    call.append(wire.AttachResponse(request=request("x")))
    stub = Calls(call)
    assert worker.Worker(stub, wire.Hello(), worker.reply).slot()
    assert [hello.released.run_id for hello in stub.hellos] == ["", "r" if said else ""]


def test_other_ends_are_waited_out_for_longer_and_longer_until_a_welcome(waits):
    away = [Call(Code.UNAVAILABLE, welcome=False) for _ in range(5)]
    calls = Calls(Call(Code.ABORTED, welcome=False), *away, Call(Code.UNAVAILABLE))
    assert worker.Worker(calls, wire.Hello(), worker.reply).slot()
    assert waits == [(1, most) for most in (2, 4, 8, 10, 10, 10, 2)]


def test_a_refusal_is_for_good():
    calls = Calls(Call(Code.INVALID_ARGUMENT, welcome=False))
    assert not worker.Worker(calls, wire.Hello(), worker.reply).slot()


@pytest.mark.parametrize(
    ("token", "shown"), [("secret", [("authorization", "Bearer secret")]), ("", []), (None, [])]
)
def test_every_call_shows_the_token_that_a_pool_has_given(token, shown, waits, monkeypatch):
    monkeypatch.delenv("HARNESS_TOKEN", raising=False)
    if token is not None:
        monkeypatch.setenv("HARNESS_TOKEN", token)
    calls = Calls(Call(Code.CANCELLED))
    assert worker.Worker(calls, wire.Hello(), worker.reply).slot()
    assert calls.shown == [shown, shown]
