"""Errors of the service as they go over the wire before a stream begins: status, type in a header, message in the body."""

from typing import Any

STATUS = {
    "ThrottlingException": 429,
    "ValidationException": 400,
    "ServiceQuotaExceededException": 402,
    "AccessDeniedException": 403,
    "UnauthorizedException": 401,
    "ResourceNotFoundException": 404,
    "ConflictException": 409,
    "RetryableConflictException": 409,
    "RuntimeClientError": 424,
    "InternalServerException": 500,
}


class Refused(Exception):
    """The request is answered with this error of the service's model."""

    def __init__(self, kind: str, message: str = "Refused by the stand-in.", retry_after: int | None = None) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message, self.retry_after = kind, message, retry_after

    @property
    def status(self) -> int:
        """Its HTTP status; what the model does not know is a 500."""
        return STATUS.get(self.kind, 500)

    @property
    def headers(self) -> dict[str, str]:
        """The type, and when to come again."""
        again = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        return {"x-amzn-errortype": self.kind, **again}

    @property
    def document(self) -> dict[str, Any]:
        """The body."""
        said: dict[str, Any] = {"message": self.message}
        if self.kind == "ValidationException":
            said["reason"] = "FieldValidationFailed"
        return said
