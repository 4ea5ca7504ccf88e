"""Endpoints of /v1/models: list, describe, add and remove served models."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field, ValidationError

from oscine.config import CheckpointConfig
from oscine.server.http.errors import invalid_field
from oscine.server.http.json_body import JsonRoute
from oscine.server.http.logs import audit
from oscine.server.http.openapi import described
from oscine.server.schemas import Finite, StrictModel
from oscine.server.service import Service
from oscine.speech.capabilities import instruction_examples
from oscine.speech.models import ServedModel
from oscine.speech.routing import OPENAI_MODELS
from oscine.types import EngineState, ModelKind


class ModelInfo(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="Unix seconds.")
    owned_by: str = "oscine"
    root: str | None = Field(description="The served model; None: the one that can do what a request asks for.")
    kind: ModelKind | Literal["any"]
    languages: list[str]
    takes_instructions: bool
    instruction_examples: dict[str, str] = Field(description="Short name -> `instructions` that the model follows.")
    clones: bool
    sample_rate: int
    state: EngineState | Literal["removing"]
    real_time_streams: int = Field(
        description="Streams that stay in real time, estimated from the cost of a frame; 0: not known."
    )
    word_timestamps: list[str] = Field(default=[], description="Languages whose words the server can time.")

    @staticmethod
    def of(model: ServedModel, name: str | None = None) -> ModelInfo:
        """Describes a model. `name`: another name for it."""
        card, status = model.card, model.engine.status()
        return ModelInfo(
            id=name or card.name,
            created=model.created_s,
            root=card.name,
            kind=card.kind,
            languages=["auto", *card.languages],
            takes_instructions=card.takes_instructions,
            instruction_examples=instruction_examples(card),
            clones=card.clones,
            sample_rate=card.sample_rate_hz,
            state=model.state,
            real_time_streams=status.capacity if status.ready else 0,
        )

    @staticmethod
    def of_any(models: list[ServedModel], name: str) -> ModelInfo:
        """Describes a name that stands for whichever model can do what a request asks for."""
        infos = [ModelInfo.of(model, name) for model in models]
        languages = dict.fromkeys(language for info in infos for language in info.languages)
        return infos[0].model_copy(
            update={
                "root": None,
                "kind": "any",
                "languages": list(languages),
                "takes_instructions": any(info.takes_instructions for info in infos),
                "instruction_examples": {},
                "clones": any(info.clones for info in infos),
            }
        )


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelInfo]


class ModelToAdd(StrictModel):
    path: str = Field(description="A checkpoint folder or a hub id that the operator allows.", max_length=4096)
    name: str | None = Field(None, min_length=1, max_length=256, description="Default: the last part of `path`.")
    devices: list[str] | None = Field(None, description="One engine on each. Default: those of the server.")
    dtype: Literal["auto", "float32", "bfloat16"] | None = None
    slots: int | None = Field(None, description="Streams at once, per device. Default: those of the server.")
    memory_share: Finite | None = Field(None, description="Largest share of a device's memory.")

    def checked(self) -> CheckpointConfig:
        """Returns the settings of the model. Raises FieldError."""
        try:
            return CheckpointConfig(**self.model_dump(exclude_none=True))
        except ValidationError as error:
            raise invalid_field(list(error.errors()), of_request=False) from None


class ModelRemoved(BaseModel):
    id: str
    object: Literal["model"] = "model"
    deleted: Literal[True] = True
    streams_cut_off: int = Field(description="Streams that had not ended in time.")


def model_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/models", tags=["models"], route_class=JsonRoute)

    def info(name: str) -> ModelInfo:
        """Describes what a name stands for. Raises NotFoundError."""
        models = list(service.models)
        found = service.models.find(name) or (None if service.models.several else models[0])
        about = ModelInfo.of(found, name) if found else ModelInfo.of_any(models, name)
        aligner = service.aligner
        return about.model_copy(update={"word_timestamps": aligner.known(about.languages)}) if aligner else about

    @router.get("", summary="Served models", responses=described(401))
    async def list_models() -> ModelList:
        """The served models, then other names for them, then those that OpenAI's clients send."""
        served = [model.name for model in service.models]
        return ModelList(data=[info(name) for name in (*served, *service.models.aliases, *OPENAI_MODELS)])

    @router.get("/{model_id:path}", summary="One model", responses=described(401, 404))
    async def get_model(model_id: str) -> ModelInfo:
        return info(model_id)

    @router.post("", status_code=201, summary="Add a model", responses=described(400, 401, 403, 409, 503))
    async def add_model(body: ModelToAdd, request: Request) -> ModelInfo:
        """Answers when the model has generated its first audio, which may take minutes. Needs an admin key."""
        service.api_keys.check_admin(request.headers)
        service.check_not_draining()
        added = await service.model_admin.add(body.checked())
        audit("model added", model=added.name)
        return ModelInfo.of(added)

    @router.delete("/{model_id:path}", summary="Remove a model", responses=described(401, 403, 400, 404, 409))
    async def remove_model(
        model_id: str,
        request: Request,
        drain_s: Annotated[float | None, Query(ge=0, le=86400, description="Default: `server.drain_s`.")] = None,
    ) -> ModelRemoved:
        """Refuses new requests for the model at once. Its running streams may continue for `drain_s` seconds, then they
        are cut off. Answers when its memory is free. Needs an admin key."""
        service.api_keys.check_admin(request.headers)
        cut_off = await service.model_admin.remove(model_id, service.config.drain_s if drain_s is None else drain_s)
        audit("model removed", model=model_id, streams_cut_off=cut_off)
        return ModelRemoved(id=model_id, streams_cut_off=cut_off)

    return router
