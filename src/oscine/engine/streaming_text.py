"""The streaming text of one utterance, on callers' threads: pieces of text in, messages to the loop out."""

from __future__ import annotations

import threading
from collections.abc import Callable

from oscine.engine.admission import EndSession, PromptReady, SessionMessage, TextAppended
from oscine.errors import RequestError
from oscine.prompt.builder import StreamingPrompt
from oscine.prompt.incremental_tokenizer import IncrementalTokenizer
from oscine.speech.capabilities import check_text


class StreamingText:
    def __init__(
        self, utterance_id: str, tokenizer: IncrementalTokenizer, prompt: StreamingPrompt, tts_eos_id: int
    ) -> None:
        self._utterance_id, self._tokenizer = utterance_id, tokenizer
        self._prompt, self._tts_eos_id = prompt, tts_eos_id
        self._first_ids: list[int] = []  # until the prompt has enough
        self._has_words = self._begun = self._ended = False
        self._lock = threading.Lock()  # pieces of several threads keep their order

    def append(self, text: str, post: Callable[[SessionMessage], None], *, ended: bool) -> None:
        """Raises RequestError for a piece that cannot be spoken; the utterance continues without it."""
        if not isinstance(text, str) or text.strip():
            check_text(text)  # a piece may be white space alone
        with self._lock:
            if self._ended:
                raise RequestError("this text has ended; start another utterance for more", "text")
            self._ended = ended
            self._has_words |= bool(text.strip())
            text_ids = self._tokenizer.push(text)
            if ended:
                text_ids += self._tokenizer.finish()
            if message := self._message(text_ids):
                post(message)

    def _message(self, text_ids: list[int]) -> SessionMessage | None:
        if self._begun:
            mark = [self._tts_eos_id] if self._ended else []
            return TextAppended(self._utterance_id, (*text_ids, *mark), len(text_ids), self._ended)
        if self._ended and not self._has_words:
            error = RequestError("the text ended without a word; send at least one word to speak", "text")
            return EndSession(self._utterance_id, "error", error)
        self._first_ids += text_ids
        if not self._first_ids or (not self._ended and len(self._first_ids) < self._prompt.ids_needed):
            return None
        self._begun = True
        try:
            prompt = self._prompt.build(self._tokenizer.role_ids, self._first_ids, ended=self._ended)
        except RequestError as error:
            return EndSession(self._utterance_id, "error", error)
        return PromptReady(self._utterance_id, prompt, len(self._first_ids), self._ended)
