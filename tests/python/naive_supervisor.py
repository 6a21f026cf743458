"""What the harness is measured beside: a supervisor that starts a process for every request.

    python naive_supervisor.py WORKER load SECONDS INFLIGHT
    python naive_supervisor.py WORKER crash TIMES
    python naive_supervisor.py WORKER deadline TIMES SECONDS

The idea is the article's: start the worker, write one line, wait for one line with a limit, kill
what is late, reap it. WORKER is a Python file, run by the interpreter that runs this one. Prints
one JSON object, durations in microseconds.
"""

import asyncio
import json
import sys
import time
import uuid

HANG = {"do": "hang"}
PATIENCE = 30.0
# Not counted, as `harness bench` has it.
WARM_UP = 0.5


class Failed(Exception):
    """The request has no reply."""


class Supervisor:
    def __init__(self, worker: str) -> None:
        self.command = [sys.executable, worker]

    async def start(self) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(*self.command, stdin=pipe, stdout=pipe)

    async def ask(self, message: object, timeout: float = PATIENCE) -> object:
        return await self.exchange(await self.start(), message, timeout)

    async def exchange(
        self, process: asyncio.subprocess.Process, message: object, timeout: float
    ) -> object:
        name = uuid.uuid4().hex
        process.stdin.write(json.dumps({"id": name, "message": message}).encode() + b"\n")
        try:
            line = await asyncio.wait_for(process.stdout.readline(), timeout)
        except asyncio.TimeoutError:
            process.kill()
            await process.wait()
            raise Failed("timed out") from None
        process.stdin.close()
        await process.wait()
        if not line:
            raise Failed("died without a reply")
        reply = json.loads(line)
        if reply["id"] != name:
            raise Failed("answered another request")
        if not reply["ok"]:
            raise Failed(reply["error"])
        return reply["value"]


def microseconds(begin: float) -> float:
    return (time.monotonic() - begin) * 1e6


def quantile(sorted_times: list[float], share: float) -> float:
    return sorted_times[max(1, -int(-len(sorted_times) * share // 1)) - 1]


async def load(supervisor: Supervisor, seconds: float, inflight: int) -> dict:
    begin = time.monotonic() + WARM_UP
    end = begin + seconds
    times: list[float] = []

    async def ask_on() -> None:
        while (asked := time.monotonic()) < end:
            message = "x" * 62
            if await supervisor.ask(message) != message:
                raise Failed("answered something else")
            if asked >= begin and time.monotonic() <= end:
                times.append(microseconds(asked))

    await asyncio.gather(*(ask_on() for _ in range(inflight)))
    times.sort()
    return {
        "requests_per_s": len(times) / seconds,
        "p50_us": quantile(times, 0.50),
        "p99_us": quantile(times, 0.99),
        "errors": {},
    }


async def until_another_answers(supervisor: Supervisor, begin: float) -> float:
    await supervisor.ask({"do": "pid"})
    return microseconds(begin)


async def crash(supervisor: Supervisor, times: int) -> dict:
    """From the kill of a worker to the answer of the next."""
    took = []
    for _ in range(times):
        process = await supervisor.start()
        asking = asyncio.create_task(supervisor.exchange(process, HANG, PATIENCE))
        await asyncio.sleep(0.05)
        begin = time.monotonic()
        process.kill()
        try:
            await asking
        except Failed:
            took.append(await until_another_answers(supervisor, begin))
    return {"ready_us": took}


async def deadline(supervisor: Supervisor, times: int, seconds: float) -> dict:
    """From a deadline to the answer of the next worker."""
    took = []
    for _ in range(times):
        process = await supervisor.start()
        due = time.monotonic() + seconds
        try:
            await supervisor.exchange(process, HANG, seconds)
        except Failed:
            took.append(await until_another_answers(supervisor, due))
    return {"ready_us": took}


async def main() -> None:
    worker, what, *numbers = sys.argv[1:]
    measure = {"load": load, "crash": crash, "deadline": deadline}[what]
    integers = {"load": (float, int), "crash": (int,), "deadline": (int, float)}[what]
    arguments = [kind(number) for kind, number in zip(integers, numbers, strict=True)]
    print(json.dumps(await measure(Supervisor(worker), *arguments)))


asyncio.run(main())
