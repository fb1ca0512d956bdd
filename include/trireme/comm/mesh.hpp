// How the ranks of one role divide their work: a mesh of four axes with a communicator along each.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "trireme/comm/comm.hpp"
#include "trireme/comm/topology.hpp"

namespace trireme::comm {

// Outermost first: ranks that differ in `tensor` alone follow each other.
//   data     copies of the model, each with sequences of its own
//   shard    ranks that cut the state of one copy among them, each with sequences of its own
//   context  ranks that cut the positions of one sequence among them
//   tensor   ranks that cut the products of one layer among them
enum class Axis : uint8_t { data, shard, context, tensor };

struct MeshSizes {
  int data = 1, shard = 1, context = 1, tensor = 1;
  int ranks() const { return data * shard * context * tensor; }
};

class Mesh {
 public:
  Mesh() = default;  // without ranks
  // `ranks`: of `world`, sizes.ranks() of them, in order of their places. Collective over `world`.
  Mesh(const CommView& world, std::vector<int> ranks, const MeshSizes& sizes,
       const std::string& name);

  bool member() const { return index_ >= 0; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int size(Axis axis) const { return sizes_[static_cast<size_t>(axis)]; }
  int place(Axis axis) const;  // of this rank, a member

  // Null views (one rank) on ranks that are no members, and along an axis of size 1.
  CommView all() const { return all_; }
  // The ranks that differ from this one in `axis` alone, in order of their places.
  CommView along(Axis axis) const { return along_[static_cast<size_t>(axis)]; }
  // data x shard: the ranks that have other sequences than this one. Sums over a batch go over
  // them.
  CommView batch() const { return size(Axis::context) * size(Axis::tensor) == 1 ? all_ : batch_; }

  // World ranks of each line along `axis`, and of the line's members in order.
  std::vector<std::vector<int>> lines(Axis axis) const;

 private:
  int stride(Axis axis) const;
  int line_of(int index, Axis axis) const;

  std::vector<int> ranks_;
  std::array<int, 4> sizes_{1, 1, 1, 1};
  int index_ = -1;  // of this rank in ranks_
  Comm all_;
  std::array<Comm, 4> along_;
  Comm batch_;  // where it is not all of them
};

// `ranks` as replicas (data) of `degree` ranks each (tensor), a replica inside a node wherever the
// node has as many left (config::replica_groups). Collective over `world`.
Mesh mesh_of_replicas(const CommView& world, const NodeTopology& topology,
                      const std::vector<int>& ranks, int degree, const std::string& name);

}  // namespace trireme::comm
