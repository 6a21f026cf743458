# worker.py
import json
import sys
from agent import Agent
agent = Agent()
request = json.loads(sys.stdin.readline())
try:
    value = agent.reply(request["message"])
    reply = {
        "id": request["id"],
        "ok": True,
        "value": value,
    }
except Exception as exc:
    reply = {
        "id": request["id"],
        "ok": False,
        "error": str(exc),
    }
sys.stdout.write(json.dumps(reply) + "\n")
sys.stdout.flush()
