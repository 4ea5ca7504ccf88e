"""Kokoro-82M in PyTorch: batched, with masks. A sentence gets the same durations and audio alone and in a batch.

The layers come from the `kokoro` 0.9.4 wheel (Apache-2.0): only its modules.py, istftnet.py and custom_stft.py are
imported, directly from the .whl file. ALBERT is the small class below, with its usual parameter names.
"""

from __future__ import annotations

import json
import math
import sys
import types
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from packed_weights import load_weights
from torch import nn
from torch.nn.utils import remove_weight_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

WHEEL_NAME = "kokoro-0.9.4-py3-none-any.whl"
RATE = 24000
HOP = 600  # samples per frame of the durations
CYCLE = 300  # samples per value of the F0 curve


def kokoro_layers(wheel):
    """kokoro.modules and kokoro.istftnet, without running kokoro/__init__.py."""
    if "kokoro" not in sys.modules:
        sys.modules["kokoro"] = types.ModuleType("kokoro")
        sys.modules["kokoro"].__path__ = [str(Path(wheel) / "kokoro")]
        stubs = {}
        for name, attribute in (("transformers", "AlbertModel"), ("attr", "attr")):
            if name not in sys.modules:  # imported there, but not used by these layers
                stubs[name] = sys.modules[name] = types.ModuleType(name)
                setattr(stubs[name], attribute, object)
        import kokoro.istftnet
        import kokoro.modules  # noqa: F401

        for name in stubs:
            del sys.modules[name]
    return sys.modules["kokoro.modules"], sys.modules["kokoro.istftnet"]


class Albert(nn.Module):
    """ALBERT encoder: one layer, applied `num_hidden_layers` times."""

    def __init__(
        self,
        n_token,
        hidden_size,
        num_attention_heads,
        intermediate_size,
        max_position_embeddings,
        num_hidden_layers,
        embedding_size=128,
        **_,
    ):
        super().__init__()
        self.heads, self.depth = num_attention_heads, num_hidden_layers
        wide, norm = hidden_size, lambda n: nn.LayerNorm(n, eps=1e-12)
        self.embeddings = nn.ModuleDict(
            {
                "word_embeddings": nn.Embedding(n_token, embedding_size),
                "position_embeddings": nn.Embedding(max_position_embeddings, embedding_size),
                "token_type_embeddings": nn.Embedding(2, embedding_size),
                "LayerNorm": norm(embedding_size),
            }
        )
        attention = nn.ModuleDict({n: nn.Linear(wide, wide) for n in ("query", "key", "value", "dense")})
        attention["LayerNorm"] = norm(wide)
        layer = nn.ModuleDict(
            {
                "attention": attention,
                "ffn": nn.Linear(wide, intermediate_size),
                "ffn_output": nn.Linear(intermediate_size, wide),
                "full_layer_layer_norm": norm(wide),
            }
        )
        self.encoder = nn.ModuleDict(
            {
                "embedding_hidden_mapping_in": nn.Linear(embedding_size, wide),
                "albert_layer_groups": nn.ModuleList([nn.ModuleDict({"albert_layers": nn.ModuleList([layer])})]),
            }
        )

    def forward(self, ids, valid):
        e = self.embeddings
        x = e["word_embeddings"](ids) + e["token_type_embeddings"].weight[0]
        x = e["LayerNorm"](x + e["position_embeddings"].weight[: ids.shape[1]])
        x = self.encoder["embedding_hidden_mapping_in"](x)
        layer = self.encoder["albert_layer_groups"][0]["albert_layers"][0]
        attention, keep = layer["attention"], valid[:, None, None, :]
        for _ in range(self.depth):
            q, k, v = (
                attention[n](x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for n in ("query", "key", "value")
            )
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep).transpose(1, 2).flatten(2)
            x = attention["LayerNorm"](x + attention["dense"](y))
            y = layer["ffn_output"](F.gelu(layer["ffn"](x), approximate="tanh"))
            x = layer["full_layer_layer_norm"](x + y)
        return x


class Valid:
    """Masks and counts of the real (not padding) steps, for any of the decoder's frame rates."""

    def __init__(self, frames):
        self.frames, self.longest, self.known = frames, int(frames.max()), {}

    def __call__(self, x):
        size = x.shape[-1]
        if size not in self.known:
            rate, extra = divmod(size, self.longest)
            count = (self.frames * rate + extra)[:, None, None]
            self.known[size] = (torch.arange(size, device=count.device) < count).float(), count
        return self.known[size]

    def cut(self, x):
        return x * self(x)[0].to(x.dtype)


