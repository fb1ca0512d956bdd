// A save whose data may be changed by another thread between tensors: the gate is asked before each
// dataset is read.
#pragma once

#include "trireme/checkpoint/writer.hpp"

namespace trireme::checkpoint {

class DataGate {
 public:
  virtual ~DataGate() = default;
  // Where the data are now; they stay there until end_write.
  virtual const void* begin_write(size_t dataset, const void* data) {
    static_cast<void>(dataset);
    return data;
  }
  virtual void end_write(size_t dataset) { static_cast<void>(dataset); }
};

SaveReport save_through(const comm::CommView& comm, const std::filesystem::path& folder,
                        int64_t step, const Content& content, const SaveOptions& options,
                        DataGate& gate);

}  // namespace trireme::checkpoint
