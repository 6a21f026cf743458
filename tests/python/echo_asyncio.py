"""An asyncio worker for the benchmark: echoes payloads over the generated stubs.

    echo_asyncio.py ADDRESS SLOTS          a worker of the minimal level, agent `echo`
    echo_asyncio.py ADDRESS SLOTS --bare   the same that never says released, for the benchmark's floor
"""

import asyncio
import copy
import sys
import uuid

import grpc
from harness.v1 import worker_service_pb2 as wire
from harness.v1 import worker_service_pb2_grpc as service


async def slot(stub, hello, bare):
    """One call after the other: the last asks of a load are cancelled, which ends theirs."""
    while True:
        call = stub.Attach()
        await call.write(wire.AttachRequest(hello=hello))
        try:
            async for frame in call:
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
            if end.code() == grpc.StatusCode.UNAVAILABLE:
                raise


async def main(address, slots, bare):
    hello = wire.Hello(protocol_version=1)
    hello.agent.name, hello.worker.worker_id = "echo", str(uuid.uuid4())
    async with grpc.aio.insecure_channel(address) as channel:
        stub = service.WorkerServiceStub(channel)
        await asyncio.gather(*(slot(stub, copy.deepcopy(hello), bare) for _ in range(slots)))


asyncio.run(main(sys.argv[1], int(sys.argv[2]), "--bare" in sys.argv))
