"""Trains the codec: the architecture's own encoder and decoder at small widths, and the codebooks between them.

    python training/codec.py WORK [--sizes demo] [--steps 6000] [--limit-s 400] [--batch 48]
    python training/codec.py WORK --polish ...    decoder and its tables, on the codes of foretell.py

Goes on from WORK/codec.pt if it is there. First mel distances alone; judges come in at --judges-from (a part of the
run). The semantic code has a loss of its own: it alone must tell the phones and the coarse spectrum of its frame.
On a GPU a step is recorded and replayed as a whole (captured.py), unless --no-graph.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import paths  # noqa: F401
import torch
import torch.nn.functional as F
from captured import CapturedStep, Step
from corpus import FRAME_LABELS, Corpus
from discriminator import Judges
from fused import PLAIN, compiled_for_codec
from journal import Journal, Progress, load, save, set_seed
from listener import Listener
from losses import MelLoss, discriminator_loss, feature_loss, generator_loss
from modules import decode_latent, encode_latent, initialise, make_trainable
from quantizer import SplitQuantizer
from sizes import BY_NAME, FRAME_SAMPLES, Sizes, codec_config
from teacher import PHONES
from torch import Tensor, nn

from oscine.model.codec import Codec, ResidualUnit
from oscine.model.codec_encoder import CodecEncoder
from oscine.model.config import parse_codec_config

CROP_FRAMES = 34
SKIPPED_FRAMES = 4  # a cut into the middle of speech is no fair beginning: its first frames are heard, not judged
JUDGED_FRAMES = 12  # of those, by the judges: their time grows with it
ENCODER_WINDOW = 2 * CROP_FRAMES - 4  # positions of 40 ms that the encoder has learnt to look back
_MEL_BANDS = 64  # of the semantic code's spectrum
_LISTENING_RATE = 1e-3
_FORETOLD = 0.9  # of the crops in a polish have the codes that the talker would choose

WEIGHTS = {
    "mel": 15.0, "made": 1.0, "features": 2.0, "understood": 3.0, "commitment": 1.0, "phones": 1.0, "spectrum": 1.0
}  # fmt: skip


class CodecModel(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        config = parse_codec_config(codec_config(sizes))
        self.encoder = CodecEncoder(config.encoder)
        self.quantizer = SplitQuantizer(sizes.encoder_width, sizes.codebook_dim, sizes.codebook_size)
        self.decoder = Codec(config)
        # In their place stands the quantiser above, until export.
        del self.encoder.quantizer, self.decoder.dequantizer
        self.phones = nn.Linear(sizes.codebook_dim // 2, FRAME_LABELS * len(PHONES))
        self.spectrum = nn.Linear(sizes.codebook_dim // 2, 2 * _MEL_BANDS)

    def begin(self, seed: int) -> None:
        generator = set_seed(seed)
        initialise(self.encoder, generator, depth=1)
        initialise(self.decoder, generator, depth=1)
        with torch.no_grad():
            self.encoder.first.weight.mul_(4.0)  # speech has an rms near 0.1
            self.decoder.vocoder_out.weight.mul_(0.1)
            for part in self.decoder.modules():
                if isinstance(part, ResidualUnit):
                    part.conv2.weight.mul_(0.3)  # there are three in a block

    def encode(self, samples: Tensor, window: int | None = None) -> Tensor:
        return encode_latent(self.encoder, samples, window)


def judged_part(x: Tensor, begins: Tensor, per_frame: int) -> Tensor:
    """Of each crop as much as is judged: all but the last frames of a beginning, all but the first of any other."""
    skipped = SKIPPED_FRAMES * per_frame
    return torch.where(begins[:, None], x[:, : x.shape[1] - skipped], x[:, skipped:])


def semantic_losses(
    model: CodecModel, mel: MelLoss, semantic: Tensor, samples: Tensor, phones: Tensor
) -> tuple[Tensor, Tensor]:
    batch, frames, _ = semantic.shape
    told = model.phones(semantic).view(batch, frames, FRAME_LABELS, len(PHONES))
    missed = F.cross_entropy(told.flatten(0, 2), phones.flatten())
    with torch.no_grad():
        heard = mel.mel(samples, 512)[..., : frames * FRAME_SAMPLES // 128]
        # Two halves of a frame, of 7.5 columns each: the border column is in neither.
        columns = heard.unflatten(-1, (frames, -1))
        halves = torch.stack((columns[..., :7].mean(-1), columns[..., 8:].mean(-1)), -1).clamp(min=1e-4).log()
    shape = (halves.permute(0, 2, 3, 1).flatten(2) + 6) / 2  # near zero mean and unit variance
    return missed, (model.spectrum(semantic) - shape).abs().mean()


def adamw(parameters: Iterable[nn.Parameter], rate: float, device: torch.device, **more: Any) -> torch.optim.AdamW:
    """Its rate is a tensor, to be changed in place (`set_rate`): a number would be recorded with the step."""
    return torch.optim.AdamW(
        parameters, lr=torch.tensor(rate, device=device), fused=True, capturable=device.type == "cuda", **more
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"].fill_(rate)


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Moments and counts; how steps are made is this run's own choice."""
    groups = [
        saved | {name: value for name, value in group.items() if name != "params"}
        for saved, group in zip(state["param_groups"], optimizer.param_groups, strict=True)
    ]
    optimizer.load_state_dict(state | {"param_groups": groups})


