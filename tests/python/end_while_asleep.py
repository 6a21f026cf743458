"""A worker on bare stubs whose agent sleeps and listens to nothing while its call is ended.

python end_while_asleep.py ADDRESS AGENT APPENDS SLEEP: takes one request, appends so many outputs,
sleeps so many seconds in the loop that reads the call, and prints as one JSON object when grpcio's
callback ran, when the sleep was over and what the call's code was by then. Seconds since the
request was read.
"""

import json
import queue
import sys
import time
import uuid

import grpc
from harness.v1 import worker_service_pb2 as wire
from harness.v1 import worker_service_pb2_grpc as service

address, agent, appends, sleep = sys.argv[1:]
outbox = queue.SimpleQueue()
hello = wire.Hello(
    protocol_version=1,
    worker=wire.WorkerInfo(worker_id=str(uuid.uuid4())),
    agent=wire.AgentInfo(name=agent),
)
outbox.put(wire.AttachRequest(hello=hello))
call = service.WorkerServiceStub(grpc.insecure_channel(address)).Attach(iter(outbox.get, None))
ends = []
call.add_callback(lambda: ends.append(time.monotonic()))
for frame in call:
    if not frame.HasField("request"):
        continue
    start = time.monotonic()
    for seq in range(1, int(appends) + 1):
        append = wire.Append(run_id=frame.request.run_id, attempt=1, worker_seq=seq)
        append.entry.output.payload.data = b'"piece"'
        outbox.put(wire.AttachRequest(append=append))
    time.sleep(float(sleep))
    woke = time.monotonic()
    told = {
        "time_left": frame.request.time_left.ToNanoseconds() / 1e9,
        "ended": ends[0] - start if ends else None,
        "woke": woke - start,
        "code": call.code().name if ends else None,
    }
    break
outbox.put(None)
print(json.dumps(told))
