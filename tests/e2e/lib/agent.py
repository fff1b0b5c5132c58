"""The program of the demo: it appends each message to a memory file in its workspace and reads all of it back."""
import os
import sys
import time


class MemoryAgent:
    def __init__(self, session_key, workspace):
        self.session_key = session_key
        self.memory_path = f"{workspace}/memory_{session_key}.txt"

    def remember(self, message):
        with open(self.memory_path, "a", encoding="utf-8") as f:
            f.write(message + "\n")
            f.flush()
            os.fsync(f.fileno())

    def recall(self):
        try:
            with open(self.memory_path, "r", encoding="utf-8") as f:
                return f.read()
        except FileNotFoundError:
            return "(no memory yet)"


def main():
    # The workspace is wherever the program lies: no path is written down.
    agent = MemoryAgent(sys.argv[1], os.path.dirname(os.path.abspath(__file__)))
    if sys.argv[2:3] == ["--work"]:
        lines, seconds = int(sys.argv[3]), float(sys.argv[4])
        for i in range(1, lines + 1):
            print(f"step {i} of {lines}", flush=True)
            time.sleep(seconds / lines)
        return
    for message in sys.argv[2:]:
        agent.remember(message)
    print(agent.recall(), end="")


main()
