// The weights of one tensor-parallel rank of a generator: dense row-major slices in the compute
// dtype. They live in one allocation of this class, or in memory that somebody else owns (the
// trainer's shared window): then a weight sync is a swap of pointers. Beside them there may be a
// copy in 8 bits of those that products take, which a host engine then multiplies with.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/base/shard_layout.hpp"
#include "trireme/config/choices.hpp"
#include "trireme/model/spec.hpp"

namespace trireme::generate {

enum class Place : uint8_t { host, device };

class GeneratorWeights {
 public:
  // Rank `rank` of `degree`; allocates zeroed storage, 64-byte aligned per parameter, on huge pages
  // where allowed. Host memory is touched at once, so memory that is free afterwards stays free.
  // Throws UserError(configuration) as model::tensor_parallel_layout does, out_of_memory with the
  // size.
  GeneratorWeights(const model::ModelSpec& spec, config::DType dtype, int rank = 0, int degree = 1,
                   Place place = Place::host);
  // The same without storage of its own: alias() gives the pointers before the first use.
  static GeneratorWeights aliasing(const model::ModelSpec& spec, config::DType dtype, int rank = 0,
                                   int degree = 1);
  GeneratorWeights(GeneratorWeights&&) noexcept;
  GeneratorWeights& operator=(GeneratorWeights&&) noexcept;
  ~GeneratorWeights();

  // The slices of all ranks, parameters in the order of ModelSpec::parameters; for the weight-sync
  // plan.
  const base::ShardLayout& layout() const { return layout_; }
  int rank() const { return rank_; }
  int degree() const { return layout_.ranks(); }
  config::DType dtype() const { return dtype_; }
  Place place() const { return place_; }
  base::Block block(size_t parameter) const { return layout_.block(parameter, rank_); }

  // Where this rank's slice of each parameter is written, row-major in the compute dtype. Owned
  // storage only.
  std::vector<std::byte*> storage();
  // Gives owned storage on a device back, and the weights in it; on the host, or of others, nothing
  // is done. The bytes. Nobody reads the weights until restore() has made storage(), of no
  // particular values, again.
  int64_t release();
  void restore();
  // Grows whenever the weights come to lie somewhere else, by the same on every rank of a replica.
  int64_t times_placed() const { return times_placed_; }
  const std::byte* data(size_t parameter) const { return pointers_[parameter]; }
  // A view [rows, columns] ([rows] for vectors) of the slice; valid while the storage is.
  at::Tensor tensor(size_t parameter) const;
  // Of `count` parameters the rows, one behind the other, where they lie so: owned storage on a
  // device has those of one product so (model::joins_the_one_before()). Else undefined.
  at::Tensor joint_tensor(size_t first, size_t count) const;
  // Bytes of owned storage, given back or not, copies in 8 bits among them.
  int64_t bytes() const { return bytes_ + int8_bytes_; }
  // "269 MiB, 97 % huge pages, one NUMA node"; "" for storage that is not owned, or on a GPU.
  std::string describe_memory() const;

  // Reads the weights from here from now on: one pointer per parameter, 64-byte aligned is fastest.
  // The memory must stay valid and unchanged while an engine steps.
  void alias(const std::vector<const std::byte*>& pointers);

  // Takes memory for copies in 8 bits (kernels/int8_gemm.hpp) of the matrices that rows are
  // multiplied with; the embedding has one where it is the head too. Touched at once. Throws
  // UserError(configuration) for weights on a GPU, out_of_memory with the size.
  void add_int8(const model::ModelSpec& spec);
  // Makes the copies anew: after every change of the weights, before an engine steps. On LibTorch's
  // threads; returns their bytes, 0 where there are none.
  int64_t quantise();
  // Null: this parameter has none.
  const std::byte* int8(size_t parameter) const {
    return int8_.empty() ? nullptr : int8_[parameter];
  }
  int64_t int8_bytes() const { return int8_bytes_; }

  // Number of the weights, recorded with every token. The caller sets it after each sync; an engine
  // drops KV pages of another version at its next step.
  int32_t version() const { return version_; }
  void set_version(int32_t version) { version_ = version; }

 private:
  struct Storage;
  GeneratorWeights(const model::ModelSpec& spec, config::DType dtype, int rank, int degree,
                   Place place, bool allocate);
  int64_t slice_bytes(size_t parameter) const;
  at::Tensor view(size_t parameter, int64_t rows) const;
  base::ShardLayout layout_;
  config::DType dtype_;
  int rank_;
  Place place_;
  int32_t version_ = 0;
  int64_t times_placed_ = 0;
  int64_t bytes_ = 0;
  int64_t int8_bytes_ = 0;
  std::vector<bool> joins_;  // [parameters]
  std::vector<std::byte*> owned_;
  std::vector<const std::byte*> pointers_;
  std::vector<std::byte*> int8_;  // [parameters], or empty
  std::unique_ptr<Storage> storage_;
};

}  // namespace trireme::generate
