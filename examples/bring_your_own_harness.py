"""A harness of your own in Python's standard library, with a journal.

Run it as a deployment's harness, started by Longhaul's runner for each attempt:

    {"kind": "process", "command": ["python3", "/srv/bring_your_own_harness.py"]}

Whatever dies, the next attempt starts this program again from its first line. Steps that are
recorded give what they gave, without being run; the first that is not goes on.
"""

import hashlib
import json
import sys

claim = json.loads(sys.stdin.readline())["claim"]
calls, occurrences = 0, {}


def call(verb, **body):
    """One call of the claim protocol: its status and its body."""
    global calls
    calls += 1
    print(json.dumps({"id": calls, "verb": verb, "body": body}), flush=True)
    answer = json.loads(sys.stdin.readline() or "null")
    if answer is None:
        sys.exit("the runner has gone")
    return answer["status"], answer["body"]


def must(verb, **body):
    status, answer = call(verb, **body)
    if status >= 300:
        call("settle", outcome="failed", error={"code": answer["code"], "message": answer["detail"]})
        sys.exit(answer["detail"])
    return answer


def step(name, given, effect):
    """Runs `effect(given)` once in this run, however often the run is tried."""
    nth = occurrences[name] = occurrences.get(name, -1) + 1
    digest = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()
    begun = must("steps", op="begin", name=name, occurrence=nth, input_digest=digest)
    if begun["state"] == "completed":
        return begun["value"]
    if begun["state"] == "in_doubt":  # Begun by an attempt that died: ask your service, then say.
        must("steps", op="resolve", step_id=begun["step_id"], **{"as": "retry"})
    value = effect(given)
    must("steps", op="complete", step_id=begun["step_id"], value=value)
    return value


def main(work):
    must("ready")
    messages = [e["content"]["text"] for e in claim["inputs"] if e["type"] == "user.message"]
    results = [step("work", word, work) for word in " ".join(messages).split()]
    must("events", events=[{"type": "agent.message", "content": {"text": " ".join(results)}}])
    call("settle", outcome="succeeded")


if __name__ == "__main__":
    main(lambda word: word.upper())
