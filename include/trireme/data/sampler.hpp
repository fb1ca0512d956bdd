// Which rows come next: the same on every rank without a message, and the same after a restart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trireme::data {

enum class Order { file, shuffled };
// What happens to the last rows of an epoch when they do not fill a draw: left out (as OpenRLHF's
// loader), or put together with the first rows of the next epoch.
enum class EpochEnd { drop_last, carry_over };

struct SamplerOptions {
  std::vector<int64_t>
      sizes;  // rows per source; global row = rows of earlier sources + row in the source
  std::vector<double>
      weights;  // empty: all sources are one list. Else share of the draws that each source gets
  uint64_t seed = 0;
  Order order = Order::shuffled;
  EpochEnd epoch_end = EpochEnd::drop_last;
};

// Where a sampler stands; goes into checkpoints.
struct SamplerState {
  std::vector<int64_t> sizes;  // rows per stream, to recognise other data
  std::vector<int64_t> taken;  // rows taken (or left out) per stream since the start
  bool operator==(const SamplerState&) const = default;
};

// Without weights the sources form one stream; each epoch is a permutation of it that depends on
// (seed, epoch) only. With weights each source is a stream with epochs of its own, and the k-th row
// comes from the stream that is furthest behind its share (largest weight * (k+1) / sum - taken;
// ties to the first), so after k rows every stream has its share to within one row. Streams never
// drop rows then: epoch_end has no meaning.
class PromptSampler {
 public:
  // Throws UserError(configuration): no rows, weights of another count, negative, not finite or all
  // zero, weight on an empty source.
  explicit PromptSampler(SamplerOptions options);

  // The next n global rows. Throws UserError(configuration) when drop_last is asked and n exceeds
  // the epoch.
  std::vector<int64_t> draw(int64_t n);

  // Epoch of the next draw (of the stream that is furthest ahead).
  int64_t epoch() const;
  // How often all rows have been drawn (or left out) so far: 1.5 in the middle of the second epoch.
  double epochs_drawn() const;
  // Draws of n that one epoch gives, for schedules (drop_last: floor, else ceil; with weights over
  // the total rows).
  int64_t draws_per_epoch(int64_t n) const;

  SamplerState state() const;
  // Throws UserError(bad_data) when the state belongs to data of other sizes.
  void restore(const SamplerState& state);

 private:
  struct Stream {
    int64_t first = 0;  // global row of its row 0
    int64_t size = 0;
    double weight = 0;
    int64_t taken = 0;
    int64_t permuted_epoch = -1;  // which epoch `permutation` holds
    std::vector<int64_t> permutation;
  };
  int64_t take(size_t stream);
  size_t furthest_behind() const;

  SamplerOptions options_;
  std::vector<Stream> streams_;
  double weight_sum_ = 0;
};

}  // namespace trireme::data
