#include "in_place.hpp"

#include <algorithm>
#include <utility>

#include "digest.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/base/text.hpp"
#include "trireme/weightsync/sync.hpp"

namespace trireme::weightsync {
namespace {

constexpr int64_t sampled_bytes = 1024;  // of each end of a tensor

uint64_t sample_digest(std::span<const void* const> tensors, std::span<const int64_t> bytes) {
  uint64_t digest = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto size = static_cast<size_t>(std::min(bytes[i], sampled_bytes));
    if (size == 0) continue;
    const auto* begin = static_cast<const std::byte*>(tensors[i]);
    digest = XXH3_64bits_withSeed(begin, size, digest + i);
    digest = XXH3_64bits_withSeed(begin + bytes[i] - static_cast<int64_t>(size), size, digest);
  }
  return digest;
}

// The views of other processes' windows, one for each.
class Views {
 public:
  explicit Views(std::vector<comm::WindowView>& views) : views_(views) {}
  const std::byte* of(const comm::WindowFile& file) {
    const auto known = std::find(files_.begin(), files_.end(), file);
    if (known != files_.end()) return views_[static_cast<size_t>(known - files_.begin())].base();
    files_.push_back(file);
    return views_.emplace_back(file).base();
  }

 private:
  std::vector<comm::WindowView>& views_;
  std::vector<comm::WindowFile> files_;
};

}  // namespace

// Empty where one of the tensors lies in no window.
std::vector<SourcesInPlace::Place> SourcesInPlace::places_of(
    const std::vector<const void*>& tensors, const std::vector<int64_t>& bytes) {
  std::vector<Place> places;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Place one{bytes[i] > 0 ? comm::find_in_windows(tensors[i]) : comm::WindowPlace{{}, 0},
                    bytes[i]};
    if (one.place.offset < 0 ||
        (one.bytes > 0 && one.place.offset + one.bytes > one.place.file.bytes))
      return {};
    places.push_back(one);
  }
  return places;
}

SourcesInPlace::SourcesInPlace(const comm::CommView& node, std::vector<int> wanted, bool verify)
    : node_(node), wanted_(std::move(wanted)), verify_(verify) {}

std::string SourcesInPlace::begin(const std::vector<const void*>& mine,
                                  const std::vector<int64_t>& bytes) {
  EXPECT(mine.empty() || mine.size() == bytes.size());
  struct Beginning {
    uint64_t digest = 0;
    int32_t moved = 0;
  };
  std::vector<Place> places = places_of(mine, bytes);
  const bool moved = !looked_ || places != mine_;
  const auto all = node_.gather_values(
      Beginning{verify_ && !mine.empty() ? sample_digest(mine, bytes) : 0, moved ? 1 : 0});
  if (std::ranges::any_of(all, [](const Beginning& one) { return one.moved != 0; }))
    look(std::move(places));
  for (const int rank : wanted_) {
    const auto index = static_cast<size_t>(rank);
    if (!verify_ || !readable_[index] ||
        sample_digest(tensors_[index], bytes_[index]) == all[index].digest)
      continue;
    return base::text("it sees other bytes in the memory of rank ", rank,
                      " of the node than that rank does");
  }
  return "";
}

void SourcesInPlace::look(std::vector<Place> mine) {
  const auto size = static_cast<size_t>(node_.size());
  views_.clear();
  tensors_.assign(size, {});
  bytes_.assign(size, {});
  const auto places = node_.gather_ragged<Place>(mine);
  Views views(views_);
  std::vector<uint8_t> unreadable(size, 0);
  for (size_t rank = 0; rank < size; ++rank) unreadable[rank] = places[rank].empty() ? 1 : 0;
  for (const int rank : wanted_) {
    const auto index = static_cast<size_t>(rank);
    for (const auto& [place, length] : places[index]) {
      const std::byte* base = length > 0 ? views.of(place.file) : nullptr;
      if (length > 0 && base == nullptr) unreadable[index] = 1;
      tensors_[index].push_back(base == nullptr ? nullptr : base + place.offset);
      bytes_[index].push_back(length);
    }
  }
  readable_.assign(size, true);
  for (const auto& of_rank : node_.gather_ragged<uint8_t>(unreadable)) {
    for (size_t rank = 0; rank < size; ++rank)
      readable_[rank] = readable_[rank] && of_rank[rank] == 0;
  }
  mine_ = std::move(mine);
  looked_ = true;
}

// Where weights are read in place for good there is nothing to copy.
SyncCounters sync_shared(const comm::CommView& comm, int64_t version,
                         std::span<const void* const> tensors, std::span<const int64_t> bytes) {
  const base::Stopwatch watch;
  VALIDATE(tensors.size() == bytes.size(), ExitCode::internal, tensors.size(),
           " shared tensors with ", bytes.size(), " sizes");
  struct Seen {
    int64_t version = 0;
    uint64_t digest = 0;
    uint64_t reads = 0;
  };
  const auto all =
      comm.gather_values(Seen{version, sample_digest(tensors, bytes), tensors.empty() ? 0u : 1u});
  const auto first = std::ranges::find(all, 1u, &Seen::reads);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    VALIDATE(all[rank].version == all[0].version, ExitCode::internal, "rank ", rank,
             " is at version ", all[rank].version, " of the shared weights, rank 0 at ",
             all[0].version);
    VALIDATE(all[rank].reads == 0 || all[rank].digest == first->digest, ExitCode::internal, "rank ",
             rank, " sees other bytes of the shared weights than rank ", first - all.begin());
  }
  SyncCounters counters;
  counters.version = version;
  counters.seconds = watch.seconds();
  return counters;
}

}  // namespace trireme::weightsync
