"""Every exception of the package, in one tree, sorted by whose fault it is.

    ShoveError
    ├─ UsageError          your bug: fix the call; retrying cannot help
    ├─ UnavailableError    the world's fault: the same call may succeed later
    ├─ ActorError          an actor or its supervisor ended, refused or is full
    └─ PublishError        one message was not stored; says whether it may have been

Messages name the field, the rule and the fix. No message, attribute or cause ever carries a
credential or a payload: whatever text comes from outside passes `redact` first.
"""

from __future__ import annotations


class ShoveError(Exception):
    """Root of everything this package raises on purpose."""


# --------------------------------------------------------------------------- your bug


class UsageError(ShoveError):
    """The call or the configuration is wrong. Fix the code; never retried."""


class TopologyError(UsageError):
    """A topology is invalid, or what exists on the server contradicts it.

    The message names the rule or the setting, both values, and the way out.
    """


class TopicNotDeclared(TopologyError):
    """No stream takes this topic's messages: call `broker.declare(topic)` first."""


class ConfigError(UsageError, ValueError):
    """A connection setting is missing, contradictory or unusable. The field is named."""


class HeaderError(UsageError, ValueError):
    """A header name or value is not allowed (reserved, or would break the protocol)."""


class CodecError(ShoveError, ValueError):
    """A payload could not be encoded or decoded as the topic's message type."""


class DecodeError(CodecError):
    """The payload does not decode as the topic's message type; nothing was called."""


class EncodeError(CodecError, TypeError):
    """The message is not of the topic's type, or cannot be serialised by its codec."""


class BrokerClosed(UsageError):
    """The broker is closed, or this task runs outside its `async with` block."""


class PermissionDenied(UsageError):
    """The server does not let this user publish to, or subscribe to, a subject.

    `subject` is that subject, `operation` "publish" or "subscribe". Have the permission granted,
    or connect as somebody who has it.
    """

    def __init__(self, message: str, *, subject: str = "", operation: str = "publish") -> None:
        super().__init__(message)
        self.subject = subject
        self.operation = operation


class HandlerError(UsageError):
    """A handler has a signature that the runtime cannot call. Fix the registration."""


# ------------------------------------------------------------------------- the world's fault


class UnavailableError(ShoveError):
    """Something outside this process is missing, closed or too slow. Retrying may help."""


class ConnectionError(UnavailableError, OSError):
    """The server cannot be reached, refused us, or was lost for good.

    Carries redacted addresses only. After `max_reconnect_attempts` this reaches the supervisor.
    """


class AuthenticationError(ConnectionError):
    """The server refused our credentials (or has seen them expire). Check the named field."""


class TLSError(ConnectionError):
    """Encryption was required and could not be had; nothing was sent in the clear."""


class RequestTimeout(UnavailableError, TimeoutError):
    """The server did not answer in time. The request may or may not have been carried out."""


class JetStreamNotEnabled(UnavailableError):
    """The server runs without JetStream (start it with the `-js` flag), or is not ready yet."""


class FeatureUnavailable(UnavailableError):
    """This server version lacks a feature; the message names the version that has it."""


class ReshardTimeout(UnavailableError, TimeoutError):
    """The topic was not drained in time, so it keeps its number of shards. See the message."""


class EmbeddedServerError(UnavailableError):
    """The embedded nats-server could not be started, or ended by itself."""


# -------------------------------------------------------------------------------- actors


class ActorError(ShoveError):
    """An actor or its supervisor ended, refused or is full."""


class ActorGone(ActorError):
    """The actor ended before it could answer, or its slot is closed for good."""


class MailboxFull(ActorError):
    """`tell_nowait` found no room. Use `tell` to wait for room."""


class StartFailed(ActorError):
    """A child ended, or ran out of time, before it said it was started. See the cause."""


class NameTaken(ActorError):
    """A name is registered already. Names are unique within one actor system."""


class RestartIntensityExceeded(ActorError):
    """A supervisor gave up: more restarts than its budget allows. See the last crash (cause)."""


# ----------------------------------------------------------------------------- publishing


class PublishError(ShoveError):
    """One message could not be published.

    `stored` says what is known: False (refused, nothing stored) or None (unknown: the
    acknowledgement never came; publishing again with the same `message_id` is safe).
    """

    stored: bool | None = False


class StreamFull(PublishError):
    """The stream is at a limit and refuses new messages. Consume, or raise its limit."""


class MessageTooLarge(PublishError):
    """Payload plus headers exceed the server's `max_payload`; nothing was sent."""


class PublishRefused(PublishError):
    """The server refused the message; the code and the description are its own."""


class PublishForbidden(PermissionDenied, PublishRefused):
    """This user may not publish to the message's subject; nothing was stored."""


class PublishUnknown(PublishError, UnavailableError):
    """No acknowledgement came in time. Publishing again with the same `message_id` is safe."""

    stored: bool | None = None


class NotConnected(PublishError, UnavailableError):
    """There is no connection and the message was not sent."""


class ReshardUnderWay(PublishError, UnavailableError):
    """The topic's number of shards is being changed; nothing can be published meanwhile.

    Publish again later, with the same `message_id`, from a program that has the new number.
    """

    stored: bool | None = None


class BatchError(PublishError):
    """Some messages of a batch were not stored; `results` holds one entry per message."""

    def __init__(self, message: str, results: list[object] | None = None) -> None:
        super().__init__(message)
        self.results: list[object] = results if results is not None else []


# -------------------------------------------------------------------------- JetStream client


class JetStreamError(ShoveError):
    """Root of what the JetStream client reports."""


class ApiError(JetStreamError):
    """The server answered an API request with an error.

    `code` is the HTTP-like status, `err_code` JetStream's own number, `description` its text.
    """

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(f"{description} (code {code}, err_code {err_code})")
        self.code = code
        self.err_code = err_code
        self.description = description


class StreamNotFound(ApiError):
    """No stream of that name (10059)."""


class StreamNameInUse(ApiError):
    """A stream of that name exists with another configuration (10058)."""


class ConsumerNotFound(ApiError):
    """No consumer of that name on the stream (10014)."""


class ConsumerExists(ApiError):
    """A consumer of that name exists with another configuration (10148 or 10105)."""


class ConsumerCreateFailed(ApiError):
    """The consumer's configuration was refused (10012)."""


class MessageNotFound(ApiError):
    """No message at that sequence or subject (10037)."""


class WrongLastSequence(ApiError):
    """An expected last sequence did not match (10071, 10164)."""


class NoResponders(JetStreamError, UnavailableError):
    """Nobody listens on the subject of the request (503)."""


class ConsumerDeleted(JetStreamError):
    """The consumer was deleted while it was being read."""


class NotPullConsumer(JetStreamError):
    """The consumer is a push consumer; it cannot be pulled from."""
