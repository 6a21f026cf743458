# agent.py
class Agent:
    def reply(self, message: str) -> str:
        return f"Agent received: {message}"
