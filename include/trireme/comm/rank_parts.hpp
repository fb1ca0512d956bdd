// Sums of the ranks of a tensor-parallel replica in host memory: each writes a part of its own,
// then any of its threads reads those of all ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "trireme/comm/comm.hpp"

namespace trireme::comm {

class RankParts {
 public:
  struct Sources {  // rank r's part begins at first + r * stride
    const float* first = nullptr;
    int64_t stride = 0;
  };

  virtual ~RankParts() = default;
  // Room for parts of `count` numbers; parts written for the next sum are lost. Collective where
  // that is more than there is.
  virtual void reserve(int64_t count) = 0;
  // Where this rank's part of the next sum goes, up to meet().
  virtual float* own(int64_t count) = 0;
  // When this rank's part of `count` numbers is written, by all its threads: returns when those of
  // all ranks can be read. Collective.
  virtual void meet(int64_t count) = 0;
  // The parts of the last meet(), valid up to the next one; only while own() is written for that
  // one may a thread still read them.
  virtual Sources sources() const = 0;
  virtual std::string kind() const = 0;  // for the log
};

// In memory that the ranks share, or, if they are on several nodes, cannot share memory or are not
// to (`share`), gathered by MPI. Every sum over the parts in the order of the ranks has the same
// bits on both ways. `comm` must outlive the parts. Collective.
std::unique_ptr<RankParts> make_rank_parts(const CommView& comm, bool share);

}  // namespace trireme::comm
