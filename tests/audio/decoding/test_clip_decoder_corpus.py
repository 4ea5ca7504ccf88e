"""Every clip of the corpus is read, or refused with its reason, and none costs much memory."""

import resource

import pytest

from oscine.audio.clips import read_clip
from oscine.audio.decoding.wire import REFERENCE_CLIP
from oscine.errors import VoiceError
from tests.corpora.clips import CLIPS

pytestmark = pytest.mark.slow

_MAX_GROWTH_MIB = 100  # a minute at 192 kHz has 46 MB


@pytest.mark.parametrize("name", CLIPS)
def test_a_clip_is_read_or_refused_with_its_reason(name: str) -> None:
    case = CLIPS[name]
    clip = case.make()
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if case.refusal is None:
        assert read_clip(clip, REFERENCE_CLIP).duration_s == pytest.approx(case.duration_s, abs=0.15)
    else:
        with pytest.raises(VoiceError) as caught:
            read_clip(clip, REFERENCE_CLIP)
        assert case.refusal in str(caught.value)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 1024 < _MAX_GROWTH_MIB
