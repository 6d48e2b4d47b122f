"""Text from tokens as they come: only what no later token changes, and at the end the same as decoding all at once."""

from collections.abc import Sequence

from .special_tokens import Tokenizer


class Detokenizer:
    """The text of tokens that come one by one, after those of a prompt."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()):
        self.tokenizer = tokenizer
        self.before: list[int] = []  # the tokens before those that wait, where their text decides the text that follows
        for token in reversed(prompt if tokenizer.joined else ()):
            if not tokenizer.hidden(token):
                self.before.insert(0, token)
                if not tokenizer.pending(token):
                    break
        self.waiting: list[int] = []
        self.emitted = 0  # characters of the waiting tokens already in the text
        self.text = ""  # before it is tidied
        self.returned = 0  # characters returned

    def add(self, *tokens: int) -> str:
        """The new text; that of several tokens at once costs less than of one after the other."""
        self.waiting += tokens
        visible = [i for i in self.waiting if not self.tokenizer.hidden(i)]
        if not visible or self.tokenizer.pending(visible[-1]):
            return ""
        text = self._waiting_text()
        # an incomplete character at the end decodes to U+FFFD: hold it back until its remaining bytes come
        partial = text.endswith("\ufffd")
        complete = text[:-1] if partial else text
        self.text += complete[self.emitted :]
        self.emitted = len(complete) if partial else 0
        if not partial:
            self.waiting.clear()
            self.before = visible[-1:] if self.tokenizer.joined else []
        return self._new(self.text[: self.tokenizer.certain(self.text)])

    def rest(self) -> str:
        """What was held back, when no more tokens come."""
        if self.waiting:
            self.text += self._waiting_text()[self.emitted :]
        return self._new(self.text)

    def _waiting_text(self) -> str:
        before = len(self.tokenizer.plain(self.before)) if self.before else 0
        return self.tokenizer.plain(self.before + self.waiting)[before:]

    def _new(self, text: str) -> str:
        tidied = self.tokenizer.tidy(text)
        new, self.returned = tidied[self.returned :], max(self.returned, len(tidied))
        return new
