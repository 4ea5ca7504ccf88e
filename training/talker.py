"""Trains the talker and the code predictor on codes, with teacher forcing, on the prompts of real requests.

    python training/talker.py WORK [--sizes demo] [--steps 12000] [--limit-s 480] [--rows 24000]

Needs WORK/vocabulary, and WORK/codes (speech.py --codes-only). Resumes from
WORK/talker.pt. export.py uses the moving average of the weights.
"""

from __future__ import annotations

import argparse
import copy

import paths  # noqa: F401
import torch
import torch.nn.functional as F
from batches import AHEAD_FRAMES, NO_PHONE, Batch, Source, loader, read_examples, split
from codec import add_common
from codes import COARSE, FINE, NEXT, SECOND_NEXT, VOICED
from corpus import FRAME_LABELS
from export import write_layout
from fused import PLAIN, Fused, compiled_for_talker
from guide import Guide
from journal import Journal, Progress, load, save, set_seed
from modules import CausalMemory, initialize, make_trainable
from sizes import BY_NAME
from teacher import PHONE_COUNT
from torch import Tensor, nn

from oscine.audio.pcm import CODEBOOKS
from oscine.model.config import ModelConfig, read_config
from oscine.model.speech_model import Predictor, Talker

_AVERAGE = 0.999
_PHONES_WEIGHT = 0.8
_GUIDE_WEIGHT = 0.4
# Of codes 1 to 15, in the order of codes.py. How a word is pronounced is decided where a phone is named first: mostly
# in SECOND_NEXT. Its loss is small beside those of pitch and energy, which nothing can predict exactly.
_REST_WEIGHTS = (*(2.0,) * 3, 2.0, 8.0, 15.0, 2.0, 2.0, 1.0, 1.0, *(0.5,) * 4, 1.0)
# Shares of the talker's history that are corrupted: whole frames, so that it must read the text; and single codes,
# about as many as it will get wrong at run time. Rarely those that say the phase at the end of a frame, and where
# phones can begin: the next frame needs them.
_CORRUPTED_FRAMES = 0.06
_CORRUPTED_CODES = (*(0.04,) * 7, *(0.1,) * 3, 0.01, *(0.1,) * 4, 0.01)


