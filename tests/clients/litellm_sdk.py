"""LiteLLM's SDK, which speaks to many providers in OpenAI's words; `openai/NAME` is any server with OpenAI's API."""

import litellm
from cases import Answer, Case, cases, raised, tell


def speak(case: Case) -> Answer:
    try:
        got = litellm.speech(api_base=case["url"] + "/v1", api_key="any", max_retries=0, timeout=60, **case["fields"])
    except Exception as error:
        return raised(error, status=getattr(error, "status_code", None))
    return {"audio": got.content, "headers": dict(got.response.headers)}


if __name__ == "__main__":
    tell({name: speak(case) for name, case in cases().items()})
