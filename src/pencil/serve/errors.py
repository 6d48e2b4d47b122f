"""What a request is refused with, in the shape that OpenAI's clients read."""

from typing import Any

from ..config import UserError

TOO_LONG = "the request took longer than the server's --seconds; ask for less, or later"
TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class RequestError(UserError):
    """A request that is not answered: one sentence, the HTTP status, and the field that it is about."""

    def __init__(self, sentence: str, status: int = 400, field: str | None = None, code: str | None = None):
        super().__init__(sentence)
        self.status, self.field, self.code = status, field, code

    @staticmethod
    def inside(error: Exception) -> "RequestError":
        """What failed inside: its kind alone, no path and no traceback."""
        if isinstance(error, RequestError):
            return error
        if isinstance(error, MemoryError):
            return RequestError("there is not enough memory for this; try a shorter input", 503)
        return RequestError(f"this failed inside Pencil ({type(error).__name__}); --debug shows where", 500)

    def as_json(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.field, "code": self.code}}
