// Where weights come from: safetensors or GGUF behind one interface, read by rectangles, so that
// each rank reads only its own shard and a conversion streams tensor by tensor.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/shard_layout.hpp"
#include "trireme/model/stored_type.hpp"

namespace trireme::model {

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // Hugging Face names of all tensors, sorted.
  virtual std::vector<std::string> names() const = 0;
  virtual bool contains(std::string_view name) const = 0;
  // Global shape; UserError(bad_data) when there is no such tensor.
  virtual const base::TensorSpec& spec(std::string_view name) const = 0;
  // The name of the stored element type, for people: "BF16", "Q4_1".
  virtual std::string_view type_name(std::string_view name) const = 0;
  // Elements of `block` as fp32, row-major, into out[block.elements()]. Reads the block's bytes
  // only. Thread-safe. UserError(bad_data): no such tensor, not a weight type, or the file changed
  // since it was opened.
  virtual void read(std::string_view name, const base::Block& block, float* out) const = 0;
  // The same elements as they are stored, into `out`, where they are stored as `type`; else false:
  // read() has them.
  virtual bool copy(std::string_view /*name*/, const base::Block& /*block*/, StoredType /*type*/,
                    std::byte* /*out*/) const {
    return false;
  }
  // The source's name in messages: a path.
  virtual std::string describe() const = 0;

  // Bytes of tensor data taken from the files so far.
  uint64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }

 protected:
  void count_bytes(uint64_t bytes) const {
    bytes_read_.fetch_add(bytes, std::memory_order_relaxed);
  }

 private:
  mutable std::atomic<uint64_t> bytes_read_{0};
};

}  // namespace trireme::model
