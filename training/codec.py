"""Trains the decoder of the codec: the model's own at small widths, from the codes of codes.py to audio. There is no
encoder: the teacher makes the codes.

    python training/codec.py WORK [--sizes demo] [--seconds 1300] [--batch 16] [--again]

Resumes from WORK/codec.pt if it exists. Steps are small: short crops. At first there are no discriminators, and the
decoder learns the phases of the harmonics, which follow from the codes. On a GPU a step is a CUDA graph (captured.py),
unless --no-graph is given.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import paths  # noqa: F401
import torch
import torch.nn.functional as F
from balance import Average, Balance
from captured import CapturedStep, Step
from codes import (
    BEND,
    BENDS_PER_PERIOD,
    ENERGIES,
    FINE,
    LAST_PHONE,
    MAX_BEND,
    MAX_ENERGY,
    ORDERED,
    PHONES,
    QUARTERS,
    SLOT_QUARTERS,
    SLOTS,
    STEPS,
    obstruent_numbers,
)
from corpus import FRAME_LABELS, Corpus
from discriminator import Discriminators
from fused import PLAIN, compiled_for_codec
from heads import PhaseHeads, SpectrumHead
from journal import Journal, Progress, load, save, set_seed
from losses import MelLoss, adversarial_loss, discriminator_loss, feature_loss, phase_loss
from modules import decode_latent, initialize, make_trainable
from pitch import parabola
from recognizer import PhoneRecognizer
from sizes import BY_NAME, FRAME_SAMPLES, Sizes, codec_config
from torch import Tensor, nn

from oscine.audio.pcm import CODEBOOKS
from oscine.model.codec import Codec, ResidualUnit
from oscine.model.config import parse_codec_config

CONTEXT_FRAMES = 4  # before the judged frames, because a crop starts in the middle of speech
JUDGED_FRAMES = 8  # 0.64 s
CROP_FRAMES = CONTEXT_FRAMES + JUDGED_FRAMES
_ENTRY_STD = 0.3
_MAX_GRADIENT = 50.0
_MEL_WEIGHT = 15.0
_FEATURE_WEIGHT = 2.0  # relative to the adversarial loss
_RECOGNIZER_RATE = 1e-3
_LAST_PHASES, _LAST_SPECTRUM = 0.03, 0.3  # of the weights of the heads, at the end
_EMPHASIS = 3.0  # of noises and bursts in the spectrum
_ENERGY_NOISE = 0.7  # standard deviation, in steps of the code
# Steps between which the share of new discriminators, and of a new recognizer, grows to its full size.
_RAMP = (300, 1500)


class CodecModel(nn.Module):
    """The decoder and the tables of its codes."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.decoder = Codec(parse_codec_config(codec_config(sizes)))
        del self.decoder.dequantizer  # the parameters below take its place until export
        width = sizes.codebook_dim // 2
        self.entries = nn.Parameter(torch.zeros(CODEBOOKS, sizes.codebook_size, width))
        self.output_proj = nn.Parameter(torch.zeros(2, sizes.codebook_dim, width))
        self.phase_heads = PhaseHeads((sizes.latent, *self.decoder.config.decoder.vocoder_widths[1:]))
        self.spectrum_head = SpectrumHead(sizes.latent)

    def begin(self, seed: int) -> None:
        generator = set_seed(seed)
        initialize(self.decoder, generator, depth=1)
        nn.init.normal_(self.entries, std=_ENTRY_STD, generator=generator)
        nn.init.normal_(self.output_proj, std=self.output_proj.shape[-1] ** -0.5, generator=generator)
        with torch.no_grad():
            # Smooth random functions, so that rare numbers are close to their neighbors.
            _, size, width = self.entries.shape
            for book in ORDERED:
                speed, start = torch.rand(2, width, generator=generator) * torch.tensor([[0.5], [6.3]])
                self.entries[book] = torch.cos(torch.arange(size)[:, None] * speed + start) * 1.4 * _ENTRY_STD
            # The phase at the start of each slot is the sum of what these two say, in dimensions of their own.
            self.entries[1:, :, : 4 * SLOTS] = 0.0
            number, slot = torch.arange(size)[:, None], torch.arange(SLOTS)
            phase = number % QUARTERS / QUARTERS + number // QUARTERS * slot / SLOT_QUARTERS
            self.entries[FINE, :, : 2 * SLOTS] = _circle(phase)
            phase = (number - MAX_BEND) / BENDS_PER_PERIOD * parabola(slot / SLOTS)
            self.entries[BEND, :, 2 * SLOTS : 4 * SLOTS] = _circle(phase)
            self.decoder.vocoder_out.weight.mul_(0.1)
            for part in self.decoder.modules():
                if isinstance(part, ResidualUnit):
                    part.conv2.weight.mul_(0.3)  # a block sums three of them

    def forward(self, codes: Tensor, stages: list[Tensor] | None = None) -> Tensor:
        """codes [batch, frames, 16] -> samples [batch, frames * 1920]; see decode_latent."""
        # The backward of index_select adds; that of bracket indexing sorts first, which is slower.
        entries = [
            self.entries[book].index_select(0, codes[..., book].flatten()).view(*codes.shape[:-1], -1)
            for book in range(CODEBOOKS)
        ]
        with torch.autocast(codes.device.type, enabled=False):  # sums of sixteen need more than eight bits
            latent = entries[0] @ self.output_proj[0].T + torch.stack(entries[1:]).sum(0) @ self.output_proj[1].T
        return decode_latent(self.decoder, latent, stages).float()