class Trainer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.device = torch.device(options.device)
        self.polish: bool = options.polish
        self.options = options
        self.sizes = BY_NAME[options.sizes]
        set_seed(options.seed)
        self.model = CodecModel(self.sizes)
        self.model.begin(options.seed)
        make_trainable(self.model.encoder)
        make_trainable(self.model.decoder, compiled_for_codec(self.device) if options.compile else PLAIN)
        self.judges = Judges() if options.sizes == "demo" else Judges(widths=(4, 8), spectrum_width=4)
        self.listener = Listener().to(self.device)  # never saved: it learns within seconds
        self.mel = MelLoss().to(self.device)
        self.model.to(self.device)
        self.judges.to(self.device)
        self.making = adamw(self._trained(), options.rate, self.device, betas=(0.8, 0.99), weight_decay=0.01)
        self.judging = adamw(self.judges.parameters(), options.rate / 2, self.device, betas=(0.8, 0.99))
        self.listening = adamw(self.listener.parameters(), _LISTENING_RATE, self.device)
        self.progress = Progress(options.steps, options.limit_s)
        self.path = options.work / "codec.pt"
        self.captures: bool = options.graph and self.device.type == "cuda"
        self.current_step: Step | None = None
        self._judged = False

    def _trained(self) -> list[Tensor]:
        if not self.polish:
            return list(self.model.parameters())
        quantizer = self.model.quantizer
        # What a code is worth to the decoder is learnt anew: many are guesses, and count for less than the true ones.
        return [*self.model.decoder.parameters(), quantizer.output_proj, quantizer.spoken.requires_grad_(True)]

    def resume(self) -> None:
        state = load(self.path, self.device)
        if state is None:
            if self.polish:
                raise FileNotFoundError(f"{self.path} is missing; train the codec first")
            return
        self.model.load_state_dict(state["model"])
        self.judges.load_state_dict(state["judges"])
        if state["polish"] == self.polish and "making" in state and not self.options.again:  # kept ones have none
            load_optimizer(self.making, state["making"])
            load_optimizer(self.judging, state["judging"])
            self.progress.step, self.progress.before_s = state["step"], state["spent_s"]

    def save(self) -> None:
        if not self.polish:
            self.model.quantizer.spoken.copy_(self.model.quantizer.entries)
        state = {
            "model": self.model.state_dict(), "judges": self.judges.state_dict(),
            "making": self.making.state_dict(), "judging": self.judging.state_dict(), "step": self.progress.step,
            "spent_s": self.progress.spent_s, "polish": self.polish, "sizes": self.sizes.as_dict(),
        }  # fmt: skip
        save(self.path, state)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.bf16)

    def step(self, corpus: Corpus) -> dict[str, Tensor]:
        """One step; the losses are to be used before the next."""
        crops = corpus.crops(self.options.batch, CROP_FRAMES)
        inputs = {"samples": crops.samples, "phones": crops.phones, "begins": crops.begins}
        if self.polish:
            assert corpus.codes is not None and corpus.foretold is not None
            foretold = torch.rand(self.options.batch, 1, 1, device=self.device) < _FORETOLD
            inputs["codes"] = torch.where(foretold, corpus.foretold[crops.places], corpus.codes[crops.places]).long()
        judged = self.progress.part >= self.options.judges_from
        if self.current_step is None or judged != self._judged:
            self._change_step(judged)
        assert self.current_step is not None
        return self.current_step(**inputs)

    def _change_step(self, judged: bool) -> None:
        if isinstance(self.current_step, CapturedStep):
            self.current_step.release()
        learn: Step = partial(self._learn, judged)
        self.current_step = CapturedStep(learn) if self.captures else learn
        self._judged = judged

    def _learn(
        self, judged: bool, samples: Tensor, phones: Tensor, begins: Tensor, codes: Tensor | None = None
    ) -> dict[str, Tensor]:
        """See captured.py for what may stand in here."""
        losses: dict[str, Tensor] = {}
        made = self._made(samples, phones, codes, losses)
        made_part = judged_part(made, begins, FRAME_SAMPLES)
        true_part = judged_part(samples, begins, FRAME_SAMPLES)
        losses["mel"] = self.mel(made_part, true_part)
        self._listen(made_part, true_part, judged_part(phones.flatten(1), begins, FRAME_LABELS), losses)
        if judged:
            self._judge(made_part, true_part, losses)
        total = torch.stack([WEIGHTS[name] * loss for name, loss in losses.items() if name in WEIGHTS]).sum()
        self.making.zero_grad(set_to_none=True)
        total.backward()
        losses["gradient"] = nn.utils.clip_grad_norm_(self.making.param_groups[0]["params"], 5.0)
        self.making.step()
        return {name: loss.detach() for name, loss in losses.items()}

    def _made(self, samples: Tensor, phones: Tensor, codes: Tensor | None, losses: dict[str, Tensor]) -> Tensor:
        model = self.model
        if codes is not None:
            latent = model.quantizer.latent_of(codes)
        else:
            # Half of the crops may use fewer codebooks, so that the first ones carry most.
            batch = len(samples)
            fewer = torch.randint(1, 17, (batch,), device=self.device)
            books = fewer.masked_fill(torch.rand(batch, device=self.device) >= 0.5, 16)
            with self.autocast():
                encoded = model.encode(samples)
            quantised = model.quantizer(encoded, books=books)
            losses["commitment"] = quantised.commitment
            losses["phones"], losses["spectrum"] = semantic_losses(model, self.mel, quantised.semantic, samples, phones)
            losses["codes_used"] = _codes_used(quantised.codes, self.sizes.codebook_size)
            latent = quantised.latent
        with self.autocast():
            return decode_latent(model.decoder, latent).float()

    def _listen(self, made: Tensor, true: Tensor, phones: Tensor, losses: dict[str, Tensor]) -> None:
        """The listener learns from true sound alone: it is no friend of the decoder's."""
        self.listener.requires_grad_(True)
        with self.autocast():
            losses["listening"] = F.cross_entropy(self.listener(true).float(), phones)
        self.listening.zero_grad(set_to_none=True)
        losses["listening"].backward()
        self.listening.step()
        self.listener.requires_grad_(False)
        with self.autocast():
            losses["understood"] = F.cross_entropy(self.listener(made).float(), phones)

    def _judge(self, made: Tensor, true: Tensor, losses: dict[str, Tensor]) -> None:
        """Judges learn, then say what they think; what they saw in the true sound before they learnt is good enough."""
        span = JUDGED_FRAMES * FRAME_SAMPLES
        begin = torch.randint(made.shape[1] - span + 1, (), device=self.device)
        places = begin + torch.arange(span, device=self.device)
        made, true = made.index_select(1, places), true.index_select(1, places)
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
            losses["made"] = generator_loss(verdicts)
            seen_true = [[layer[: len(true)] for layer in judge] for judge in seen]
            losses["features"] = feature_loss(seen_true, seen_made)

    def run(self, corpus: Corpus, journal: Journal) -> None:
        self.model.train()
        if self.polish:
            self.model.quantizer.eval()
        saved_s, step = self.progress.spent_s, self.current_step
        while not self.progress.ended:
            set_rate(self.making, self.progress.rate(self.options.rate))
            set_rate(self.judging, self.progress.rate(self.options.rate / 2))
            losses = self.step(corpus)
            self.progress.step += 1
            journal.note(self.progress, losses)
            # Also after the first step of a kind: a recording that fails may take the device with it.
            if self.progress.spent_s - saved_s > self.options.save_s or step is not self.current_step:
                self.save()
                saved_s, step = self.progress.spent_s, self.current_step
        self.save()


