"""Asks over grpcio and prints everything that came back as one JSON object.

python ask.py ADDRESS AGENT PAYLOAD TIMEOUT GRPC_TIMEOUT: the run's timeout and the call's own
deadline, both in seconds.
"""

import json
import sys
import time

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from harness.v1 import envelope_pb2 as envelope
from harness.v1 import run_service_pb2 as wire
from harness.v1 import run_service_pb2_grpc as service

address, agent, payload, timeout, grpc_timeout = sys.argv[1:]
request = wire.AskRequest(agent=agent)
request.payload.data = payload.encode()
request.options.timeout.FromNanoseconds(int(float(timeout) * 1e9))
stub = service.RunServiceStub(grpc.insecure_channel(address))
told = {}
start = time.monotonic()
try:
    told["reply"] = stub.Ask(request, timeout=float(grpc_timeout)).payload.data.decode()
except grpc.RpcError as failure:
    told["status"] = failure.code().name
    told["details"] = failure.details()
    status = rpc_status.from_call(failure)
    error, info = envelope.Error(), error_details_pb2.ErrorInfo()
    for detail in status.details if status else []:
        if detail.Unpack(error):
            told["code"] = envelope.ErrorCode.Name(error.code)
            told["message"] = error.message
            told["truncated"] = error.truncated
        elif detail.Unpack(info):
            told["reason"] = info.reason
told["seconds"] = time.monotonic() - start
print(json.dumps(told))
