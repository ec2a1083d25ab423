"""The values of secrets: which ones are accepted, wherever they come from."""

from phalanx.core.spec.fields import refusal

#: The longest value, in bytes.
VALUE_LIMIT_BYTES = 32 * 1024


def secret_value(value: object) -> str:
    """Read the value of a secret. No message contains the value."""
    if not isinstance(value, str):
        raise refusal("is not a string; write the value in quotes")
    if "\0" in value:
        raise refusal("contains a zero byte; encode the value, for example in Base64")
    if len(value.encode(errors="surrogatepass")) > VALUE_LIMIT_BYTES:
        raise refusal(f"is longer than {VALUE_LIMIT_BYTES} bytes, the most that a value has")
    return value
