"""The text of one utterance while it is still open, on the callers' side: words in, messages for the loop out."""

from __future__ import annotations

import threading
from collections.abc import Callable

from oscine.engine.admission import End, PromptReady, TextAppended
from oscine.prompt.builder import StreamingPrompt
from oscine.prompt.incremental_tokenizer import IncrementalTokenizer
from oscine.prompt.tokenizer import check_text
from oscine.types import RequestError


class StreamingText:
    def __init__(self, utterance_id: str, feed: IncrementalTokenizer, prompt: StreamingPrompt, tts_eos_id: int) -> None:
        self._utterance_id, self._feed, self._prompt, self._tts_eos_id = utterance_id, feed, prompt, tts_eos_id
        self._first_ids: list[int] = []  # until there are enough for the prompt
        self._worded = self._begun = self._ended = False
        self._lock = threading.Lock()  # pieces keep their order, whatever threads bring them

    def take(self, text: str, post: Callable[[PromptReady | TextAppended | End], None], *, ended: bool) -> None:
        """Raises RequestError for a piece that cannot be spoken: nothing of it is taken then, the utterance goes on."""
        if not isinstance(text, str) or text.strip():
            check_text(text)  # pieces of white space alone are fine
        with self._lock:
            if self._ended:
                raise RequestError("this text has ended; start another utterance for more", "text")
            self._ended = ended
            self._worded |= bool(text.strip())
            text_ids = self._feed.push(text)
            if ended:
                text_ids += self._feed.finish()
            message = self._message(text_ids)
            if message:
                post(message)

    def _message(self, text_ids: list[int]) -> PromptReady | TextAppended | End | None:
        if self._begun:
            mark = [self._tts_eos_id] if self._ended else []
            return TextAppended(self._utterance_id, (*text_ids, *mark), len(text_ids), self._ended)
        if self._ended and not self._worded:
            error = RequestError("the text ended without a word; give at least one word to speak", "text")
            return End(self._utterance_id, "error", error)
        self._first_ids += text_ids
        if not self._first_ids or (not self._ended and len(self._first_ids) < self._prompt.ids_needed):
            return None
        self._begun = True
        try:
            prompt = self._prompt.build(self._feed.role_ids, self._first_ids, ended=self._ended)
        except RequestError as error:
            return End(self._utterance_id, "error", error)
        return PromptReady(self._utterance_id, prompt, len(self._first_ids), self._ended)
