"""The parts of worker.py that need no harness."""

import json
import sys
import threading

import pytest

import worker
from worker import envelope, wire


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


def test_the_context_tells_when_the_call_has_ended_and_what_time_is_left():
    ended = threading.Event()
    context = worker.Context(request("x", seconds_left=60), ended)
    assert not context.cancelled()
    assert 0 < context.time_left() <= 60
    assert worker.Context(wire.Request(), ended).time_left() == 0
    ended.set()
    assert context.cancelled()
    assert context.wait(60)


def test_back_off_is_jittered_between_1_and_10_seconds():
    waits = [worker.back_off(tries) for tries in range(200)]
    assert all(1 <= wait <= 10 for wait in waits)
    assert worker.back_off(0) <= 2
    assert len(set(waits)) > 100


@pytest.mark.parametrize(
    "address",
    ["localhost:7070", "http://localhost:7070", "https://localhost:7070", "unix:/run/harness.sock"],
)
def test_every_form_of_address_makes_a_channel(address):
    worker.open_channel(address).close()


def test_another_scheme_is_refused_by_name():
    with pytest.raises(ValueError, match="ftp://localhost"):
        worker.open_channel("ftp://localhost")
