"""The requests of Open WebUI (0.10), which cannot be installed beside the others: voices and models without a key, then
speech as it stores it. It puts these paths behind the base URL in its settings."""

import asyncio

import aiohttp
from cases import Answer, Case, attempt, cases, report


async def speak(case: Case) -> Answer:
    base = case["url"] + "/open-webui/v1"
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        async with session.get(f"{base}/audio/voices") as got:
            offered = {voice["id"]: voice["name"] for voice in (await got.json())["voices"]}
        async with session.get(f"{base}/audio/models", raise_for_status=False) as got:
            assert got.status == 404  # only then it asks for /models
        async with session.get(f"{base}/models") as got:
            models = [model["id"] for model in (await got.json())["data"]]
        payload = {"model": models[0], "input": case["text"], "voice": list(offered)[-1]}
        async with session.post(f"{base}/audio/speech", json=payload, headers={"authorization": "Bearer any"}) as got:
            return {"audio": await got.read(), "type": got.content_type, "voices": offered}


async def main() -> None:
    report({name: await attempt(speak, case) for name, case in cases().items()})


if __name__ == "__main__":
    asyncio.run(main())
