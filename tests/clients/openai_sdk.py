"""OpenAI's own SDK. `how` names the way to ask: one of the functions below."""

import time
from typing import Any

import openai
from cases import Answer, Case, cases, raised, tell


def _client(case: Case, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=case["url"] + "/v1", api_key=case.get("key", "any"), **{"max_retries": 0, "timeout": 60, **options}
    )


def create(case: Case) -> Answer:
    """The whole answer at once, as most programs ask for it."""
    with _client(case) as client:
        got = client.audio.speech.create(**case["fields"])
        return {"audio": got.content, "headers": dict(got.response.headers)}


def stream(case: Case) -> Answer:
    with _client(case) as client, client.audio.speech.with_streaming_response.create(**case["fields"]) as got:
        chunks = list(got.iter_bytes())
        return {"audio": b"".join(chunks), "chunks": len(chunks), "headers": dict(got.headers)}


def events(case: Case) -> Answer:
    """The SDK has no types for these events: it hands over the lines."""
    fields = {**case["fields"], "stream_format": "sse"}
    with _client(case) as client, client.audio.speech.with_streaming_response.create(**fields) as got:
        return {"lines": list(got.iter_lines()), "headers": dict(got.headers)}


def first_chunk(case: Case) -> Answer:
    """Leaves as soon as there is something to hear."""
    with _client(case) as client, client.audio.speech.with_streaming_response.create(**case["fields"]) as got:
        return {"audio": next(got.iter_bytes())}


def again(case: Case) -> Answer:
    """Holds the only stream there may be, asks for another one, and lets go of the first when that was refused: what
    the SDK is told to wait is all that stands between its first attempt and its success."""
    refusals = []

    def refused(response: Any) -> None:
        if response.status_code == 429:
            refusals.append(response.headers["retry-after"])
            held.close()

    # The SDK's own default client, as httpx has moved from one major version of the SDK to the next.
    with _client(case) as client, openai.DefaultHttpxClient(event_hooks={"response": [refused]}) as listening:
        holding = client.audio.speech.with_streaming_response.create(**case["held"])
        with holding as held:
            pieces = held.iter_bytes()  # kept: the answer is closed with its iterator
            next(pieces)
            try:
                client.audio.speech.create(**case["fields"])
                raise AssertionError("a second stream was let in")
            except openai.APIStatusError as error:
                refusal = _told(error)
            begun_s = time.monotonic()
            with _client(case, http_client=listening, max_retries=5) as patient:
                got = patient.audio.speech.create(**case["fields"])
        waited_s = time.monotonic() - begun_s
    return {"audio": got.content, "refusal": refusal, "refusals": refusals, "waited_s": waited_s}


def _told(error: openai.APIStatusError) -> Answer:
    return raised(
        error,
        status=error.status_code,
        code=error.code,
        param=error.param,
        type=error.type,
        body=error.body,
        request_id=error.request_id,
        retry_after=error.response.headers.get("retry-after"),
    )


_WAYS = {way.__name__: way for way in (create, stream, events, first_chunk, again)}


def speak(case: Case) -> Answer:
    try:
        return _WAYS[case["how"]](case)
    except openai.APIStatusError as error:
        return _told(error)
    except Exception as error:
        return raised(error)


if __name__ == "__main__":
    tell({name: speak(case) for name, case in cases().items()})
