"""A Protobuf message type for tests, without a compiler."""

from __future__ import annotations

from google.protobuf import descriptor_pb2, timestamp_pb2


def message_class() -> tuple[bytes, str]:
    """A descriptor set with a message of many kinds of fields, as protoc writes it."""
    file = descriptor_pb2.FileDescriptorProto(name="e.proto", package="t", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    message = file.message_type.add(name="Event")
    kinds = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind, repeated, type_name) in enumerate(
        [
            ("id", kinds.TYPE_INT64, False, ""),
            ("names", kinds.TYPE_STRING, True, ""),
            ("raw", kinds.TYPE_BYTES, False, ""),
            ("at", kinds.TYPE_MESSAGE, False, ".google.protobuf.Timestamp"),
            ("next", kinds.TYPE_MESSAGE, False, ".t.Event"),
        ],
        1,
    ):
        label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
        message.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)
    timestamps = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(timestamps)
    return descriptor_pb2.FileDescriptorSet(file=[timestamps, file]).SerializeToString(), "t.Event"
