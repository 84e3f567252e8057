"""Messaging: topics, topologies, codecs, outcomes and the decision what becomes of a message.

Pure: no I/O, no clock, no trio, no randomness. Everything here is a value or a function of its
arguments; the runtime carries out what this floor decides.
"""

from __future__ import annotations

from ._audit_record import AttemptCause as AttemptCause
from ._audit_record import AuditRecord as AuditRecord
from ._audit_record import trace_id_of as trace_id_of
from ._builder import TopologyBuilder as TopologyBuilder
from ._codec import RAW as RAW
from ._codec import BytesCodec as BytesCodec
from ._codec import Codec as Codec
from ._codec_json import JsonCodec as JsonCodec
from ._codec_msgpack import MsgpackCodec as MsgpackCodec
from ._collisions import check_collisions as check_collisions
from ._death import DeathReason as DeathReason
from ._death import dead_headers as dead_headers
from ._death import replay_headers as replay_headers
from ._death import sanitise_detail as sanitise_detail
from ._header_names import CONTROL as CONTROL
from ._header_names import DEATH_CAUSE as DEATH_CAUSE
from ._header_names import DEATH_COUNT as DEATH_COUNT
from ._header_names import DEATH_DETAIL as DEATH_DETAIL
from ._header_names import DEATH_REASON as DEATH_REASON
from ._header_names import DEFER_COUNT as DEFER_COUNT
from ._header_names import DESCRIPTION as DESCRIPTION
from ._header_names import DIED_AT as DIED_AT
from ._header_names import DUE_AFTER as DUE_AFTER
from ._header_names import FIRST_FAILED_AT as FIRST_FAILED_AT
from ._header_names import FOREIGN_DESCRIPTION as FOREIGN_DESCRIPTION
from ._header_names import FOREIGN_STATUS as FOREIGN_STATUS
from ._header_names import KEY as KEY
from ._header_names import MESSAGE_ID as MESSAGE_ID
from ._header_names import MSG_ID as MSG_ID
from ._header_names import ORIGIN as ORIGIN
from ._header_names import ORIGINAL_QUEUE as ORIGINAL_QUEUE
from ._header_names import ORIGINAL_SEQUENCE as ORIGINAL_SEQUENCE
from ._header_names import ORIGINAL_STREAM as ORIGINAL_STREAM
from ._header_names import ORIGINAL_SUBJECT as ORIGINAL_SUBJECT
from ._header_names import POISONING as POISONING
from ._header_names import PUBLISHED_AT as PUBLISHED_AT
from ._header_names import RETRY_COUNT as RETRY_COUNT
from ._header_names import STATUS as STATUS
from ._headers import MAX_HEADER_BLOCK as MAX_HEADER_BLOCK
from ._headers import copy_headers as copy_headers
from ._headers import decode_headers as decode_headers
from ._headers import decode_key as decode_key
from ._headers import encode_headers as encode_headers
from ._headers import encode_key as encode_key
from ._headers import has_shove_headers as has_shove_headers
from ._headers import has_status_header as has_status_header
from ._headers import hop_headers as hop_headers
from ._headers import read_counter as read_counter
from ._headers import validate_message_id as validate_message_id
from ._headers import validate_user_headers as validate_user_headers
from ._ids import dead_id as dead_id
from ._ids import defer_id as defer_id
from ._ids import logical_id as logical_id
from ._ids import origin_of as origin_of
from ._ids import replay_id as replay_id
from ._ids import retry_id as retry_id
from ._ids import return_id as return_id
from ._metadata import DeadMetadata as DeadMetadata
from ._metadata import MessageMetadata as MessageMetadata
from ._metadata import Stored as Stored
from ._metadata import stored_of as stored_of
from ._names import attempts_stream as attempts_stream
from ._names import bucket_stream as bucket_stream
from ._names import bucket_subject as bucket_subject
from ._names import owners_bucket as owners_bucket
from ._names import poison_bucket as poison_bucket
from ._outcome import Defer as Defer
from ._outcome import Outcome as Outcome
from ._outcome import Reject as Reject
from ._outcome import Retry as Retry
from ._outcome import Unaudited as Unaudited
from ._poison import Control as Control
from ._poison import PoisonedKey as PoisonedKey
from ._poison import PoisonRecord as PoisonRecord
from ._poison import control_headers as control_headers
from ._poison import decode_record as decode_record
from ._poison import encode_record as encode_record
from ._poison import letter_id as letter_id
from ._poison import letter_origin as letter_origin
from ._poison import mark_name as mark_name
from ._poison import poison_record as poison_record
from ._poison import poisoning_of as poisoning_of
from ._poison import skip_refusal as skip_refusal
from ._resharding import RESHARDED as RESHARDED
from ._resharding import ShardLayout as ShardLayout
from ._resharding import closed_subject as closed_subject
from ._resharding import declares_shards as declares_shards
from ._resharding import layout_of as layout_of
from ._resharding import publish_refusal as publish_refusal
from ._resharding import removed_shard as removed_shard
from ._resharding import resharded_refusal as resharded_refusal
from ._resharding import shard_subjects as shard_subjects
from ._retry import Limits as Limits
from ._retry import redeliveries as redeliveries
from ._retry import retries_by_nak as retries_by_nak
from ._routing import Ack as Ack
from ._routing import Cause as Cause
from ._routing import Dead as Dead
from ._routing import DeliveryFacts as DeliveryFacts
from ._routing import Discard as Discard
from ._routing import Hop as Hop
from ._routing import Nak as Nak
from ._routing import Verdict as Verdict
from ._routing import before_handling as before_handling
from ._routing import effective_retry_count as effective_retry_count
from ._routing import give_up as give_up
from ._routing import route as route
from ._sharding import fnv1a_64 as fnv1a_64
from ._sharding import shard_of as shard_of
from ._stream_config import DUPLICATE_WINDOW_S as DUPLICATE_WINDOW_S
from ._stream_config import NatsStreamConfig as NatsStreamConfig
from ._stream_config import Retention as Retention
from ._stream_config import Storage as Storage
from ._subjects import matches as matches
from ._subjects import overlap as overlap
from ._times import from_ns as from_ns
from ._times import from_rfc3339 as from_rfc3339
from ._times import rfc3339 as rfc3339
from ._topic import SequencedTopic as SequencedTopic
from ._topic import Topic as Topic
from ._topology import DEFAULT_SHARDS as DEFAULT_SHARDS
from ._topology import HoldQueue as HoldQueue
from ._topology import SequenceFailure as SequenceFailure
from ._topology import Topology as Topology

