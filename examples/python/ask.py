"""Asks an agent: python ask.py AGENT TEXT. The run's timeout is 2 s, the gRPC deadline 1 s later."""

import json, os, sys

import grpc
from grpc_status import rpc_status
from worker import envelope, open_channel  # the stubs in gen/, and every form of address
from harness.v1 import run_service_pb2 as wire, run_service_pb2_grpc as service

stub = service.RunServiceStub(open_channel(os.environ.get("HARNESS_ADDRESS") or "127.0.0.1:7070"))
request = wire.AskRequest(agent=sys.argv[1], payload={"data": json.dumps(sys.argv[2]).encode()})
request.options.timeout.FromSeconds(2)
try:
    print(json.loads(stub.Ask(request, timeout=3).payload.data))
except grpc.RpcError as failure:
    error, status = envelope.Error(), rpc_status.from_call(failure)
    if status and any(detail.Unpack(error) for detail in status.details):
        sys.exit(f"{envelope.ErrorCode.Name(error.code)}: {error.message}")
    sys.exit(f"{failure.code().name}: {failure.details()}")  # such as no harness at this address
