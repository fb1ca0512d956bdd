// Cutting a flow into buckets.
#pragma once

#include "trireme/weightsync/plan.hpp"

namespace trireme::weightsync {

// Appends runs to a flow's pieces, row by row where their rows are longer than a bucket.
class FlowBuilder {
 public:
  FlowBuilder(Flow& flow, int64_t bucket_elements) : flow_(flow), limit_(bucket_elements) {}
  void add(uint32_t tensor, const base::CopyRun& run);
  void finish();  // the last bucket

 private:
  void add_cuttable(uint32_t tensor, base::CopyRun run);
  void append(uint32_t tensor, const base::CopyRun& run);
  void close();

  Flow& flow_;
  int64_t limit_;
  Bucket open_;
  int32_t next_ = 0;
};

// The buckets of `flow` of which (number + shard) mod `count` is `which`, with their pieces.
Flow every_nth_bucket(const Flow& flow, size_t count, size_t which);

}  // namespace trireme::weightsync