def _circle(phase: Tensor) -> Tensor:
    angle = 2 * math.pi * phase
    return torch.cat((angle.cos(), angle.sin()), 1)


def load_codec(path: Path, device: torch.device) -> CodecModel:
    """The averaged weights."""
    state = load(path, device)
    if state is None:
        raise FileNotFoundError(f"{path} is missing; run codec.py first")
    model = CodecModel(Sizes(**state["sizes"]))
    make_trainable(model)
    model.to(device).load_state_dict(state["model"])
    return model.eval().requires_grad_(False)


def judged_part(x: Tensor, begins: Tensor, per_frame: int) -> Tensor:
    """The judged frames of each crop: the first ones at the start of an utterance, else the last ones."""
    skipped = CONTEXT_FRAMES * per_frame
    return torch.where(begins[:, None], x[:, : x.shape[1] - skipped], x[:, skipped:])


def with_noise(codes: Tensor) -> Tensor:
    """Adds noise to the energies, so that the decoder learns from the other codes which phone it is."""
    first, last = ENERGIES[0], ENERGIES[-1] + 1
    energies = codes[..., first:last]
    noise = (torch.randn_like(energies, dtype=torch.float32) * _ENERGY_NOISE).round().long()
    return torch.cat((codes[..., :first], (energies + noise).clamp(0, MAX_ENERGY), codes[..., last:]), -1)


