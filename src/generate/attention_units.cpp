#include "attention_units.hpp"

#include <algorithm>

#include "trireme/kernels/decode_attention.hpp"

namespace trireme::generate {

AttentionUnits share_attention(const StepBatch& batch, int64_t kv_heads, int threads,
                               int64_t together) {
  std::vector<AttentionUnit> rows;
  int64_t row = 0;
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    const SequenceRows& sequence = batch.sequences[s];
    for (int64_t at = 0; at < sequence.rows; at += together) {
      const int64_t count = std::min(together, sequence.rows - at),
                    keys = sequence.first_position + at + 1;
      rows.push_back({s, row + at, count, 0, keys, kernels::key_chunks(keys + count - 1)});
    }
    row += sequence.rows;
  }
  const auto cost = [](const AttentionUnit& unit) {
    return unit.rows * (unit.keys + unit.rows / 2);
  };
  std::stable_sort(rows.begin(), rows.end(), [&](const AttentionUnit& a, const AttentionUnit& b) {
    return cost(a) > cost(b);
  });
  AttentionUnits out;
  int64_t most_chunks = 0;
  for (AttentionUnit& unit : rows) {
    most_chunks = std::max(most_chunks, unit.chunks);
    for (unit.kv_head = 0; unit.kv_head < kv_heads; ++unit.kv_head) out.units.push_back(unit);
  }
  constexpr int64_t enough = 4;  // units for each thread, that none waits long for the others
  if (threads == 1 || most_chunks < 2 || batch.rows() > most_rows_in_parts ||
      std::ssize(out.units) >= enough * threads)
    return out;
  for (size_t u = 0; u < out.units.size(); ++u) {
    for (int64_t chunk = 0; chunk < out.units[u].chunks; ++chunk) out.parts.push_back({u, chunk});
  }
  return out;
}

}  // namespace trireme::generate