def modulate(x, mask, count, style):
    """Instance norm over the real steps, scaled and shifted by the style; 0 in the padding."""
    x = x.float() * mask
    var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    stretch = x.shape[-1] / count  # from "per padded step" to "per real step"
    power, mean = (var + mean.square()) * stretch, mean * stretch
    gamma, beta = style[..., None].float().chunk(2, 1)
    scale = (1 + gamma) * torch.rsqrt((power - mean.square()).clamp(min=0) + 1e-5)
    return torch.addcmul(beta - mean * scale, x, scale) * mask


def modulate_leaky(x, mask, count, style):
    return F.leaky_relu(modulate(x, mask, count, style), 0.2).to(x.dtype)


def modulate_snake(x, mask, count, style, alpha):
    y, alpha = modulate(x, mask, count, style), alpha.float()
    return torch.addcmul(y, torch.sin(y * alpha).square(), 1 / alpha).to(x.dtype)


def run_lstm(lstm, x, lengths):
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return pad_packed_sequence(lstm(packed)[0], batch_first=True)[0]


def allow_tf32(on):
    """Allows, on a GPU, TF32 for the decoder, full float32 for durations and F0."""
    torch.backends.cudnn.allow_tf32 = on
    torch.backends.cuda.matmul.allow_tf32 = on


