#include "torch/torch.hpp"

#include "trireme/zero/replica_check.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/placed.hpp"
#include "trireme/comm/device_copies.hpp"
#include "trireme/comm/pinned_buffer.hpp"
#include "trireme/trace/guards.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::zero {
namespace {

// Multiplies and rotates words of eight bytes in eight lanes, which no step of another waits for,
// from four places of the array in turn, since memory gives one core more of several than of one.
// It is compared between copies of one array, nobody attacks it.
uint64_t digest_of(const std::byte* bytes, int64_t count) {
  constexpr uint64_t prime = 0x9e3779b97f4a7c15ULL;
  std::array<uint64_t, 8> lanes{1, 2, 3, 4, 5, 6, 7, 8};
  const auto mix = [](uint64_t lane, uint64_t word) { return std::rotl(lane ^ word, 29) * prime; };
  constexpr int64_t line = 64, places = 4;  // bytes
  const int64_t part = count / (places * line) * line;
  for (int64_t i = 0; i < part; i += line) {
    for (int64_t place = 0; place < places; ++place) {
      std::array<uint64_t, 8> words;
      std::memcpy(words.data(), bytes + place * part + i, sizeof words);
      for (size_t l = 0; l < lanes.size(); ++l) lanes[l] = mix(lanes[l], words[l]);
    }
  }
  for (int64_t i = places * part; i < count; ++i)
    lanes[0] = mix(lanes[0], std::to_integer<uint64_t>(bytes[i]));
  uint64_t digest = 0;
  for (const uint64_t lane : lanes) digest = mix(digest, lane);
  return digest;
}

// Digests of arrays, whoever has them: a device's through a page-locked buffer, piece by piece.
class Digests {
 public:
  // `count` values; 0 for an array that is not there.
  template <class T>
  uint64_t of(base::Placed<T> array, int64_t count, int64_t value_bytes) {
    if (array.address() == nullptr) return 0;
    const auto* bytes = reinterpret_cast<const std::byte*>(array.address());
    const int64_t size = count * value_bytes;
    if (array.memory() == base::Memory::host) return digest_of(bytes, size);
    uint64_t digest = 0;
    for (int64_t done = 0; done < size; done += piece) {
      const int64_t part = std::min(piece, size - done);
      digest = std::rotl(digest, 1) ^ digest_of(copy(bytes + done, part), part);
    }
    return digest;
  }

 private:
  static constexpr int64_t piece = int64_t{4} << 20;  // bytes
  const std::byte* copy(const std::byte* on_device, int64_t bytes) {
    if (buffer_.bytes() == 0)
      buffer_ = comm::PinnedBuffer(piece, "comparing replicas", "set train.replica_check = 0");
    comm::start_copy({.to = buffer_.data(),
                      .from = on_device,
                      .rows = 1,
                      .bytes = bytes,
                      .to_stride = bytes,
                      .from_stride = bytes});
    comm::finish_copies();
    return buffer_.data();
  }

  comm::PinnedBuffer buffer_;
};

}  // namespace

void require_equal_replicas(const comm::CommView& replicas, int world_rank, const std::string& name,
                            ShardedModel& model) {
  const trace::Region region{"compare replicas"};
  const trace::Guarding guard{trace::Guard::replicas};
  const auto& parameters = model.spec().parameters;
  Digests digests;
  std::vector<uint64_t> mine;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const int64_t count = model.own(p).elements();
    mine.push_back(parameters[p].trainable
                       ? digests.of(model.master(p), count, sizeof(float))
                       : digests.of(model.compute_slice(p), count, model.compute_bytes()));
    for (const auto& array : {model.moment1(p), model.moment2(p)})
      mine.push_back(digests.of(array, count, sizeof(float)));
  }
  const auto all = replicas.gather_ragged<uint64_t>(mine);
  const std::vector<int> ranks = replicas.gather_values(world_rank);
  for (size_t i = 0; i < mine.size(); ++i) {
    for (size_t other = 1; other < all.size(); ++other) {
      VALIDATE(all[other][i] == all[0][i], ExitCode::internal,
               "replicas differ: ", parameters[i / 3].spec.name, " of the ", name, " (",
               i % 3 == 0   ? "weights"
               : i % 3 == 1 ? "first moment"
                            : "second moment",
               ") on rank ", ranks[other], " is not that of rank ", ranks[0],
               ": a processor or memory of one of them computes wrong. Go on from the last "
               "checkpoint without those nodes");
    }
  }
}

}  // namespace trireme::zero
