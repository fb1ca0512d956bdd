#include "flow_builder.hpp"

#include <algorithm>

namespace trireme::weightsync {
namespace {

using base::CopyRun;

// Splits `run` after at most `limit` elements: the part before, and the rest in place.
CopyRun cut(CopyRun& run, int64_t limit) {
  CopyRun head = run;
  if (run.columns <= limit && run.rows > 1) {  // whole rows
    head.rows = std::min(run.rows, limit / run.columns);
    run.rows -= head.rows;
    run.source_offset += head.rows * run.source_stride;
    run.target_offset += head.rows * run.target_stride;
    return head;
  }
  // One row, or rows longer than a bucket: a part of the first row. A run of several such rows must
  // go row by row, so that the rest of the first one comes next; the caller has split it.
  head.rows = 1;
  head.columns = std::min(run.columns, limit);
  run.columns -= head.columns;
  run.source_offset += head.columns;
  run.target_offset += head.columns;
  return head;
}

}  // namespace

void FlowBuilder::add(uint32_t tensor, const CopyRun& run) {
  if (run.rows == 1 || run.columns <= limit_) {
    add_cuttable(tensor, run);
    return;
  }
  for (int64_t r = 0; r < run.rows; ++r) {
    CopyRun row = run;
    row.rows = 1;
    row.source_offset += r * run.source_stride;
    row.target_offset += r * run.target_stride;
    add_cuttable(tensor, row);
  }
}

void FlowBuilder::finish() {
  if (open_.elements > 0) close();
}

void FlowBuilder::add_cuttable(uint32_t tensor, CopyRun run) {
  for (;;) {
    const int64_t room = limit_ - open_.elements;
    if (run.elements() <= room) {
      append(tensor, run);
      return;
    }
    // A row that does not fit into what is left begins the next bucket, unless it alone is longer
    // than one.
    if (room == 0 || (run.rows > 1 && run.columns > room)) {
      close();
      continue;
    }
    append(tensor, cut(run, room));
    close();
  }
}

void FlowBuilder::append(uint32_t tensor, const CopyRun& run) {
  flow_.pieces.push_back({tensor, run});
  open_.last = flow_.pieces.size();
  open_.elements += run.elements();
}

void FlowBuilder::close() {
  open_.number = next_++;
  flow_.buckets.push_back(open_);
  open_ = Bucket{flow_.pieces.size(), flow_.pieces.size(), 0, 0};
}

Flow every_nth_bucket(const Flow& flow, size_t count, size_t which) {
  Flow kept = flow;
  kept.pieces.clear();
  kept.buckets.clear();
  for (Bucket bucket : flow.buckets) {
    if ((static_cast<size_t>(bucket.number) + static_cast<size_t>(flow.shard)) % count != which)
      continue;
    const size_t first = kept.pieces.size();
    kept.pieces.insert(kept.pieces.end(),
                       flow.pieces.begin() + static_cast<std::ptrdiff_t>(bucket.first),
                       flow.pieces.begin() + static_cast<std::ptrdiff_t>(bucket.last));
    bucket.first = first;
    bucket.last = kept.pieces.size();
    kept.buckets.push_back(bucket);
  }
  return kept;
}

}  // namespace trireme::weightsync
