"""What a request is refused with: each has its HTTP status."""

from ..config import UserError


class Refused(UserError):
    """A request that is not answered, with the HTTP status that says why."""

    def __init__(self, sentence: str, status: int = 400):
        super().__init__(sentence)
        self.status = status


class Gone(Refused):
    """What a request is about is no longer kept: the page records it again, or shows the sentence."""

    def __init__(self, sentence: str):
        super().__init__(sentence, 410)


class Unknown(Refused):
    """There is nothing of that name."""

    def __init__(self, sentence: str):
        super().__init__(sentence, 404)