def _codes_used(codes: Tensor, size: int) -> Tensor:
    """Share of entries in use in this batch, mean over the codebooks."""
    offsets = torch.arange(codes.shape[-1], device=codes.device) * size
    seen = torch.zeros(codes.shape[-1] * size, device=codes.device)
    return seen.index_fill_(0, (codes + offsets).flatten(), 1.0).mean()


def add_common(parser: argparse.ArgumentParser, *, steps: int, batch: int, rate: float) -> None:
    cuda = torch.cuda.is_available()
    parser.add_argument("work", type=Path)
    parser.add_argument("--sizes", choices=tuple(BY_NAME), default="demo")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--limit-s", type=float, help="end by then, with the schedule drawn together")
    parser.add_argument("--batch", type=int, default=batch)
    parser.add_argument("--rate", type=float, default=rate)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=cuda)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--save-s", type=float, default=60.0)
    parser.add_argument("--again", action="store_true", help="from the weights that are there, but a new schedule")


def add_own(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--polish", action="store_true")
    parser.add_argument("--judges-from", type=float, default=0.5)
    parser.add_argument("--graph", action=argparse.BooleanOptionalAction, default=True, help="steps as CUDA graphs")


def prepare_backends() -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common(parser, steps=6000, batch=48, rate=6e-4)
    add_own(parser)
    options = parser.parse_args()
    prepare_backends()
    trainer = Trainer(options)
    trainer.resume()
    torch.manual_seed(options.seed + trainer.progress.step)
    journal = Journal(options.work / "log.jsonl", "polish" if options.polish else "codec")
    corpus = Corpus(options.work / "speech", trainer.device, with_codes=options.polish)
    parameters: dict[str, Any] = {
        name: sum(p.numel() for p in part.parameters()) for name, part in trainer.model.named_children()
    }
    journal.write(begun=True, hours=corpus.hours, utterances=len(corpus.items), parameters=parameters)
    trainer.run(corpus, journal)


if __name__ == "__main__":
    main()