def adamw(parameters: Iterable[nn.Parameter], rate: float, device: torch.device, **more: Any) -> torch.optim.AdamW:
    """The rate is a tensor that `set_rate` changes in place; a CUDA graph would capture a number."""
    return torch.optim.AdamW(
        parameters, lr=torch.tensor(rate, device=device), fused=True, capturable=device.type == "cuda", **more
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"].fill_(rate)


def _ramp(step: int) -> float:
    first, last = _RAMP
    return min(1.0, max(0.0, (step - first) / (last - first)))


class Trainer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.device = torch.device(options.device)
        self.options = options
        self.sizes = BY_NAME[options.sizes]
        set_seed(options.seed)
        self.model = CodecModel(self.sizes)
        self.model.begin(options.seed)
        make_trainable(self.model.decoder, compiled_for_codec(self.device) if options.compile else PLAIN)
        small = options.sizes == "toy"
        self.judges = Discriminators(widths=(4, 8), spectrum_width=4) if small else Discriminators()
        self.mel = MelLoss().to(self.device)
        self.model.to(self.device)
        self.judges.to(self.device)
        self.recognizer = PhoneRecognizer().to(self.device)  # never saved: it learns within seconds
        self.judge_rate = options.rate * options.judge_rate
        self.making = adamw(self.model.parameters(), options.rate, self.device, betas=(0.8, 0.99), weight_decay=0.01)
        self.judging = adamw(self.judges.parameters(), self.judge_rate, self.device, betas=(0.8, 0.99))
        self.recognizing = adamw(self.recognizer.parameters(), _RECOGNIZER_RATE, self.device)
        self.average = Average(dict(self.model.named_parameters()), self.device)
        self.balance = Balance(("judged", "recognized", "phase"), self.device)
        self.trained_judges = False
        self.progress = Progress(options.steps, options.limit_s)
        self.path = options.work / "codec.pt"
        self.captures: bool = options.graph and self.device.type == "cuda"
        self.current_step: Step | None = None
        self.heads_weights = torch.zeros(2, device=self.device)
        self.emphasis = torch.ones(self.sizes.codebook_size)
        self.emphasis[obstruent_numbers()] = _EMPHASIS
        self.emphasis = self.emphasis.to(self.device)
        self.judged_from: int | None = None  # the step from which on discriminators take part

    def resume(self) -> None:
        state = load(self.path, self.device)
        if state is None:
            return
        self.model.load_state_dict(state.get("raw", state["model"]))
        if state["judges"]:  # missing after steps without them and after `keep.py --small`
            self.judges.load_state_dict(state["judges"])
            self.trained_judges = True
        self.average.load(state["model"])
        if not self.options.again:
            self.progress.step, self.progress.before_s = state["step"], state["spent_s"]

    def save(self) -> None:
        """`model` holds the averaged weights, `raw` the current ones."""
        state = {
            "model": self.average.named(), "raw": self.model.state_dict(),
            "judges": self.judges.state_dict() if self.trained_judges or self.judged_from is not None else {},
            "step": self.progress.step, "spent_s": self.progress.spent_s, "sizes": self.sizes.as_dict(),
        }  # fmt: skip
        save(self.path, state)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.bf16)

    def step(self, corpus: Corpus) -> dict[str, Tensor]:
        """One step. Use the losses before the next call."""
        crops = corpus.crops(self.options.batch, CROP_FRAMES)
        step, options = self.progress.step, self.options
        if self.judged_from is None and self.progress.part >= options.judge_from:
            self._drop_step()
            self.judged_from = step
        if self.judged_from is not None:
            share = 1.0 if self.trained_judges else _ramp(step - self.judged_from)
            self.balance.set_share("judged", options.judged * share)
        self.balance.set_share("recognized", options.recognized * _ramp(step))
        left = (1 - self.progress.part) ** 2
        self.balance.set_share("phase", options.phase * left)
        self.heads_weights[0].fill_(options.heads * (left + _LAST_PHASES))
        self.heads_weights[1].fill_(options.spectrum * (left + _LAST_SPECTRUM))
        self.average.set_decay(step)
        if self.current_step is None:
            learn: Step = partial(self._learn, self.judged_from is not None)
            self.current_step = CapturedStep(learn) if self.captures else learn
        codes = with_noise(crops.codes)
        return self.current_step(samples=crops.samples, phones=crops.phones, begins=crops.begins, codes=codes)

    def _drop_step(self) -> None:
        if isinstance(self.current_step, CapturedStep):
            self.current_step.release()
        self.current_step = None

    def _learn(self, judged: bool, samples: Tensor, phones: Tensor, begins: Tensor, codes: Tensor) -> dict[str, Tensor]:
        """captured.py lists what this function may do."""
        losses: dict[str, Tensor] = {}
        stages: list[Tensor] = []
        spoken = torch.cat((codes[..., PHONES[0] : PHONES[-1] + 1], codes[..., LAST_PHONE, None]), -1).flatten(1)
        weights = judged_part(self.emphasis[spoken], begins, SLOTS)
        with self.autocast():
            made = self.model(codes, stages)
            losses["heads"] = self.model.phase_heads(stages, codes)
            missed = judged_part(self.model.spectrum_head(stages[0], samples), begins, SLOTS * STEPS)
        losses["spectrum"] = (missed * weights.repeat_interleave(STEPS, 1)).mean() / weights.mean()
        made_part = judged_part(made, begins, FRAME_SAMPLES)
        true_part = judged_part(samples, begins, FRAME_SAMPLES)
        leaf = made_part.detach().requires_grad_(True)
        losses["mel"] = self.mel(leaf, true_part, weights)
        losses["phase"] = phase_loss(leaf, true_part)
        others = {"phase": losses["phase"]}
        if judged:
            others["judged"] = self._judge(leaf, true_part, losses)
        true_phones = judged_part(phones.flatten(1), begins, FRAME_LABELS)
        others["recognized"] = self._recognize(leaf, true_part, true_phones, losses)
        gradient = self.balance(leaf, losses["mel"], others, losses) * _MEL_WEIGHT
        self.making.zero_grad(set_to_none=True)
        heads = torch.stack((losses["heads"], losses["spectrum"]))
        torch.autograd.backward([made_part, heads], [gradient, self.heads_weights])
        losses["gradient"] = nn.utils.clip_grad_norm_(self.model.parameters(), _MAX_GRADIENT)
        self.making.step()
        self.average.follow()
        return {name: loss.detach() for name, loss in losses.items()}

    def _judge(self, made: Tensor, true: Tensor, losses: dict[str, Tensor]) -> Tensor:
        """Updates the discriminators, then judges. The features of the true audio are from before the update."""
        self.judges.requires_grad_(True)
        with self.autocast():
            verdicts, seen = self.judges(torch.cat((true, made.detach())))
            halves = [verdict.chunk(2) for verdict in verdicts]
            losses["judging"] = discriminator_loss(*zip(*halves, strict=True))
        self.judging.zero_grad(set_to_none=True)
        losses["judging"].backward()
        nn.utils.clip_grad_norm_(self.judges.parameters(), 5.0)
        self.judging.step()
        self.judges.requires_grad_(False)
        with self.autocast():
            verdicts, seen_made = self.judges(made)
            losses["adversarial"] = adversarial_loss(verdicts)
            seen_true = [[layer[: len(true)] for layer in judge] for judge in seen]
            losses["features"] = feature_loss(seen_true, seen_made)
        return losses["adversarial"] + _FEATURE_WEIGHT * losses["features"]

    def _recognize(self, made: Tensor, true: Tensor, phones: Tensor, losses: dict[str, Tensor]) -> Tensor:
        """Trains the recognizer on true audio only, then lets it judge."""
        self.recognizer.requires_grad_(True)
        with self.autocast():
            losses["recognized_true"] = F.cross_entropy(self.recognizer(true).float(), phones)
        self.recognizing.zero_grad(set_to_none=True)
        losses["recognized_true"].backward()
        self.recognizing.step()
        self.recognizer.requires_grad_(False)
        with self.autocast():
            losses["recognized"] = F.cross_entropy(self.recognizer(made).float(), phones)
        return losses["recognized"]

    def run(self, corpus: Corpus, journal: Journal) -> None:
        self.model.train()
        saved_s, step = self.progress.spent_s, self.current_step
        while not self.progress.ended:
            set_rate(self.making, self.progress.rate(self.options.rate))
            set_rate(self.judging, self.progress.rate(self.judge_rate))
            losses = self.step(corpus)
            self.progress.step += 1
            journal.note(self.progress, losses)
            # Also after the first step of a kind: a failed capture may break the device.
            if self.progress.spent_s - saved_s > self.options.save_s or step is not self.current_step:
                self.save()
                saved_s, step = self.progress.spent_s, self.current_step
                if corpus.grow():
                    journal.write(hours=corpus.hours, utterances=len(corpus.items))
        self.save()


