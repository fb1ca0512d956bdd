#include "trireme/comm/device_copies.hpp"

#include "comm/shard_exchange_parts.hpp"
#include "trireme/base/error.hpp"

namespace trireme::comm {

RowCopy RowCopy::joined() const {
  if (rows <= 1 || to_stride != bytes || from_stride != bytes) return *this;
  return {to, from, 1, rows * bytes, rows * bytes, rows * bytes};
}

void start_copy(const RowCopy& copy) {
  EXPECT(device_support().start_copy != nullptr);
  if (copy.rows > 0 && copy.bytes > 0) device_support().start_copy(copy.joined());
}

void finish_copies() {
  EXPECT(device_support().finish_copies != nullptr);
  device_support().finish_copies();
}

}  // namespace trireme::comm
