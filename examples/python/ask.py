"""Asks an agent: python ask.py AGENT TEXT. The run's timeout is 2 s, the gRPC deadline 1 s later."""

import json
import os
import sys
from pathlib import Path

import grpc
from grpc_status import rpc_status

sys.path.append(str(Path(__file__).parent / "gen"))
from harness.v1 import envelope_pb2 as envelope
from harness.v1 import run_service_pb2 as wire
from harness.v1 import run_service_pb2_grpc as service

agent, text = sys.argv[1:]
address = os.environ.get("HARNESS_ADDRESS", "127.0.0.1:7070").removeprefix("http://")
# For a Unix socket grpcio would send the percent-encoded path, which is no valid authority.
options = [("grpc.default_authority", "localhost")] if address.startswith("unix:") else None
request = wire.AskRequest(agent=agent)
request.payload.data = json.dumps(text).encode()
request.options.timeout.FromSeconds(2)
stub = service.RunServiceStub(grpc.insecure_channel(address, options))
try:
    answer = stub.Ask(request, timeout=3)
    print(json.loads(answer.payload.data))
except grpc.RpcError as failure:
    error, status = envelope.Error(), rpc_status.from_call(failure)
    if any(detail.Unpack(error) for detail in (status.details if status else [])):
        sys.exit(f"{envelope.ErrorCode.Name(error.code)}: {error.message}")
    sys.exit(f"{failure.code().name}: {failure.details()}")  # such as no harness at this address