class SpeakingModel(nn.Module):
    corrupted_codes: Tensor
    rest_weights: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.talker = Talker(config.talker)
        self.predictor = Predictor(config.predictor)
        self.phones = nn.Linear(config.talker.stack.width, AHEAD_FRAMES * FRAME_LABELS * PHONE_COUNT)
        self.guide = Guide(self.talker.stack.layers)
        self.predicted_frames = 1 << 30  # maximum per training step
        self.register_buffer("corrupted_codes", torch.tensor(_CORRUPTED_CODES), persistent=False)
        self.register_buffer("rest_weights", torch.tensor(_REST_WEIGHTS), persistent=False)

    def begin(self, seed: int, dropout: float, fused: Fused = PLAIN) -> None:
        generator = set_seed(seed)
        initialize(self.talker, generator, depth=self.config.talker.stack.layers)
        initialize(self.predictor, generator, depth=self.config.predictor.stack.layers)
        nn.init.normal_(self.predictor.embeddings, std=0.03, generator=generator)  # fifteen are summed
        nn.init.normal_(self.predictor.heads, std=self.config.predictor.stack.width**-0.5, generator=generator)
        make_trainable(self, fused)
        for part in (*self.talker.stack.layers, *self.predictor.stack.layers):
            for writer in (part.attention, part.mlp):
                writer.register_forward_hook(lambda module, _, out: F.dropout(out, dropout, module.training))

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        codes = batch.codes.long()
        hidden = self._hidden(batch, self._corrupted(codes) if self.training else codes)
        looked_elsewhere, looked_right = self.guide(batch)
        # The backward of index_select adds; that of bracket indexing sorts first, which is slower.
        speaking = hidden.index_select(0, torch.cat((batch.frame_rows - 1, batch.last_rows)))
        before = speaking[: len(codes)]
        ends = codes.new_full(batch.last_rows.shape, self.config.talker.eos_id)
        logits = self.talker.head(speaking).float()
        wanted = torch.cat((codes[:, 0], ends))
        first = F.cross_entropy(logits, wanted, reduction="none")
        told = self.phones(before).float().view(-1, PHONE_COUNT)
        rest = self._rest_loss(before, codes)
        return {
            "first": first[: len(codes)].mean(),
            "end": first[len(codes) :].mean(),
            "rest": rest.mean(),
            "rest_weighted": (rest * self.rest_weights).mean(),
            "next_phone": rest[NEXT - 1],
            "second_next": rest[SECOND_NEXT - 1],
            "coarse_pitch": rest[COARSE - 1],
            "fine_pitch": rest[FINE - 1],
            "voiced": rest[VOICED - 1],
            "phones": F.cross_entropy(told, batch.phones.flatten().long(), ignore_index=NO_PHONE),
            "looked_elsewhere": looked_elsewhere,
            "looked_right": looked_right,
            "first_right": (logits.argmax(-1) == wanted).float().mean(),
        }

    def _hidden(self, batch: Batch, codes: Tensor) -> Tensor:
        """[batch * rows, width], with `codes` as the frames of the history."""
        talker, codec_ids = self.talker, batch.codec_ids.int()
        rows = talker.text_rows(batch.text_ids.int())
        rows = rows + talker.code_embedding(codec_ids.clamp(min=0)) * (codec_ids >= 0)[..., None]
        frames = self._frame_rows(codes).to(rows.dtype)
        rows = rows.flatten(0, 1).index_add(0, batch.frame_rows, frames).view(rows.shape)
        return talker.stack(rows, CausalMemory(rows.shape[1], rows.device)).flatten(0, 1)

    def _rest_loss(self, hidden: Tensor, codes: Tensor) -> Tensor:
        """[15], one loss per codebook."""
        if self.training:
            some = torch.randperm(len(codes), device=codes.device)[: self.predicted_frames]
            hidden, codes = hidden.index_select(0, some), codes.index_select(0, some)
        losses = F.cross_entropy(self._rest(hidden, codes).flatten(0, 1), codes[:, 1:].flatten(), reduction="none")
        return losses.view(-1, CODEBOOKS - 1).mean(0)

    def _rest(self, hidden: Tensor, codes: Tensor) -> Tensor:
        """[frames, 15, entries]: the predictor's logits for all positions of all frames in one pass."""
        predictor = self.predictor
        inputs = torch.cat(
            (hidden[:, None], self.talker.code_embedding(codes[:, :1]), predictor.embed(codes[:, 1:])[:, :-1]), dim=1
        )
        out = predictor.stack(predictor.narrow(inputs), CausalMemory(CODEBOOKS, codes.device))[:, 1:]
        return torch.einsum("njd,jvd->njv", out, predictor.heads.to(out.dtype)).float()

    def _frame_rows(self, codes: Tensor) -> Tensor:
        """The sum of a frame's sixteen embeddings, without materializing each of them."""
        entries = self.predictor.embeddings
        offsets = torch.arange(CODEBOOKS - 1, device=codes.device) * entries.shape[1]
        rest = F.embedding_bag(codes[:, 1:] + offsets, entries.flatten(0, 1), mode="sum")
        return self.talker.code_embedding(codes[:, 0]) + rest

    def _corrupted(self, codes: Tensor) -> Tensor:
        """Replaces some codes and some whole frames by those of another frame of the batch."""
        others = codes[torch.randint(len(codes), (len(codes),), device=codes.device)]
        frames = torch.rand(len(codes), 1, device=codes.device) < _CORRUPTED_FRAMES
        single = torch.rand(codes.shape, device=codes.device) < self.corrupted_codes
        return torch.where(frames | single, others, codes)


def total(losses: dict[str, Tensor]) -> Tensor:
    # Ends are one row in fifty; each has the weight of five rows.
    helped = _PHONES_WEIGHT * losses["phones"] + _GUIDE_WEIGHT * losses["looked_elsewhere"]
    return losses["first"] + 0.1 * losses["end"] + losses["rest_weighted"] + helped