def add_common(parser: argparse.ArgumentParser, *, steps: int, batch: int, rate: float) -> None:
    cuda = torch.cuda.is_available()
    parser.add_argument("work", type=Path)
    parser.add_argument("--sizes", choices=tuple(BY_NAME), default="demo")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--seconds", "--limit-s", dest="limit_s", type=float, help="time limit; schedules follow it")
    parser.add_argument("--batch", type=int, default=batch)
    parser.add_argument("--rate", type=float, default=rate)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=cuda)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--save-s", type=float, default=60.0)
    parser.add_argument("--again", action="store_true", help="continue from the saved weights with a new schedule")


def add_own(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--judge-from", type=float, default=0.15, help="share after which discriminators take part")
    parser.add_argument("--judge-rate", type=float, default=0.5, help="learning rate relative to the decoder's")
    parser.add_argument("--judged", type=float, default=1.2, help="discriminators' gradient relative to the mel loss")
    parser.add_argument("--recognized", type=float, default=0.3, help="the recognizer's, relative to the mel loss")
    parser.add_argument(
        "--phase", type=float, default=1.5, help="that of the phases at the start of the run; 0 at its end"
    )
    parser.add_argument("--heads", type=float, default=30.0, help="weight of the phases in early layers, at the start")
    parser.add_argument("--spectrum", type=float, default=300.0, help="weight of the spectrum before the vocoder")
    parser.add_argument("--graph", action=argparse.BooleanOptionalAction, default=True, help="run steps as CUDA graphs")


def prepare_backends() -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common(parser, steps=200_000, batch=16, rate=4e-4)
    add_own(parser)
    options = parser.parse_args()
    prepare_backends()
    trainer = Trainer(options)
    trainer.resume()
    torch.manual_seed(options.seed + trainer.progress.step)
    journal = Journal(options.work / "log.jsonl", "codec", every=200)
    corpus = Corpus(options.work / "speech", trainer.device)
    parts = {"codec": trainer.model, "discriminators": trainer.judges}
    parameters = {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}
    journal.write(begun=True, hours=corpus.hours, utterances=len(corpus.items), parameters=parameters)
    trainer.run(corpus, journal)


if __name__ == "__main__":
    main()
