// Sources whose tensors lie in shared windows of the node, as trainers' weights do
// (docs/design/0003): the node's targets copy from there to their slices, so that memory sees one
// read and one write, and nobody packs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/comm/topology.hpp"

namespace trireme::weightsync {

class SourcesInPlace {
 public:
  // `node`: ranks that share memory. `wanted`: those of them whose tensors this rank copies.
  SourcesInPlace(const comm::CommView& node, std::vector<int> wanted, bool verify);

  // As a sync begins, collective over the node: every rank has its tensors as the others shall read
  // them. Where some lie elsewhere than before all look anew. `mine`, `bytes`: [tensors], empty on
  // ranks that give nothing. "", or which rank's memory this one sees other bytes of (by a sample
  // of each tensor, with `verify`).
  std::string begin(const std::vector<const void*>& mine, const std::vector<int64_t>& bytes);

  // Whether all ranks that copy this rank's tensors can read them.
  bool readable(int rank) const { return readable_[static_cast<size_t>(rank)]; }
  // [tensors] of such a rank, here; empty unless it is wanted.
  const std::vector<const void*>& tensors(int rank) const {
    return tensors_[static_cast<size_t>(rank)];
  }

 private:
  // A tensor that others read.
  struct Place {
    comm::WindowPlace place;
    int64_t bytes = 0;
    bool operator==(const Place&) const = default;
  };
  static std::vector<Place> places_of(const std::vector<const void*>& tensors,
                                      const std::vector<int64_t>& bytes);
  void look(std::vector<Place> mine);

  comm::CommView node_;
  std::vector<int> wanted_;
  bool verify_;
  bool looked_ = false;
  std::vector<Place>
      mine_;  // as the others know them; addresses may be those of another window by now
  std::vector<comm::WindowView> views_;
  std::vector<bool> readable_;                     // [ranks of the node]
  std::vector<std::vector<const void*>> tensors_;  // [ranks of the node]
  std::vector<std::vector<int64_t>> bytes_;        // of tensors_
};

}  // namespace trireme::weightsync
