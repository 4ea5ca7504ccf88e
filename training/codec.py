"""Trains the codec: the model's encoder and decoder at small widths, and the codebooks between them.

    python training/codec.py WORK [--sizes demo] [--seconds 540] [--batch 16] [--again]
    python training/codec.py WORK --polish ...    the decoder and its tables, on the codes of foretell.py

Resumes from WORK/codec.pt if it exists. Steps are small: short crops. After the share --judge-from of the run there are
discriminators; steps without them are faster, and suffice for the codes. After the share --freeze-from the codes are
frozen, and only the decoder and its tables are trained. The semantic code has its own loss: it alone must predict the
phones and the coarse spectrum of its frame. On a GPU a step is a CUDA graph (captured.py), unless --no-graph is given.
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
from balance import Average, Balance
from captured import CapturedStep, Step
from corpus import FRAME_LABELS, Corpus
from discriminator import Discriminators
from fused import PLAIN, compiled_for_codec
from journal import Journal, Progress, load, save, set_seed
from losses import MelLoss, adversarial_loss, discriminator_loss, feature_loss
from modules import decode_latent, encode_latent, initialize, make_trainable
from quantizer import SplitQuantizer
from recognizer import PhoneRecognizer
from sizes import BY_NAME, FRAME_SAMPLES, Sizes, codec_config
from teacher import PHONE_COUNT
from torch import Tensor, nn

from oscine.model.codec import Codec, ResidualUnit
from oscine.model.codec_encoder import CodecEncoder
from oscine.model.config import parse_codec_config

CONTEXT_FRAMES = 4  # before the judged frames, because a crop starts in the middle of speech
JUDGED_FRAMES = 8  # 0.64 s
CROP_FRAMES = CONTEXT_FRAMES + JUDGED_FRAMES
ENCODER_WINDOW = 2 * CROP_FRAMES - 4  # positions of 40 ms: the encoder's attention span in training
_MEL_BANDS = 64  # of the spectrum that the semantic code predicts
_PREDICTED = 0.7  # share of crops in a polish run with the predictor's codes
_FEWER_BOOKS = 0.3  # share of crops that use only the first codebooks
_FIRST_CROPS = 384  # crops whose frames initialize the codebooks
_MAX_GRADIENT = 50.0

WEIGHTS = {"commitment": 1.0, "phones": 1.0, "spectrum": 1.0}
_MEL_WEIGHT = 15.0
_FEATURE_WEIGHT = 2.0  # relative to the adversarial loss
_RECOGNIZER_RATE = 1e-3
# Steps between which the share of new discriminators, and of a new recognizer, grows to its full size.
_RAMP = (300, 1500)


class CodecModel(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        config = parse_codec_config(codec_config(sizes))
        self.encoder = CodecEncoder(config.encoder)
        self.quantizer = SplitQuantizer(
            sizes.encoder_width, sizes.codebook_dim, sizes.codebook_size, sizes.active_books
        )
        self.decoder = Codec(config)
        # The quantizer above takes their place until export.
        del self.encoder.quantizer, self.decoder.dequantizer
        self.phones = nn.Linear(sizes.codebook_dim // 2, FRAME_LABELS * PHONE_COUNT)
        self.spectrum = nn.Linear(sizes.codebook_dim // 2, 2 * _MEL_BANDS)

    def begin(self, seed: int) -> None:
        generator = set_seed(seed)
        initialize(self.encoder, generator, depth=1)
        initialize(self.decoder, generator, depth=1)
        with torch.no_grad():
            self.encoder.first.weight.mul_(4.0)  # speech has an RMS near 0.1
            self.decoder.vocoder_out.weight.mul_(0.1)
            for part in self.decoder.modules():
                if isinstance(part, ResidualUnit):
                    part.conv2.weight.mul_(0.3)  # a block sums three of them

    def encode(self, samples: Tensor, window: int | None = None) -> Tensor:
        return encode_latent(self.encoder, samples, window)

    def speaking(self) -> dict[str, nn.Parameter]:
        """Parameters that turn codes into audio. They are trained to the end, averaged and shipped."""
        parts = {f"decoder.{name}": one for name, one in self.decoder.named_parameters()}
        return parts | {f"quantizer.{name}": getattr(self.quantizer, name) for name in ("output_proj", "spoken")}


def judged_part(x: Tensor, begins: Tensor, per_frame: int) -> Tensor:
    """The judged frames of each crop: the first ones at the start of an utterance, else the last ones."""
    skipped = CONTEXT_FRAMES * per_frame
    return torch.where(begins[:, None], x[:, : x.shape[1] - skipped], x[:, skipped:])


def semantic_losses(
    model: CodecModel, mel: MelLoss, semantic: Tensor, samples: Tensor, phones: Tensor
) -> tuple[Tensor, Tensor]:
    batch, frames, _ = semantic.shape
    told = model.phones(semantic).view(batch, frames, FRAME_LABELS, PHONE_COUNT)
    missed = F.cross_entropy(told.flatten(0, 2), phones.flatten())
    with torch.no_grad():
        spectrum = mel.mel(samples, 512)[..., : frames * FRAME_SAMPLES // 128]
        # A frame has 15 columns; its two halves leave out the middle one.
        columns = spectrum.unflatten(-1, (frames, -1))
        halves = torch.stack((columns[..., :7].mean(-1), columns[..., 8:].mean(-1)), -1).clamp(min=1e-4).log()
    shape = (halves.permute(0, 2, 3, 1).flatten(2) + 6) / 2  # near zero mean and unit variance
    return missed, (model.spectrum(semantic) - shape).abs().mean()


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
        self.polish: bool = options.polish
        self.options = options
        self.sizes = BY_NAME[options.sizes]
        set_seed(options.seed)
        self.model = CodecModel(self.sizes)
        self.model.begin(options.seed)
        make_trainable(self.model.encoder)
        make_trainable(self.model.decoder, compiled_for_codec(self.device) if options.compile else PLAIN)
        small = options.sizes == "toy"
        self.judges = Discriminators(widths=(4, 8), spectrum_width=4) if small else Discriminators()
        self.mel = MelLoss().to(self.device)
        self.model.to(self.device)
        self.judges.to(self.device)
        self.recognizer = PhoneRecognizer().to(self.device)  # never saved: it learns within seconds
        self.making = adamw(self.model.parameters(), options.rate, self.device, betas=(0.8, 0.99), weight_decay=0.01)
        self.judging = adamw(self.judges.parameters(), options.rate / 2, self.device, betas=(0.8, 0.99))
        self.recognizing = adamw(self.recognizer.parameters(), _RECOGNIZER_RATE, self.device)
        self.average = Average(self.model.speaking(), self.device)
        self.balance = Balance(("judged", "recognized"), self.device)
        self.trained_judges = False
        self.progress = Progress(options.steps, options.limit_s)
        self.path = options.work / "codec.pt"
        self.captures: bool = options.graph and self.device.type == "cuda"
        self.current_step: Step | None = None
        self.fixed = self.polish  # whether the codes are frozen
        self.judged = False  # whether discriminators take part

    def resume(self) -> None:
        state = load(self.path, self.device)
        if state is None:
            if self.polish:
                raise FileNotFoundError(f"{self.path} is missing; train the codec first")
            return
        self.model.load_state_dict(state["model"] | state.get("raw", {}))
        if state["judges"]:  # missing after steps without them and after `keep.py --small`
            self.judges.load_state_dict(state["judges"])
            self.trained_judges = True
        self.average.load({name: state["model"][name] for name in self.average.names})
        if not self.options.again and state["polish"] == self.polish:
            self.progress.step, self.progress.before_s = state["step"], state["spent_s"]
        if self.progress.part >= self.options.freeze_from:
            self.fixed = True

    def save(self) -> None:
        """`model` holds the averaged weights, `raw` the current ones."""
        if not self.fixed:
            self._copy_entries()
        averaged = self.average.named()
        state = {
            "model": self.model.state_dict() | averaged,
            "raw": {name: value for name, value in self.model.state_dict().items() if name in averaged},
            "judges": self.judges.state_dict() if self.trained_judges or self.judged else {},
            "step": self.progress.step, "spent_s": self.progress.spent_s, "polish": self.polish,
            "sizes": self.sizes.as_dict(),
        }  # fmt: skip
        save(self.path, state)

    @torch.no_grad()
    def _copy_entries(self) -> None:
        """The decoder's table equals the codebook until the codes are frozen."""
        quantizer = self.model.quantizer
        quantizer.spoken.copy_(quantizer.entries)
        self.average.set("quantizer.spoken", quantizer.entries)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.bf16)

    @torch.no_grad()
    def begin_codebooks(self, corpus: Corpus) -> None:
        """Uses many crops: one batch has fewer frames than a codebook has entries."""
        quantizer = self.model.quantizer
        if quantizer.begun:
            return
        crops = max(1, _FIRST_CROPS // self.options.batch)
        with self.autocast():
            frames = [self.model.encode(corpus.crops(self.options.batch, CROP_FRAMES).samples) for _ in range(crops)]
        x = torch.cat(frames).float().flatten(0, 1)
        quantizer.begin(x @ quantizer.input_proj[0].T, x @ quantizer.input_proj[1].T)

    def step(self, corpus: Corpus) -> dict[str, Tensor]:
        """One step. Use the losses before the next call."""
        crops = corpus.crops(self.options.batch, CROP_FRAMES)
        inputs = {"samples": crops.samples, "phones": crops.phones, "begins": crops.begins}
        if self.polish:
            assert corpus.codes is not None and corpus.predicted is not None
            predicted = torch.rand(self.options.batch, 1, 1, device=self.device) < _PREDICTED
            inputs["codes"] = torch.where(predicted, corpus.predicted[crops.places], corpus.codes[crops.places]).long()
        step, part, options = self.progress.step, self.progress.part, self.options
        if not self.fixed and part >= options.freeze_from:
            self._drop_step()
            self._fix_codes()
        if not self.judged and part >= options.judge_from:
            self._drop_step()
            self.judged, self.judged_from = True, step
        if self.judged:
            share = 1.0 if self.trained_judges else _ramp(step - self.judged_from)
            self.balance.set_share("judged", options.judged * share)
        self.balance.set_share("recognized", options.recognized * _ramp(step))
        self.average.set_decay(step)
        if self.current_step is None:
            learn: Step = partial(self._learn, self.fixed, self.judged)
            self.current_step = CapturedStep(learn) if self.captures else learn
        return self.current_step(**inputs)

    def _drop_step(self) -> None:
        if isinstance(self.current_step, CapturedStep):
            self.current_step.release()
        self.current_step = None

    def _fix_codes(self) -> None:
        self._copy_entries()
        self.model.quantizer.eval()
        self.fixed = True

    def _learn(
        self, fixed: bool, judged: bool, samples: Tensor, phones: Tensor, begins: Tensor, codes: Tensor | None = None
    ) -> dict[str, Tensor]:
        """captured.py lists what this function may do."""
        losses: dict[str, Tensor] = {}
        made = self._made(fixed, samples, phones, codes, losses)
        made_part = judged_part(made, begins, FRAME_SAMPLES)
        true_part = judged_part(samples, begins, FRAME_SAMPLES)
        leaf = made_part.detach().requires_grad_(True)
        losses["mel"] = self.mel(leaf, true_part)
        others = {"judged": self._judge(leaf, true_part, losses)} if judged else {}
        others["recognized"] = self._recognize(
            leaf, true_part, judged_part(phones.flatten(1), begins, FRAME_LABELS), losses
        )
        gradient = self.balance(leaf, losses["mel"], others, losses) * _MEL_WEIGHT
        rest = [WEIGHTS[name] * loss for name, loss in losses.items() if name in WEIGHTS]
        self.making.zero_grad(set_to_none=True)
        torch.autograd.backward([made_part, *rest], [gradient, *(torch.ones_like(one) for one in rest)])
        losses["gradient"] = nn.utils.clip_grad_norm_(self.model.parameters(), _MAX_GRADIENT)
        self.making.step()
        self.average.follow()
        return {name: loss.detach() for name, loss in losses.items()}

    def _made(
        self, fixed: bool, samples: Tensor, phones: Tensor, codes: Tensor | None, losses: dict[str, Tensor]
    ) -> Tensor:
        model = self.model
        if fixed:
            if codes is None:
                with torch.no_grad(), self.autocast():
                    encoded = model.encode(samples)
                codes = model.quantizer.encode(encoded)
            latent = model.quantizer.latent_of(codes)
        else:
            batch = len(samples)
            active = model.quantizer.active
            fewer = torch.randint(1, active + 1, (batch,), device=self.device)
            books = fewer.masked_fill(torch.rand(batch, device=self.device) >= _FEWER_BOOKS, active)
            with self.autocast():
                encoded = model.encode(samples)
            quantized = model.quantizer(encoded, books=books)
            losses["commitment"] = quantized.commitment
            losses["phones"], losses["spectrum"] = semantic_losses(model, self.mel, quantized.semantic, samples, phones)
            uses = model.quantizer.uses[:active]
            losses["codes_used"] = (uses > 0.02 * uses.mean()).float().mean()
            latent = quantized.latent
        with self.autocast():
            return decode_latent(model.decoder, latent).float()

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
        self.begin_codebooks(corpus)
        if self.fixed:
            self.model.quantizer.eval()
        saved_s, step = self.progress.spent_s, self.current_step
        while not self.progress.ended:
            set_rate(self.making, self.progress.rate(self.options.rate))
            set_rate(self.judging, self.progress.rate(self.options.rate / 2))
            losses = self.step(corpus)
            self.progress.step += 1
            journal.note(self.progress, losses)
            # Also after the first step of a kind: a failed capture may break the device.
            if self.progress.spent_s - saved_s > self.options.save_s or step is not self.current_step:
                self.save()
                saved_s, step = self.progress.spent_s, self.current_step
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
    parser.add_argument("--polish", action="store_true")
    parser.add_argument("--freeze-from", type=float, default=0.6, help="share of the run after which codes are frozen")
    parser.add_argument("--judge-from", type=float, default=0.0, help="share after which discriminators take part")
    parser.add_argument("--judged", type=float, default=1.2, help="discriminators' gradient relative to the mel loss")
    parser.add_argument("--recognized", type=float, default=0.3, help="the recognizer's, relative to the mel loss")
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
    journal = Journal(options.work / "log.jsonl", "polish" if options.polish else "codec", every=200)
    corpus = Corpus(options.work / "speech", trainer.device, with_codes=options.polish)
    parameters: dict[str, Any] = {
        name: sum(p.numel() for p in part.parameters()) for name, part in trainer.model.named_children()
    }
    parameters["discriminators"] = sum(p.numel() for p in trainer.judges.parameters())
    journal.write(begun=True, hours=corpus.hours, utterances=len(corpus.items), parameters=parameters)
    trainer.run(corpus, journal)


if __name__ == "__main__":
    main()