class Trainer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.device = options, torch.device(options.device)
        self.sizes = BY_NAME[options.sizes]
        self.folder = options.work / "layout"
        write_layout(self.folder, self.sizes, options.work / "vocabulary")
        set_seed(options.seed)
        self.model = SpeakingModel(read_config(self.folder))
        fused = compiled_for_talker(self.device, self.sizes.inner) if options.compile else PLAIN
        self.model.begin(options.seed, options.dropout, fused)
        self.model.predicted_frames = options.predicted_frames
        self.model.to(self.device)
        self._weights = self.model.state_dict()  # always current: updated in place
        self.average = copy.deepcopy(self._weights)
        self.watched = SpeakingModel(self.model.config)
        self.watched.begin(options.seed, 0.0)
        self.watched.to(self.device).eval()
        plain = [p for p in self.model.parameters() if p.ndim < 2]
        decayed = [p for p in self.model.parameters() if p.ndim >= 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}],
            lr=options.rate, betas=(0.9, 0.98), fused=self.device.type == "cuda",
        )  # fmt: skip
        self.progress = Progress(options.steps, options.limit_s)
        self.path = options.work / "talker.pt"

    def resume(self) -> None:
        state = load(self.path, self.device)
        if state is not None:
            self.model.load_state_dict(state["model"])
            self.average = state["average"]
            if "optimizer" in state:  # not in restored weights
                self.optimizer.load_state_dict(state["optimizer"])
            if not self.options.again:
                self.progress.step, self.progress.before_s = state["step"], state["spent_s"]

    def save(self) -> None:
        state = {
            "model": self._weights, "average": self.average, "optimizer": self.optimizer.state_dict(),
            "step": self.progress.step, "spent_s": self.progress.spent_s, "sizes": self.sizes.as_dict(),
        }  # fmt: skip
        save(self.path, state)

    def step(self, batch: Batch) -> dict[str, Tensor]:
        for group in self.optimizer.param_groups:
            group["lr"] = self.progress.rate(self.options.rate, lowest=0.02, warm_steps=400)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.bf16):
            losses: dict[str, Tensor] = self.model(batch)
        self.optimizer.zero_grad(set_to_none=True)
        total(losses).backward()
        losses["gradient"] = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        # The average forgets faster at first, when weights change quickly.
        keep = min(_AVERAGE, (1 + self.progress.step) / (10 + self.progress.step))
        with torch.no_grad():
            average = [self.average[name] for name in self._weights]
            torch._foreach_lerp_(average, list(self._weights.values()), 1 - keep)
        self.progress.step += 1
        return losses

    @torch.inference_mode()
    def watch(self, batches: list[Batch], journal: Journal) -> None:
        """Validates the averaged weights on held-out utterances."""
        self.watched.load_state_dict(self.average)
        sums: dict[str, float] = {}
        for batch in batches:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.bf16):
                for name, loss in self.watched(batch).items():
                    sums[f"watched_{name}"] = sums.get(f"watched_{name}", 0.0) + float(loss) / len(batches)
        journal.write(step=self.progress.step, part=self.progress.part, spent_s=self.progress.spent_s, **sums)

    def run(self, journal: Journal) -> None:
        examples, watched = split(read_examples(self.options.work / "codes"))
        frames = sum(len(example.codes) for example in examples)
        sizes = {name: sum(p.numel() for p in part.parameters()) for name, part in self.model.named_children()}
        journal.write(begun=True, utterances=len(examples), frames=frames, parameters=sizes)
        rows, seed = self.options.rows, self.options.seed + self.progress.step
        stream = loader(Source(self.folder, examples, rows=rows, seed=seed), self.options.workers)
        kept = iter(Source(self.folder, watched or examples, rows=rows, seed=7, plain=True))
        watch_batches = [next(kept).to(self.device) for _ in range(3)]
        self.model.train()
        saved_s = self.progress.spent_s
        while not self.progress.ended:
            journal.note(self.progress, self.step(next(stream).to(self.device)))
            if self.progress.step % self.options.watch_every == 0 or self.progress.ended:
                self.watch(watch_batches, journal)
            if self.progress.spent_s - saved_s > self.options.save_s:
                self.save()
                saved_s = self.progress.spent_s
        self.save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common(parser, steps=12000, batch=0, rate=1.5e-3)
    parser.add_argument("--rows", type=int, default=24000, help="per batch, including padding")
    # A step has 14,000 frames. With all of them the predictor would be four fifths of the work, and it learns faster.
    parser.add_argument("--predicted-frames", type=int, default=4096)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--watch-every", type=int, default=500)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans for every new shape, and batches have many
    trainer = Trainer(options)
    trainer.resume()
    torch.manual_seed(options.seed + trainer.progress.step)
    trainer.run(Journal(options.work / "log.jsonl", "talker", every=50))


if __name__ == "__main__":
    main()
