#include "torch/torch.hpp"

#include "step_indices.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

#include "page_pool.hpp"
#include "trireme/base/error.hpp"

namespace trireme::generate {
namespace {

int64_t padded_count(int64_t count) {
  const auto power = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count)));
  return power >= 4 && count <= power / 4 * 3 ? power / 4 * 3 : power;
}

}  // namespace

std::optional<DecodeShape> DecodeShape::of(const StepBatch& batch) {
  if (batch.rows() == 0 || batch.logit_rows.size() != batch.ids.size()) return std::nullopt;
  if (std::ranges::any_of(batch.sequences, [](const SequenceRows& s) { return s.rows != 1; }))
    return std::nullopt;
  DecodeShape shape{padded_count(batch.rows()), 0};
  int64_t chunks = shape.rows - batch.rows();  // one of each row that fills up
  for (const SequenceRows& s : batch.sequences)
    chunks += kernels::attention_chunks(s.first_position + 1);
  shape.chunks = padded_count(chunks);
  return shape;
}

StepIndices::StepIndices(const StepBatch& batch, int64_t page_size, bool paged) {
  for (const SequenceRows& s : batch.sequences) {
    const int64_t row = rows.cu_seqlens.back(), positions = s.first_position + s.rows;
    const auto slot = [&](int64_t i) {
      return s.pages[static_cast<size_t>(i / page_size)] * page_size + i % page_size;
    };
    for (int64_t i = s.first_position; i < positions; ++i) written_.push_back(slot(i));
    rows.cu_seqlens.push_back(row + s.rows);
    rows.whole_lengths.push_back(s.length);
    rows.adapters.push_back(s.adapter);
    if (paged && s.rows == 1) {
      queries.add(row, positions, s.pages);
      continue;
    }
    const auto first_page = std::ranges::find_if(s.pages, [](int32_t p) { return p != no_page; });
    const int64_t first = (first_page - s.pages.begin()) * page_size;
    for (int64_t i = first; i < positions; ++i) read_.push_back(slot(i));
    for (int64_t i = row; i < row + s.rows; ++i) gathering_.push_back(i);
    lengths.add(s.rows, positions - first);
  }
  ids_.assign(batch.ids.begin(), batch.ids.end());
  positions_ = batch.positions;
  logit_rows_.assign(batch.logit_rows.begin(), batch.logit_rows.end());
}

StepIndices::StepIndices(const StepBatch& batch, int64_t page_size, const DecodeShape& shape,
                         int32_t spare_page)
    : StepIndices(batch, page_size, true) {
  EXPECT(gathering_.empty() && batch.rows() <= shape.rows);
  for (int64_t row = batch.rows(); row < shape.rows; ++row) {
    ids_.push_back(0);
    positions_.push_back(0);
    written_.push_back(spare_page * page_size);
    rows.cu_seqlens.push_back(row + 1);
    queries.add(row, 1, {&spare_page, 1});
  }
  queries.fill_up(shape.chunks);
  logit_rows_.resize(static_cast<size_t>(shape.rows));
  std::iota(logit_rows_.begin(), logit_rows_.end(), 0);
}

void StepIndices::put(Upload& upload) {
  const auto narrow = [](const std::vector<int64_t>& values) {
    return std::vector<int32_t>(values.begin(), values.end());
  };
  for (const auto* values : {&ids_, &positions_, &written_, &read_, &gathering_, &logit_rows_})
    pieces_.push_back(upload.put(*values));
  for (const auto* values : {&lengths.queries, &lengths.keys})
    pieces_.push_back(upload.put(narrow(*values)));
  queries.put(upload);
}

void StepIndices::find(const Upload& upload) {
  rows.ids = upload.tensor(pieces_[0], at::kLong);
  rows.positions = upload.tensor(pieces_[1], at::kLong);
  written = upload.tensor(pieces_[2], at::kLong);
  read = upload.tensor(pieces_[3], at::kLong);
  gathering = upload.tensor(pieces_[4], at::kLong);
  logit_rows = upload.tensor(pieces_[5], at::kLong);
  lengths.queries_device = upload.tensor(pieces_[6], at::kInt);
  lengths.keys_device = upload.tensor(pieces_[7], at::kInt);
}

}  // namespace trireme::generate
