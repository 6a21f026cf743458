"""An asyncio worker for the benchmark: echoes payloads over the generated stubs.

    echo_asyncio.py ADDRESS SLOTS          a worker of the minimal level, agent `echo`
    echo_asyncio.py ADDRESS SLOTS --bare   the same that never says released, for the benchmark's floor
    echo_asyncio.py                        a process of a pool, which the environment tells the rest
"""

import asyncio
import copy
import os
import sys
import uuid

import grpc
from harness.v1 import worker_service_pb2 as wire
from harness.v1 import worker_service_pb2_grpc as service


# The harness is away, or does not want this worker back.
FINAL = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION,
         grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}


def credentials():
    token = os.environ.get("HARNESS_TOKEN")
    return [("authorization", f"Bearer {token}")] if token else []


async def slot(stub, hello, bare):
    """One call after the other: the last asks of a load are cancelled, which ends theirs."""
    while True:
        call = stub.Attach(metadata=credentials())
        await call.write(wire.AttachRequest(hello=hello))
        try:
            async for frame in call:
                if frame.WhichOneof("frame") == "drain":
                    await call.done_writing()
                    await call.code()
                    return
                if frame.WhichOneof("frame") != "request":
                    continue
                request = frame.request
                reply = wire.Reply(run_id=request.run_id, attempt=request.attempt, worker_seq=1)
                reply.value.CopyFrom(request.payload)
                await call.write(wire.AttachRequest(reply=reply))
                if not bare:
                    hello.released.run_id, hello.released.attempt = request.run_id, request.attempt
                    hello.released.lease = request.lease
        except grpc.aio.AioRpcError as end:
            # A write that crosses the end gets a code of grpcio's own.
            if end.code() in FINAL:
                raise


async def main(address, slots, bare):
    hello = wire.Hello(protocol_version=1)
    hello.agent.name = os.environ.get("HARNESS_AGENT") or "echo"
    hello.worker.worker_id, hello.worker.pid = str(uuid.uuid4()), os.getpid()
    # grpcio would send the percent-encoded path of a socket, which is no valid HTTP/2 authority.
    unix = [("grpc.default_authority", "localhost")] if address.startswith("unix:") else []
    async with grpc.aio.insecure_channel(address, unix) as channel:
        stub = service.WorkerServiceStub(channel)
        await asyncio.gather(*(slot(stub, copy.deepcopy(hello), bare) for _ in range(slots)))


if len(sys.argv) > 1:
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), "--bare" in sys.argv))
else:
    asyncio.run(main(os.environ["HARNESS_ADDRESS"], 1, False))
