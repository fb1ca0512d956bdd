// A bucket's contents: header, whole rows or changed elements, digest; written by the sender,
// checked and unpacked by the receiver.
#include <cstring>

#include "bucket_engine.hpp"
#include "delta_stream.hpp"
#include "digest.hpp"
#include "packing.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/fault_point.hpp"

namespace trireme::weightsync {

// Header and payload of a bucket into a slot; returns the payload's bytes.
int64_t BucketEngine::fill(const Flow& flow, const Bucket& bucket, std::byte* slot) {
  BucketHeader header;
  header.version = next_version_;
  header.number = bucket.number;
  std::byte* payload = slot + sizeof header;
  header.payload_bytes = sends_deltas(flow) ? encode(flow, bucket, payload) : 0;
  if (header.payload_bytes > 0) {
    header.is_delta = 1;
    header.base_version = version_;
    ++counters_.delta_buckets;
  } else {
    header.payload_bytes = bucket.elements * element_bytes_;
    pack(copier_, pieces_of(flow, bucket), element_bytes_, sources_.data, payload);
  }
  if (options_.verify)
    header.digest = XXH3_64bits(payload, static_cast<size_t>(header.payload_bytes));
  if (base::nan_wanted("bucket")) payload[header.payload_bytes / 2] ^= std::byte{1};
  std::memcpy(slot, &header, sizeof header);
  return header.payload_bytes;
}

bool BucketEngine::sends_deltas(const Flow& flow) const {
  return version_ != never && (!sources_.changed.empty() || !previous_.empty()) &&
         may_send_deltas(flow);
}

bool BucketEngine::may_send_deltas(const Flow& flow) const {
  return options_.delta == DeltaScope::everywhere ||
         (options_.delta == DeltaScope::between_nodes && flow.route == Route::message);
}

// The changed elements of a bucket, 0 when all of it is shorter.
int64_t BucketEngine::encode(const Flow& flow, const Bucket& bucket, std::byte* payload) {
  const auto full = static_cast<size_t>(bucket.elements * element_bytes_);
  DeltaEncoder encoder(std::span(payload, full - 1), static_cast<int>(element_bytes_));
  for (const Piece& piece : pieces_of(flow, bucket)) {
    for (int64_t r = 0; r < piece.run.rows; ++r) {
      const int64_t element = piece.run.source_offset + r * piece.run.source_stride;
      const std::byte* row =
          static_cast<const std::byte*>(sources_.data[piece.tensor]) + element * element_bytes_;
      const bool fits =
          sources_.changed.empty()
              ? encoder.add(row, previous_[piece.tensor].data() + element * element_bytes_,
                            piece.run.columns)
              : encoder.add(row, sources_.changed[piece.tensor], element, piece.run.columns);
      if (!fits) return 0;
    }
  }
  const size_t bytes = encoder.finish();
  if (bytes > 0) counters_.changed_elements += encoder.changed();
  return static_cast<int64_t>(bytes);
}

// Checks a bucket and writes it into the targets.
void BucketEngine::take_in(const Flow& flow, const Bucket& bucket, const std::byte* slot) {
  BucketHeader header;
  std::memcpy(&header, slot, sizeof header);
  const std::byte* payload = slot + sizeof header;
  const int64_t full = bucket.elements * element_bytes_;
  auto wrong = [&](const std::string& what, ExitCode code = ExitCode::internal) {
    if (error_) return;
    error_ =
        UserError(code, base::text("weight sync ", next_version_, ", bucket ", bucket.number,
                                   " from rank ", flow.from, " with ",
                                   tensors_[flow.pieces[bucket.first].tensor].name, ": ", what));
  };
  if (header.version != next_version_ || header.number != bucket.number) {
    return wrong(base::text("it is bucket ", header.number, " of version ", header.version));
  }
  if (header.payload_bytes < 0 || header.payload_bytes > full ||
      (header.is_delta == 0 && header.payload_bytes != full)) {
    return wrong(base::text("it has ", header.payload_bytes, " bytes instead of ", full));
  }
  if (options_.verify &&
      XXH3_64bits(payload, static_cast<size_t>(header.payload_bytes)) != header.digest) {
    return wrong("its digest does not fit: it was changed on the way");
  }
  const auto pieces = pieces_of(flow, bucket);
  if (header.is_delta == 0)
    return unpack(target_copier_, pieces, element_bytes_, payload, targets_);
  if (header.base_version != version_)
    return wrong(
        base::text("a delta against version ", header.base_version, ", here is ", version_));
  const std::span delta{payload, static_cast<size_t>(header.payload_bytes)};
  try {
    unpack_delta(pieces, element_bytes_, delta, bucket.elements, targets_);
  } catch (const UserError& error) { wrong(error.what(), error.code()); }
}

}  // namespace trireme::weightsync
