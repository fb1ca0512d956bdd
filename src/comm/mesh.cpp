#include "trireme/comm/mesh.hpp"

#include <algorithm>

#include "trireme/base/error.hpp"
#include "trireme/config/placement.hpp"

namespace trireme::comm {
namespace {

constexpr std::array<const char*, 4> axis_names{"data", "shard", "context", "tensor"};

}  // namespace

Mesh::Mesh(const CommView& world, std::vector<int> ranks, const MeshSizes& sizes,
           const std::string& name)
    : ranks_(std::move(ranks)), sizes_{sizes.data, sizes.shard, sizes.context, sizes.tensor} {
  VALIDATE(sizes.ranks() == size(), ExitCode::internal, name, ": a mesh of ", sizes.data, " x ",
           sizes.shard, " x ", sizes.context, " x ", sizes.tensor, " places for ", size(),
           " ranks");
  const auto here = std::find(ranks_.begin(), ranks_.end(), world.rank());
  if (here != ranks_.end()) index_ = static_cast<int>(here - ranks_.begin());
  all_ = Comm::subset(world, ranks_, name);
  for (const Axis axis : {Axis::data, Axis::shard, Axis::context, Axis::tensor}) {
    const auto a = static_cast<size_t>(axis);
    if (sizes_[a] > 1)
      along_[a] = Comm::split(world, member() ? line_of(index_, axis) : -1, index_,
                              base::text(name, " along ", axis_names[a]));
  }
  const int sharers = sizes.context * sizes.tensor;
  if (sharers > 1)
    batch_ = Comm::split(world, member() ? index_ % sharers : -1, index_, name + " of the batch");
}

int Mesh::stride(Axis axis) const {
  int stride = 1;
  for (size_t inner = static_cast<size_t>(axis) + 1; inner < sizes_.size(); ++inner)
    stride *= sizes_[inner];
  return stride;
}

int Mesh::place(Axis axis) const {
  ASSERT(member());
  return index_ / stride(axis) % size(axis);
}

// The places of the other axes as one number, in the order of the ranks.
int Mesh::line_of(int index, Axis axis) const {
  const int inner = stride(axis);
  return index / (inner * size(axis)) * inner + index % inner;
}

std::vector<std::vector<int>> Mesh::lines(Axis axis) const {
  std::vector<std::vector<int>> out(ranks_.size() / static_cast<size_t>(size(axis)));
  for (int index = 0; index < size(); ++index)
    out[static_cast<size_t>(line_of(index, axis))].push_back(ranks_[static_cast<size_t>(index)]);
  return out;
}

Mesh mesh_of_replicas(const CommView& world, const NodeTopology& topology,
                      const std::vector<int>& ranks, int degree, const std::string& name) {
  const auto replicas = config::replica_groups(ranks, topology.node_of, degree);
  std::vector<int> in_order;
  for (const auto& replica : replicas)
    in_order.insert(in_order.end(), replica.begin(), replica.end());
  return {world,
          std::move(in_order),
          {.data = static_cast<int>(replicas.size()), .tensor = degree},
          name};
}

}  // namespace trireme::comm
