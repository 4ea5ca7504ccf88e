"""OpenAI's own SDK. `how` names the kind of request: one of the functions below."""

import base64
import time
from typing import Any

import openai
from cases import Answer, Case, cases, raised, report
from openai.pagination import SyncCursorPage
from openai.types.audio import Voice


def _client(case: Case, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=case["url"] + "/v1", api_key=case.get("key", "any"), **{"max_retries": 0, "timeout": 600, **options}
    )


def create(case: Case) -> Answer:
    """The whole response at once, as most programs request it."""
    with _client(case) as client:
        got = client.audio.speech.create(**case["fields"])
        return {"audio": got.content, "headers": dict(got.response.headers)}


def stream(case: Case) -> Answer:
    with _client(case) as client, client.audio.speech.with_streaming_response.create(**case["fields"]) as got:
        chunks = list(got.iter_bytes())
        return {"audio": b"".join(chunks), "chunks": len(chunks), "headers": dict(got.headers)}


def events(case: Case) -> Answer:
    """The SDK has no types for these events; it returns the lines."""
    fields = {**case["fields"], "stream_format": "sse"}
    with _client(case) as client, client.audio.speech.with_streaming_response.create(**fields) as got:
        return {"lines": list(got.iter_lines()), "headers": dict(got.headers)}


def first_chunk(case: Case) -> Answer:
    """Disconnects after the first audio."""
    with _client(case) as client, client.audio.speech.with_streaming_response.create(**case["fields"]) as got:
        return {"audio": next(got.iter_bytes())}


def models(case: Case) -> Answer:
    """What the SDK makes of the list, of one model, and of one that there is not."""
    with _client(case) as client:
        listed = client.models.list().data
        one = client.models.retrieve(listed[0].id)
        try:
            client.models.retrieve("nothing")
        except openai.NotFoundError as error:
            return {"ids": [model.id for model in listed], "one": one.model_dump(), "missing": _api_error(error)}
    raise AssertionError("a model was found that there is not")


def voices(case: Case) -> Answer:
    """Creates a voice, speaks with it, lists, replaces and deletes it, with the SDK's own types. It has no method for
    the list."""
    sample = ("anna.wav", base64.b64decode(case["sample"]), "audio/wav")
    asked = {"name": case["name"], "audio_sample": sample, "consent": "cons_1234"}
    with _client(case) as client:
        created = client.audio.voices.create(**asked, type="audio_sample")
        spoken = client.audio.speech.create(**case["fields"], voice={"id": created.id})
        listed = client.get("/audio/voices", cast_to=SyncCursorPage[Voice])
        extra = {"ref_text": "hello", "overwrite": True}
        replaced = client.audio.voices.create(**asked, extra_body=extra)
        deleted = client.audio.voices.delete(created.id)
        errors = []
        for attempt in (
            lambda: client.audio.voices.delete(created.id),
            lambda: client.audio.voices.create(name="a", prompt="a small bird", type="prompt"),
        ):
            try:
                attempt()
            except openai.APIStatusError as error:
                errors.append(_api_error(error))
        return {
            "audio": spoken.content,
            "created": created.model_dump(),
            "listed": [voice.model_dump() for voice in listed.data],
            "replaced": replaced.model_dump(),
            "deleted": deleted.model_dump(),
            "errors": errors,
        }


def consent(case: Case) -> Answer:
    """OpenAI's way to a voice: a consent recording, then a voice that names it, then speech."""
    recording = ("anna.wav", base64.b64decode(case["sample"]), "audio/wav")
    with _client(case) as client:
        consents = client.audio.voice_consents
        given = consents.create(name="Anna", language="en-US", recording=recording)
        voice = client.audio.voices.create(name=case["name"], audio_sample=recording, consent=given.id)
        spoken = client.audio.speech.create(**case["fields"], voice={"id": voice.id})
        renamed = consents.update(given.id, name="Anna B.")
        listed, one = list(consents.list(limit=1)), consents.retrieve(given.id)
        client.audio.voices.delete(voice.id)
        return {
            "audio": spoken.content,
            "given": given.model_dump(),
            "renamed": renamed.model_dump(),
            "listed": [consent.model_dump() for consent in listed],
            "one": one.model_dump(),
            "deleted": consents.delete(given.id).model_dump(),
        }


def again(case: Case) -> Answer:
    """Holds the only allowed stream, requests another one, and closes the first when the second is refused. The SDK's
    retry then succeeds after the time in Retry-After."""
    refusals = []

    def refused(response: Any) -> None:
        if response.status_code == 429:
            refusals.append(response.headers["retry-after"])
            held.close()

    # The SDK's own default client: its httpx differs between major versions of the SDK.
    with _client(case) as client, openai.DefaultHttpxClient(event_hooks={"response": [refused]}) as listening:
        holding = client.audio.speech.with_streaming_response.create(**case["held"])
        with holding as held:
            pieces = held.iter_bytes()  # keep it: the response is closed with its iterator
            next(pieces)
            try:
                client.audio.speech.create(**case["fields"])
                raise AssertionError("a second stream was admitted")
            except openai.APIStatusError as error:
                refusal = _api_error(error)
            begun_s = time.monotonic()
            with _client(case, http_client=listening, max_retries=5) as patient:
                got = patient.audio.speech.create(**case["fields"])
        waited_s = time.monotonic() - begun_s
    return {"audio": got.content, "refusal": refusal, "refusals": refusals, "waited_s": waited_s}


def _api_error(error: openai.APIStatusError) -> Answer:
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


_WAYS = {way.__name__: way for way in (create, stream, events, first_chunk, models, voices, consent, again)}


def speak(case: Case) -> Answer:
    try:
        return _WAYS[case["how"]](case)
    except openai.APIStatusError as error:
        return _api_error(error)
    except Exception as error:
        return raised(error)


if __name__ == "__main__":
    report({name: speak(case) for name, case in cases().items()})