class Kokoro(nn.Module):
    """Submodules and parameter names of kokoro.KModel, weight norm folded, batched with masks.

    `text` computes features and durations of the phonemes, `curves` pitch and energy, `speech` the audio.
    """

    def __init__(self, config, wheel=Path(WHEEL_NAME)):
        super().__init__()
        modules, istftnet = kokoro_layers(wheel)
        c, hidden, style = config, config["hidden_dim"], config["style_dim"]
        self.vocab = c["vocab"]
        self.bert = Albert(c["n_token"], **c["plbert"])
        self.bert_encoder = nn.Linear(c["plbert"]["hidden_size"], hidden)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.predictor = modules.ProsodyPredictor(style, hidden, c["n_layer"], c["max_dur"], c["dropout"])
            self.text_encoder = modules.TextEncoder(hidden, c["text_encoder_kernel_size"], c["n_layer"], c["n_token"])
            self.decoder = istftnet.Decoder(hidden, style, c["n_mels"], **c["istftnet"])
            for m in self.modules():
                if hasattr(m, "weight_g"):
                    remove_weight_norm(m)
        self.dtype, self.leaky, self.snake = torch.float32, modulate_leaky, modulate_snake
        self.eval().requires_grad_(False)

    @classmethod
    def load(cls, folder, device="cpu", dtype=torch.float32, compiled=False):
        """dtype float16 or bfloat16: the decoder's convolutions in that precision."""
        folder = Path(folder)
        net = cls(json.loads((folder / "config.json").read_text(encoding="utf-8")), folder / WHEEL_NAME)
        shapes = {name: value.shape for name, value in net.state_dict().items()}
        net.load_state_dict(load_weights(folder / "kokoro.safetensors", shapes), strict=True)
        net.to(device).decoder.to(dtype).generator.m_source.float()
        net.dtype = dtype
        if compiled:
            net.leaky, net.snake = (torch.compile(f, dynamic=True) for f in (net.leaky, net.snake))
        return net

    def ids(self, phonemes):
        return [0, *(self.vocab[p] for p in phonemes if p in self.vocab), 0]

    def text(self, ids, lengths, style, speed=1.0):
        """ids [B, T], lengths [B] (on the CPU), style [B, 256] ->
        prosody [B, T, 640], content [B, T, 512], durations [B, T] in frames."""
        allow_tf32(False)
        valid = torch.arange(ids.shape[1], device=ids.device) < lengths.to(ids.device)[:, None]
        h = self.bert_encoder(self.bert(ids, valid)).transpose(1, 2)
        prosody = self.predictor.text_encoder(h, style[:, 128:], lengths, ~valid)
        x = self.predictor.duration_proj(run_lstm(self.predictor.lstm, prosody, lengths))
        durations = (x.sigmoid().sum(-1) / speed).round().clamp(min=1).long() * valid
        return prosody, self.text_encoder(ids, lengths, ~valid).transpose(1, 2), durations

    def curves(self, prosody, durations, style, pitch=1.0):
        """The outputs of `text` -> F0 and energy [B, 2 * frames], and where the real frames are."""
        allow_tf32(False)
        ends = durations.cumsum(1)
        valid = Valid(ends[:, -1].contiguous())
        x = run_lstm(self.predictor.shared, self.stretched(prosody, ends, valid), valid.frames.cpu()).transpose(1, 2)
        p, s, curves = self.predictor, style[:, 128:], []
        for blocks, project in ((p.F0, p.F0_proj), (p.N, p.N_proj)):
            y = x
            for block in blocks:
                y = self.block(block, y, s, valid)
            curves.append(valid.cut(project(y))[:, 0])
        return curves[0] * pitch, curves[1], valid

    def stretched(self, x, ends, valid):
        """[B, T, width] -> [B, frames, width]"""
        at = torch.arange(valid.longest, device=ends.device).repeat(len(ends), 1)
        at = torch.searchsorted(ends, at, right=True).clamp(max=ends.shape[1] - 1)[..., None]
        return x.gather(1, at.expand(-1, -1, x.shape[2]))

    def speech(self, content, durations, style, f0, energy, valid, phase, noise=1.0):
        """The outputs of `text` and `curves`, and the phase of F0 at every sample (from 0 to 1) -> audio [B, samples].
        Sentence b is the first durations[b].sum() * HOP samples. With noise 0 it is deterministic."""
        allow_tf32(True)
        decoder, s = self.decoder, style[:, :128].to(self.dtype)
        content = valid.cut(self.stretched(content, durations.cumsum(1), valid).transpose(1, 2)).to(self.dtype)
        curves = zip((decoder.F0_conv, decoder.N_conv), (f0, energy), strict=True)
        low = [conv(c[:, None].to(self.dtype)) for conv, c in curves]
        x = self.block(decoder.encode, torch.cat([content, *low], 1), s, valid)
        side = torch.cat([decoder.asr_res(content), *low], 1)
        for block in decoder.decode:
            x = self.block(block, torch.cat([x, side], 1), s, valid)
        return self.vocoder(x, f0, phase, s, valid, noise)

    def block(self, m, x, s, valid):
        y = self.leaky(x, *valid(x), m.norm1.fc(s))
        if m.upsample_type != "none":
            y, x = valid.cut(m.pool(y)), m.upsample(x)
        y = m.conv1(y)
        y = m.conv2(self.leaky(y, *valid(y), m.norm2.fc(s)))
        return (y + (m.conv1x1(x) if m.learned_sc else x)) * math.sqrt(0.5)

    def res(self, m, x, s, valid):
        where = valid(x)
        for i in range(len(m.convs1)):
            y = m.convs1[i](self.snake(x, *where, m.adain1[i].fc(s), m.alpha1[i]))
            x = x + m.convs2[i](self.snake(y, *where, m.adain2[i].fc(s), m.alpha2[i]))
        return x

    def vocoder(self, x, f0, phase, s, valid, noise):
        g, n = self.decoder.generator, self.decoder.generator.num_kernels
        harmonics = valid.cut(self.harmonics(f0, phase, valid, noise)).to(self.dtype)
        for i, up in enumerate(g.ups):
            x = up(F.leaky_relu(valid.cut(x), 0.1))
            if i == len(g.ups) - 1:
                x = g.reflection_pad(x)
            x = x + self.res(g.noise_res[i], g.noise_convs[i](harmonics), s, valid)
            x = sum(self.res(m, x, s, valid) for m in g.resblocks[i * n : (i + 1) * n]) / n
        x = g.conv_post(F.leaky_relu(valid.cut(x), 0.01)).float()
        level, angle = valid.cut(x[:, : g.post_n_fft // 2 + 1].exp()), x[:, g.post_n_fft // 2 + 1 :].sin()
        return g.stft.inverse(level, angle)[:, 0]

    def harmonics(self, f0, phase, valid, noise):
        """F0 curve [B, T] and its phase [B, CYCLE * T] -> magnitudes and phases of the source signal [B, 22, 60 T + 1].
        All harmonics start at phase 0; the original draws theirs at random."""
        source = self.decoder.generator.m_source
        sine = source.l_sin_gen
        order = torch.arange(1, sine.dim + 1, device=f0.device)[:, None]
        x = torch.sin(2 * math.pi * phase[:, None] * order) * sine.sine_amp
        voiced = (f0 > sine.voiced_threshold).repeat_interleave(CYCLE, 1)[:, None]
        x = x * voiced
        if noise:
            x = x + torch.randn_like(x) * torch.where(voiced, sine.noise_std, sine.sine_amp / 3) * noise
        x = source.l_tanh(source.l_linear(x.transpose(1, 2)))[..., 0]
        at, last = torch.arange(x.shape[1], device=x.device), valid.frames[:, None] * HOP - 1
        x = x.gather(1, torch.where(at > last, 2 * last - at, at).clamp(min=0))  # mirror each end
        return torch.cat(self.decoder.generator.stft.transform(x), 1)
