"""Every exception of the package, in one tree, sorted by whose fault it is.

    ShoveError
    ├─ UsageError          your bug: fix the call; retrying cannot help
    ├─ UnavailableError    the world's fault: the same call may succeed later
    ├─ ActorError          an actor or its supervisor ended, refused or is full
    ├─ PublishError        one message was not stored; says whether it may have been
    └─ JetStreamError      what the JetStream client reports; ApiError is the server's answer

Messages name the field, the rule and the fix. No message, attribute or cause ever carries a
credential or a payload: whatever text comes from outside passes `redact` first.
"""

from __future__ import annotations


class ShoveError(Exception):
    """Root of everything this package raises on purpose."""


class JetStreamError(ShoveError):
    """Root of what the JetStream client reports."""


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
    """The broker, or the connection of the JetStream client, is closed; or this task runs outside
    its `async with` block."""


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


class RequestTimeout(JetStreamError, UnavailableError, TimeoutError):
    """The server did not answer in time. The request may or may not have been carried out."""


class JetStreamNotEnabled(JetStreamError, UnavailableError):
    """The server runs without JetStream (start it with the `-js` flag), or is not ready yet."""


class JetStreamNotEnabledForAccount(JetStreamNotEnabled):
    """The server has JetStream, but not for this user's account (10039)."""


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
# One class for each thing that a program may want to tell apart. `jetstream/_api_errors.py` maps
# the server's numbers to them. An exception that is also a `UsageError` is the caller's bug, one
# that is also an `UnavailableError` may not happen the next time.


class InvalidOption(JetStreamError, UsageError, ValueError):
    """An argument is out of range, or contradicts another one. Nothing was sent."""


class InvalidName(InvalidOption):
    """No stream, consumer, bucket or key can have this name. Nothing was sent."""


class ApiError(JetStreamError):
    """The server answered an API request with an error.

    `code` is the HTTP-like status, `err_code` JetStream's own number, `description` its text.
    """

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(f"{description} (code {code}, err_code {err_code})")
        self.code = code
        self.err_code = err_code
        self.description = description


class BadRequest(ApiError):
    """The server did not understand the request or refuses its combination of options (10003)."""


# -- streams


class StreamNotFound(ApiError):
    """No stream of that name (10059)."""


class StreamNameInUse(ApiError):
    """A stream of that name exists with another configuration (10058)."""


class StreamSealed(ApiError):
    """The stream is sealed: nothing is stored in it or removed from it any more (10109)."""


class ServerTooOld(JetStreamError, FeatureUnavailable):
    """The server left out a setting that was asked for. The stream exists, without it."""


class MessageNotFound(ApiError):
    """No message at that sequence or subject (10037, or 404 of a direct get)."""


class MessageDeleteFailed(ApiError):
    """The message was not deleted: it is gone already (10043), or may not be deleted (10057)."""


# -- consumers


class ConsumerNotFound(ApiError):
    """No consumer of that name on the stream (10014)."""


class ConsumerExists(ApiError):
    """A consumer of that name exists with another configuration (10148 or 10105)."""


class ConsumerDoesNotExist(ApiError):
    """There is no consumer of that name to update (10149)."""


class ConsumerCreateFailed(ApiError):
    """The consumer's configuration was refused (10012)."""


class MaxConsumersReached(ApiError):
    """The stream or the account has as many consumers as it may have (10026)."""


class ConsumerInvalidReset(ApiError):
    """The consumer cannot be reset to that sequence: its deliver policy forbids it (10204)."""


class FilterError(ApiError):
    """The filter subjects exclude or overlap each other, or one is empty (10136, 10138, 10139)."""


# -- publishing


class WrongLastSequence(ApiError):
    """An expected last sequence did not match (10071, 10164). Nothing was stored."""


class WrongLastMsgId(ApiError):
    """The stream's last message has another id, or none (10070). Nothing was stored."""


class StreamMismatch(ApiError):
    """The subject belongs to another stream than the expected one (10060). Nothing was stored."""


class ApiStreamFull(ApiError, StreamFull):
    """The stream is at a limit and refuses new messages (10077)."""


class ApiMessageTooLarge(ApiError, MessageTooLarge):
    """The message is larger than the stream's `max_msg_size` (10054)."""


class ScheduleError(ApiError):
    """The schedule was refused: disabled, a bad pattern, target, TTL or source (10186 to 10192,
    10203)."""


class AtomicBatchError(ApiError):
    """The atomic batch was refused as a whole: disabled, a gap or a pause of over ten seconds, too
    large, a bad id or a message id twice, or too many open ones: publish it again later (10174,
    10176, 10179, 10199, 10201, 10210)."""


class NoStreamResponse(JetStreamError, UnavailableError, PublishError):
    """No stream takes the subject, or its leader did not answer. Nothing was stored."""


class InvalidAck(JetStreamError, PublishError):
    """What answered is no acknowledgement: somebody else listens on the subject."""

    stored: bool | None = None


class PublishTimeout(PublishUnknown, RequestTimeout):
    """No acknowledgement came in time. Publishing again is safe with the same message id only."""