__all__ = [
    "CONTROL",
    "DEATH_CAUSE",
    "DEATH_COUNT",
    "DEATH_DETAIL",
    "DEATH_REASON",
    "DEFAULT_SHARDS",
    "DEFER_COUNT",
    "DESCRIPTION",
    "DIED_AT",
    "DUE_AFTER",
    "DUPLICATE_WINDOW_S",
    "FIRST_FAILED_AT",
    "FOREIGN_DESCRIPTION",
    "FOREIGN_STATUS",
    "KEY",
    "MAX_HEADER_BLOCK",
    "MESSAGE_ID",
    "MSG_ID",
    "ORIGIN",
    "ORIGINAL_QUEUE",
    "ORIGINAL_SEQUENCE",
    "ORIGINAL_STREAM",
    "ORIGINAL_SUBJECT",
    "POISONING",
    "PUBLISHED_AT",
    "RAW",
    "RESHARDED",
    "RETRY_COUNT",
    "STATUS",
    "Ack",
    "AttemptCause",
    "AuditRecord",
    "BytesCodec",
    "Cause",
    "Codec",
    "Control",
    "Dead",
    "DeadMetadata",
    "DeathReason",
    "Defer",
    "DeliveryFacts",
    "Discard",
    "HoldQueue",
    "Hop",
    "JsonCodec",
    "Limits",
    "MessageMetadata",
    "MsgpackCodec",
    "Nak",
    "NatsStreamConfig",
    "Outcome",
    "PoisonRecord",
    "PoisonedKey",
    "Reject",
    "Retention",
    "Retry",
    "SequenceFailure",
    "SequencedTopic",
    "ShardLayout",
    "Storage",
    "Stored",
    "Topic",
    "Topology",
    "TopologyBuilder",
    "Unaudited",
    "Verdict",
    "attempts_stream",
    "before_handling",
    "bucket_stream",
    "bucket_subject",
    "check_collisions",
    "closed_subject",
    "control_headers",
    "copy_headers",
    "dead_headers",
    "dead_id",
    "declares_shards",
    "decode_headers",
    "decode_key",
    "decode_record",
    "defer_id",
    "effective_retry_count",
    "encode_headers",
    "encode_key",
    "encode_record",
    "fnv1a_64",
    "from_ns",
    "from_rfc3339",
    "give_up",
    "has_shove_headers",
    "has_status_header",
    "hop_headers",
    "layout_of",
    "letter_id",
    "letter_origin",
    "logical_id",
    "mark_name",
    "matches",
    "origin_of",
    "overlap",
    "owners_bucket",
    "poison_bucket",
    "poison_record",
    "poisoning_of",
    "publish_refusal",
    "read_counter",
    "redeliveries",
    "removed_shard",
    "replay_headers",
    "replay_id",
    "resharded_refusal",
    "retries_by_nak",
    "retry_id",
    "return_id",
    "rfc3339",
    "route",
    "sanitise_detail",
    "shard_of",
    "shard_subjects",
    "skip_refusal",
    "stored_of",
    "trace_id_of",
    "validate_message_id",
    "validate_user_headers",
]
