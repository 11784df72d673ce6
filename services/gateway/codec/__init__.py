"""JSON of the REST API from and to protobuf messages, driven by descriptors (REST API, "JSON").

How it differs from `google.protobuf.json_format`: names are `snake_case` only; enums are lower-case short names (`completed`), the zero value is
`null`; 64-bit integers are numbers; integers and booleans are never taken from text; what a double cannot hold exactly is refused; every problem
is reported at once, with its path.
"""

from services.gateway.codec.decode import message_decoder, parameter_decoder
from services.gateway.codec.encode import dump, message_encoder
from services.gateway.codec.text import parse_json

__all__ = ["dump", "message_decoder", "message_encoder", "parameter_decoder", "parse_json"]