class Disconnected(JetStreamError, PublishUnknown, ConnectionError):
    """The connection was lost before the acknowledgement came: stored or not, nobody knows.

    Publishing again is safe with the same message id only.
    """


class TooManyStalled(JetStreamError, UnavailableError, PublishError):
    """`max_pending` acknowledgements are outstanding for longer than `stall_wait`. Not sent."""


class PublisherClosed(JetStreamError, PublishError):
    """The JetStream context was left or cleaned up before the acknowledgement came."""

    stored: bool | None = None


# -- reading


class NoResponders(JetStreamError, UnavailableError):
    """Nobody listens on the subject of the request (503)."""


class ConsumerDeleted(JetStreamError):
    """The consumer was deleted while it was being read."""


class NotPullConsumer(JetStreamError):
    """The consumer is a push consumer; it cannot be pulled from."""


class ConnectionClosed(JetStreamError, ConnectionError):
    """The connection was closed, or given up for good, while something was waiting for it."""


class NotPushConsumer(JetStreamError):
    """The consumer is a pull consumer; read it with `fetch`, `messages` or `consume`."""


class AlreadyConsuming(JetStreamError, UsageError):
    """This handle is being read already. Open another one, or end that reading first."""


class LeadershipChanged(JetStreamError, UnavailableError):
    """Another server leads the consumer now. Continuous reading goes on by itself."""


class ServerShutdown(JetStreamError, UnavailableError):
    """The server is going down. Continuous reading goes on after the reconnect."""


class NoHeartbeat(JetStreamError, UnavailableError):
    """Two heartbeats in a row are missing. Continuous reading asks again by itself."""


class PinIdMismatch(JetStreamError):
    """Another client of the priority group is pinned now (423). Reading waits for its turn."""


class MaxBytesExceeded(JetStreamError):
    """The next message is larger than the byte limit of the requests. Raise that limit."""


class RequestLimitExceeded(JetStreamError):
    """A request asked for more than the consumer's limits allow. The message says which."""


class FetchTimeout(JetStreamError, UnavailableError, TimeoutError):
    """No message came within `max_wait`. There may be one later."""


class IteratorClosed(JetStreamError):
    """These messages were read to their end, or their reading was stopped."""


class AlreadyAcked(JetStreamError, UsageError):
    """The message was settled before (`ack`, `nak` or `term`); it can be settled once."""


class FetchDisconnected(JetStreamError, ConnectionError):
    """The connection was lost before anything was fetched (legacy `fetch`). Fetch again."""


class ConsumerMismatch(JetStreamError, UsageError):
    """The existing consumer is not what was asked for; the message names the setting."""


class NotJetStreamMessage(JetStreamError, UsageError):
    """The message was not delivered by a consumer, so it has neither metadata nor settling."""


# ---------------------------------------------------------- key-value buckets, object stores


class KvError(JetStreamError):
    """Root of what key-value buckets report."""


class ObjectError(JetStreamError):
    """Root of what object stores report."""


class BucketNotFound(KvError, ObjectError):
    """No bucket of that name; or it was deleted while it was in use."""


class BucketExists(KvError, ObjectError):
    """A bucket of that name exists with another configuration."""


class BadBucket(KvError, ObjectError):
    """A stream has a bucket's name, but it is none (or of the other kind)."""


class InvalidKey(KvError, UsageError, ValueError):
    """No key, or no pattern of keys, can be spelled like that."""


class KeyNotFound(KvError):
    """The key has no value: never written, deleted, purged or expired."""


class KeyExists(KvError):
    """`create` found a value. The server's refusal is the cause."""


class KeyRevisionMismatch(KvError):
    """The key's newest revision is not the expected one: read it again, and decide anew."""


class HistoryTooLarge(KvError, UsageError, ValueError):
    """A bucket keeps at most 64 revisions per key."""


class MarkerTtlNotSupported(KvError, FeatureUnavailable):
    """Delete markers with a time to live need nats-server 2.11."""


class ObjectNotFound(ObjectError):
    """No object of that name (any more)."""


class ObjectExists(ObjectError):
    """An object has that name already, and would be lost."""


class BadObjectMeta(ObjectError):
    """An object's stored description cannot be read, or a given one cannot be stored."""


class DigestMismatch(ObjectError):
    """What was read is not what was written: the SHA-256 digest differs. Discard it."""


class ObjectCorrupt(ObjectError):
    """Some of the object's chunks are missing, or there are too many: store it again."""


class ObjectChanged(ObjectCorrupt, UnavailableError):
    """The object was overwritten or deleted while it was being read: read it again."""


class CantGetBucket(ObjectError, UsageError):
    """The object is a link to a whole bucket; open that bucket instead."""


class NoLinkToLink(ObjectError, UsageError):
    """A link must point to an object that is no link itself."""


class NoLinkToDeleted(ObjectError, UsageError):
    """A link must not point to a deleted object."""


class UpdateMetaDeleted(ObjectError):
    """A deleted or missing object has no description to update."""
